#include "engine/model/model_loading.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/model/adapter.hpp"
#include "engine/model/model_fingerprint.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/tensor_faults.hpp"
#include "engine/model/tensor_source.hpp"
#include "engine/model/weight_loading.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

/// Weights that lose precision in bf16, and what keeps it; empty if they do not.
struct Rounding {
    std::string weights, kept;
};
Rounding rounding_of(const MatrixView& view) {
    const std::string& dtype = view.elements->dtype_name;
    const bool is_float = view.elements->dtype == TensorType::f16 || view.elements->dtype == TensorType::f32;
    if (is_float) return {dtype + " weights", "exactly"};
    if (view.form == StoredForm::scaled) return {dtype + " weights times their scales", "in f32"};
    if (view.form != StoredForm::grouped || view.groups.is_exact_in_bf16()) return {};
    const int bits = view.groups.elements.bits;
    Rounding rounding{"weights of " + std::to_string(bits) + " bits times their scales", "in f32"};
    if (view.groups.type == ElementType::integer)
        rounding.kept += ", int" + std::to_string(bits) + " nearly as they are, in " +
                         (bits == 4 ? "a quarter" : "half") + " of the memory";
    return rounding;
}

/// Adds a notice for each kind of weights that lose precision in bf16, whatever type config.json names.
void note_rounding(const std::vector<WeightPlan>& plans, const SafetensorsFolder& tensors,
                   std::vector<std::string>& notices) {
    std::set<std::string> noted;
    for (const WeightPlan& plan : plans) {
        if (plan.matrix == nullptr) continue;
        for (const TensorPart& part : plan.parts) {
            const auto [weights, kept] =
                rounding_of(require_matrix(tensors, part.tensor, part.rows, part.columns, part.stack));
            if (weights.empty() || !noted.insert(weights).second) continue;
            std::string& notice = notices.emplace_back("model: ");
            notice.append(weights).append(" (").append(part.tensor);
            notice.append(") are rounded to bf16; precision = fp32 keeps them ").append(kept);
        }
    }
}

/// Whether these are integers of as many bits as `precision` has, which it keeps nearly as they are.
bool has_bits_of(const MatrixView& view, Precision precision) {
    const int bits = precision == Precision::int4 ? 4 : precision == Precision::int8 ? 8 : 0;
    if (view.form == StoredForm::scaled) return view.elements->dtype == TensorType::i8 && bits == 8;
    return view.form == StoredForm::grouped && view.groups.type == ElementType::integer &&
           view.groups.elements.bits == bits;
}

/// Adds a notice if integers that `precision` would keep are quantized again, because the adapter is added to them.
void note_quantizing(const std::vector<WeightPlan>& plans, const SafetensorsFolder& tensors, const Adapter& adapter,
                     Precision precision, std::vector<std::string>& notices) {
    for (const WeightPlan& plan : plans) {
        if (plan.matrix == nullptr) continue;
        for (const TensorPart& part : plan.parts) {
            if (!adapter.changes(part.tensor) ||
                !has_bits_of(require_matrix(tensors, part.tensor, part.rows, part.columns, part.stack), precision))
                continue;
            notices.push_back("model: quantized weights (" + part.tensor +
                              ") are quantized again with the adapter added; precision = bf16 or fp32 is more exact");
            return;
        }
    }
}

const char* precision_name(Precision precision) {
    constexpr std::array names{"bf16", "fp32", "int8", "int4"};
    return names[static_cast<std::size_t>(precision)];
}

/// Loads the weights of a model folder.
class Loading {
  public:
    /// `model` receives the weights, notices and report. `adapter`: null if there is none.
    Loading(const SafetensorsFolder& tensors, const Adapter* adapter, kernels::Device& device, LoadedModel& model)
        : tensors_(tensors),
          adapter_(adapter),
          device_(device),
          model_(model),
          plans_(plan_weights(model.config, model.split, weight_types(model.precision), model.weights)) {}

    void run(const std::filesystem::path& packed_folder) {
        if (model_.precision == Precision::bf16) note_rounding(plans_, tensors_, model_.notices);
        if (adapter_ != nullptr) note_quantizing(plans_, tensors_, *adapter_, model_.precision, model_.notices);
        if (!packed_folder.empty() && adopt_packed(packed_folder)) return;
        FolderSource source(tensors_, adapter_);
        load_weights(plans_, device_, source);
        note_bad(source.bad_tensors());
        model_.report.how = "packed from the model's files";
    }

  private:
    bool adopt_packed(const std::filesystem::path& folder);
    void note_bad(const std::vector<std::string>& names);

    const SafetensorsFolder& tensors_;
    const Adapter* adapter_;
    kernels::Device& device_;
    LoadedModel& model_;
    std::vector<WeightPlan> plans_;
};

/// Uses weights from a packed file, which is written first if there is none. Returns false if that is not possible.
bool Loading::adopt_packed(const std::filesystem::path& folder) {
    const std::string layout_name(device_.packed_layout());
    const std::string part = std::to_string(model_.split.rank) + "of" + std::to_string(model_.split.size);
    const std::string adapter = adapter_ != nullptr ? "+" + hex(model_.adapter_fingerprint) : "";
    const std::string name =
        hex(model_.fingerprint) + adapter + "-" + precision_name(model_.precision) + "-" + layout_name + "-" + part;
    PackedKey key{.text = name + ", numerics " + std::to_string(kernels::numerics_version),
                  .model_changed = tensors_.last_change()};
    if (adapter_ != nullptr) key.text += ", adapter of " + std::to_string(adapter_->tensors().last_change());
    const std::filesystem::path path = folder / (name + ".packed");
    model_.report.how = "mapped from " + path.string();
    const auto write = [&](PackedFileWriter& file) {
        model_.report.how = "packed into " + path.string();
        FolderSource source(tensors_, adapter_);
        write_weights(plans_, device_, source, file);
        return source.bad_tensors();
    };
    try {
        model_.packed = open_or_write(path, key, device_.threads(), write, model_.notices);
        adopt_weights(plans_, device_, *model_.packed);
        note_bad(model_.packed->notes());
        if (device_.own_memory()) model_.packed.reset();  // the device has copied it
        return true;
    } catch (const PackedFileError& error) {
        model_.notices.push_back("packed-weights: " + std::string(error.what()) +
                                 "; continuing without packed weights");
        return false;
    }
}

void Loading::note_bad(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        const auto view = tensors_.tensors().find(name);
        if (view == tensors_.tensors().end()) continue;
        model_.notices.push_back(view->second.file + ": " + name +
                                 ": holds NaN or infinity; the generated text will be unusable");
    }
}

}  // namespace

void gather_lines(Group& group, std::vector<std::string>& lines) {
    ByteWriter writer;
    for (const std::string& line : lines) writer.put(line);
    for (const std::vector<std::byte>& bytes : group.gather(writer.bytes())) {
        ByteReader reader(bytes);
        while (!reader.empty()) {
            std::string line = reader.get_string();
            if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
        }
    }
}

LoadedModel::LoadedModel(const ModelConfig& of, Precision in, const kernels::Device& device, const Group& group,
                         std::optional<kernels::DType> kv_dtype)
    : config(of),
      precision(in),
      split(config, group.rank(), group.size()),
      act(kernels::act_type(weight_types(in).layers)),
      layouts(kv_layouts_of(config, split, kv_dtype.value_or(act))) {
    for (kernels::KvLayout& layout : layouts) {
        if (!layout.is_state()) layout.pages_together = device.kv_pages_together(layout);
    }
}

std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, Precision precision,
                                        kernels::Device& device, Group& group, std::optional<kernels::DType> kv_dtype,
                                        const std::filesystem::path& packed_folder,
                                        const std::filesystem::path& adapter_folder) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_ptr<LoadedModel> model;
    const auto load = [&] {
        model = std::make_unique<LoadedModel>(ModelConfig::load(folder), precision, device, group, kv_dtype);
        const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
        const std::vector<std::string> faults = tensor_faults(model->config, tensors);
        if (!faults.empty()) throw Error(faults.front());
        model->fingerprint = model_fingerprint(model->config, tensors.fingerprint());
        std::optional<Adapter> adapter;
        if (!adapter_folder.empty()) {
            adapter = Adapter::open(adapter_folder);
            adapter->fit(model->config);
            model->adapter_fingerprint = adapter->fingerprint();
        }
        Loading(tensors, adapter ? &*adapter : nullptr, device, *model).run(packed_folder);
        if (adapter) model->report.how += ", with adapter " + adapter_folder.string() + " (" + adapter->summary() + ")";
        model->report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    agree(group, [&] {
        try {
            load();
        } catch (const std::bad_alloc&) {
            throw Error(
                "model: expected enough memory for the weights, got an allocation failure; use more ranks or a "
                "smaller model");
        }
    });
    return model;
}

/// Fills the plans' destinations with random weights. All layers have those of the first, each in memory of its own:
/// copying is much faster than packing, and a benchmark reads as many bytes.
static void load_random(const std::vector<WeightPlan>& plans, kernels::Device& device, std::uint64_t seed) {
    RandomSource source(seed);
    std::map<std::string, const kernels::Matrix*> first;  // by the matrix's name within its layer
    for (const WeightPlan& plan : plans) {
        const std::string name = plan.name.substr(plan.name.rfind('.') + 1);
        const kernels::Matrix* same =
            plan.matrix != nullptr ? first.try_emplace(name, plan.matrix).first->second : nullptr;
        const std::size_t num_bytes = plan.packed_bytes(device);
        if (same == plan.matrix || same->data.num_bytes() != num_bytes) {
            load_weights({plan}, device, source);
            continue;
        }
        *plan.matrix = plan.geometry();
        plan.matrix->data = kernels::Buffer(device, num_bytes);
        device.copy_within(plan.matrix->data.data(), same->data.data(), num_bytes);
        place_experts(plan, device);
    }
}

std::unique_ptr<LoadedModel> random_model(const ModelConfig& config, Precision precision, kernels::Device& device,
                                          const Group& group, std::uint64_t seed,
                                          std::optional<kernels::DType> kv_dtype) {
    auto model = std::make_unique<LoadedModel>(config, precision, device, group, kv_dtype);
    load_random(plan_weights(model->config, model->split, weight_types(precision), model->weights), device, seed);
    model->fingerprint = model_fingerprint(config, seed);
    return model;
}

}  // namespace longhaul::engine
