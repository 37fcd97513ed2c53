#include "engine/model/adapter.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/grouped_matrix.hpp"
#include "engine/model/split.hpp"
#include "engine/model/stored_matrix.hpp"

namespace longhaul::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char *config_name = "adapter_config.json", *weights_name = "adapter_model.safetensors";
constexpr const char* merge_with_peft = "merge it with PEFT (merge_and_unload), and give the merged folder as model";
constexpr const char* by_columns_field = "fan_in_fan_out";
constexpr std::int64_t max_rank = std::int64_t{1} << 16;
constexpr std::string_view prefix = "base_model.model.";

/// Fields of adapter_config.json that do not change what the tensors mean: they say what was trained, and how.
bool is_informative(const std::string& field) {
    static const std::set<std::string> fields{
        "auto_mapping",    "base_model_name_or_path", "corda_config",   "ensure_weight_tying", "eva_config",
        "exclude_modules", "inference_mode",          "layers_pattern", "layers_to_transform", "loftq_config",
        "lora_dropout",    "megatron_core",           "peft_version",   "qalora_group_size",   "revision",
        "runtime_config",  "target_modules",          "task_type"};
    return fields.contains(field);
}

/// Whether it says nothing.
bool is_neutral(const Json& value) {
    if (const auto* text = value.get_ptr<const std::string*>()) return text->empty();
    return value == false || value.empty();  // null is empty, too; numbers and true are not
}

/// The fields of adapter_config.json that decide what is added.
class Settings {
  public:
    explicit Settings(const fs::path& path) : file_(path.string()), json_(read_json(path, std::int64_t{1} << 24)) {
        if (!json_.is_object()) throw InputError(file_, "", "an object", describe(json_));
        check_kind();
        rank_ = get_int(json_, "r", 1, max_rank, file_);
        alpha_ = number("lora_alpha", json_.value("lora_alpha", Json()));
        by_root_ = get_bool_or(json_, "use_rslora", false, file_);
        by_columns_ = get_bool_or(json_, by_columns_field, false, file_);
        read_pattern("rank_pattern", [&](const std::string& module, const Json& value) {
            ranks_[module] = get_int(Json{{module, value}}, module, 1, max_rank, file_, "rank_pattern");
        });
        read_pattern("alpha_pattern", [&](const std::string& module, const Json& value) {
            alphas_[module] = number("alpha_pattern." + module, value);
        });
    }

    /// The file if it says that the model's matrices are stored column by column; else "".
    [[nodiscard]] std::string by_columns_file() const { return by_columns_ ? file_ : ""; }
    [[nodiscard]] std::int64_t rank_of(const std::string& module) const {
        return of_module("rank_pattern", ranks_, module, rank_);
    }
    [[nodiscard]] double scale_of(const std::string& module) const {
        const auto rank = static_cast<double>(rank_of(module));
        return of_module("alpha_pattern", alphas_, module, alpha_) / (by_root_ ? std::sqrt(rank) : rank);
    }

  private:
    [[noreturn]] void refuse(const std::string& field, const std::string& expected, const Json& got,
                             const char* fix = merge_with_peft) const {
        throw InputError(file_, field, expected, got.is_null() ? "nothing" : describe(got), fix);
    }

    void check_kind() const {
        const Json type = json_.value("peft_type", Json());
        if (type != "LORA") refuse("peft_type", "\"LORA\"", type);
        for (const auto& [field, value] : json_.items()) {
            static const std::set<std::string> read{
                "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", by_columns_field};
            if (read.contains(field) || is_informative(field)) continue;
            if (field == "bias") {
                if (value != "none" && !value.is_null()) refuse(field, "\"none\"", value);
            } else if (field == "init_lora_weights") {
                check_start(value);
            } else if (!is_neutral(value)) {
                refuse(printable(field), "false, null or nothing in it, as plain LoRA has", value);
            }
        }
    }

    /// Other ways of starting change the weights that the adapter is added to.
    void check_start(const Json& value) const {
        if (value.is_null() || value.is_boolean()) return;
        for (const char* start : {"gaussian", "eva", "orthogonal"}) {
            if (value == start) return;
        }
        refuse("init_lora_weights", "true, false, \"gaussian\", \"eva\" or \"orthogonal\"", value,
               "it starts from other weights than the model's: save it as plain LoRA (PEFT: "
               "path_initial_model_for_weight_conversion)");
    }

    [[nodiscard]] double number(const std::string& field, const Json& value) const {
        if (!value.is_number()) refuse(field, "a number", value, "");
        return value.get<double>();
    }

    template <typename Read>
    void read_pattern(const char* field, Read read) const {
        const Json pattern = json_.value(field, Json());
        if (pattern.is_null()) return;
        if (!pattern.is_object()) refuse(field, "an object", pattern, "");
        for (const auto& [module, value] : pattern.items()) {
            const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
            if (module.empty() || !std::all_of(module.begin(), module.end(), is_plain))
                throw InputError(file_, field, "names of modules, or their ends", describe(Json(module)),
                                 "write a line for each module");
            read(module, value);
        }
    }

    /// The value for the name itself, or for one that it ends with.
    template <typename Value>
    Value of_module(const char* field, const std::map<std::string, Value>& pattern, const std::string& module,
                    Value otherwise) const {
        const std::pair<const std::string, Value>* found = nullptr;
        for (const auto& entry : pattern) {
            if (module != entry.first && !module.ends_with("." + entry.first)) continue;
            if (found != nullptr && found->second != entry.second)
                throw InputError(file_, field, "one value for " + printable(module, 200),
                                 describe(Json(found->first)) + " and " + describe(Json(entry.first)),
                                 "give it its whole name alone");
            found = &entry;
        }
        return found == nullptr ? otherwise : found->second;
    }

    std::string file_;
    Json json_;
    std::int64_t rank_ = 0;
    double alpha_ = 0;
    bool by_columns_ = false;
    bool by_root_ = false;
    std::map<std::string, std::int64_t> ranks_;
    std::map<std::string, double> alphas_;
};

void require_shape(const std::string& name, const TensorView& tensor, std::int64_t rows, std::int64_t columns,
                   const char* why) {
    if (tensor.shape != std::vector{rows, columns})
        throw InputError(tensor.file, name, "shape " + shape_text({rows, columns}) + why, shape_text(tensor.shape));
}

/// The module that a tensor is for, and whether it is B; "" if it is no part of plain LoRA.
std::pair<std::string, bool> module_of(const std::string& tensor) {
    if (!tensor.starts_with(prefix)) return {};
    for (const bool is_b : {false, true}) {
        for (const char* adapter : {"", "default."}) {
            const std::string end = std::string(is_b ? ".lora_B." : ".lora_A.") + adapter + "weight";
            if (tensor.ends_with(end) && tensor.size() > prefix.size() + end.size())
                return {tensor.substr(prefix.size(), tensor.size() - prefix.size() - end.size()), is_b};
        }
    }
    return {};
}

/// A module's name without what its class, the version of transformers and a folder with images put before "layers.".
std::string_view short_name(std::string_view module) {
    for (bool shortened = true; shortened;) {
        shortened = false;
        for (const std::string_view outer : {"model.", "language_model.", "decoder.", "backbone.", "transformer."}) {
            if (!module.starts_with(outer)) continue;
            module.remove_prefix(outer.size());
            shortened = true;
        }
    }
    return module;
}

/// f32 elements of `count` rows of a matrix, from column `first` on.
std::vector<float> elements(const std::string& name, const TensorView& matrix, std::int64_t first_row,
                            std::int64_t num_rows, std::int64_t first_column, std::int64_t num_columns) {
    std::vector<float> values;
    values.reserve(static_cast<std::size_t>(num_rows * num_columns));
    for (std::int64_t row = first_row; row < first_row + num_rows; ++row) {
        for (std::int64_t column = first_column; column < first_column + num_columns; ++column)
            values.push_back(element_of(matrix, row * matrix.shape[1] + column));
    }
    if (!all_finite(values)) throw InputError(matrix.file, name, "finite numbers", "NaN or infinity");
    return values;
}

SafetensorsFolder open_tensors(const fs::path& folder) {
    std::error_code ignored;
    if (!fs::exists(folder / weights_name, ignored) && fs::exists(folder / "adapter_model.bin", ignored))
        throw InputError(folder.string(), "", weights_name, "only adapter_model.bin",
                         "save it as safetensors (PEFT: save_pretrained)");
    return SafetensorsFolder::open_file(folder / weights_name);
}

}  // namespace

Adapter Adapter::open(const fs::path& folder) {
    const Settings settings(folder / config_name);
    Adapter adapter(open_tensors(folder));
    adapter.by_columns_file_ = settings.by_columns_file();
    for (const auto& [name, view] : adapter.tensors_.tensors()) {
        const auto [module, is_b] = module_of(name);
        const std::string shown = printable(name, 200);
        if (module.empty())
            throw InputError(view.file, shown, "base_model.model.MODULE.lora_A.weight or .lora_B.weight",
                             "another tensor", merge_with_peft);
        if (!is_float(view.dtype)) throw InputError(view.file, shown, "BF16, F16 or F32", view.dtype_name);
        Pair& pair = adapter.pairs_[module];
        const TensorView*& place = is_b ? pair.b : pair.a;
        std::string& place_name = is_b ? pair.b_name : pair.a_name;
        if (place != nullptr) throw InputError(view.file, shown, "one tensor of its kind", "also " + place_name);
        place = &view;
        place_name = shown;
    }
    if (adapter.pairs_.empty()) throw InputError(adapter.tensors_.label(), "", "tensors of LoRA", "none");
    for (auto& [module, pair] : adapter.pairs_) {
        const TensorView& one = pair.a != nullptr ? *pair.a : *pair.b;
        if (pair.a == nullptr || pair.b == nullptr)
            throw InputError(one.file, pair.a != nullptr ? pair.a_name : pair.b_name,
                             pair.a != nullptr ? "a lora_B beside it" : "a lora_A beside it", "none");
        pair.rank = settings.rank_of(module);
        pair.scale = settings.scale_of(module);
        const char* why = ", as adapter_config.json says";
        require_shape(pair.a_name, *pair.a, pair.rank, pair.a->shape.size() == 2 ? pair.a->shape[1] : 1, why);
        require_shape(pair.b_name, *pair.b, pair.b->shape.empty() ? 1 : pair.b->shape[0], pair.rank, why);
    }
    return adapter;
}

void Adapter::fit(const ModelConfig& config) {
    if (!by_columns_file_.empty() && !config.files.by_columns)
        throw InputError(by_columns_file_, by_columns_field, "false, as the model's matrices are stored row by row",
                         "true", merge_with_peft);
    Weights weights;
    std::map<std::string, TensorPart, std::less<>> matrices;  // by short name
    for (const WeightPlan& plan : plan_weights(config, Split(config, 0, 1), {}, weights)) {
        const bool is_table = plan.matrix == &weights.embedding || plan.matrix == &weights.positions;
        if (plan.matrix == nullptr || is_table) continue;
        for (const TensorPart& part : plan.parts) {
            constexpr std::string_view end = ".weight";
            if (part.stack.count > 0 || !part.tensor.ends_with(end)) continue;
            const std::string_view module = std::string_view(part.tensor).substr(0, part.tensor.size() - end.size());
            matrices.try_emplace(std::string(short_name(module)), part);
        }
    }
    for (const auto& [module, pair] : pairs_) {
        const auto found = matrices.find(short_name(module));
        if (found == matrices.end())
            throw InputError(pair.a->file, pair.a_name,
                             "a linear layer of the language model, with a matrix of its own", printable(module, 200));
        const TensorPart& matrix = found->second;
        const char* why = ", as the model's matrix needs";
        require_shape(pair.a_name, *pair.a, pair.rank, matrix.columns, why);
        require_shape(pair.b_name, *pair.b, matrix.rows, pair.rank, why);
        if (!of_tensors_.try_emplace(matrix.tensor, &pair).second)
            throw InputError(pair.a->file, pair.a_name, "one pair for " + matrix.tensor,
                             "also " + of_tensors_.at(matrix.tensor)->a_name);
    }
}

bool Adapter::add(const TensorPart& part, float* rows) const {
    const Pair& pair = *of_tensors_.at(part.tensor);
    const std::int64_t columns = part.num_columns, num_rows = part.present_rows();
    const auto scale = static_cast<float>(pair.scale);
    const std::vector<float> a = elements(pair.a_name, *pair.a, 0, pair.rank, part.first_column, columns);
    return read_by_threads(num_rows, num_rows * columns * pair.rank, [&](std::int64_t first, std::int64_t end) {
        std::vector<float> sums(static_cast<std::size_t>(columns));
        bool finite = true;
        for (std::int64_t r = first; r < end; ++r) {
            const std::vector<float> b =
                elements(pair.b_name, *pair.b, part.first_row + r * part.row_step, 1, 0, pair.rank);
            std::fill(sums.begin(), sums.end(), 0.0F);
            for (std::int64_t k = 0; k < pair.rank; ++k) {
                const float factor = b[static_cast<std::size_t>(k)];
                const float* from = a.data() + k * columns;
                for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += factor * from[c];
            }
            float* to = rows + r * columns;
            for (std::size_t c = 0; c < sums.size(); ++c) to[c] += scale * sums[c];
            finite = all_finite({to, sums.size()}) && finite;
        }
        return finite;
    });
}

std::string Adapter::summary() const {
    std::int64_t least = max_rank, most = 0;
    for (const auto& [module, pair] : pairs_) {
        least = std::min(least, pair.rank);
        most = std::max(most, pair.rank);
    }
    const std::string ranks = least == most ? "rank " + std::to_string(most)
                                            : "ranks " + std::to_string(least) + " to " + std::to_string(most);
    return ranks + ", " + std::to_string(pairs_.size()) + (pairs_.size() == 1 ? " matrix" : " matrices");
}

std::uint64_t Adapter::fingerprint() const {
    ByteWriter writer;
    writer.put(tensors_.fingerprint());
    for (const auto& [module, pair] : pairs_) {
        writer.put(pair.scale);
        // All of their bytes, not samples as of a model's: an adapter may have been edited.
        for (const TensorView* tensor : {pair.a, pair.b})
            writer.put(XXH3_64bits(tensor->data, static_cast<std::size_t>(tensor->num_bytes)));
    }
    return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

}  // namespace longhaul::engine
