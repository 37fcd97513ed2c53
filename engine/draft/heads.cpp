#include "engine/draft/heads.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/tensor_faults.hpp"
#include "engine/model/tensor_source.hpp"
#include "engine/model/weight_loading.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

constexpr std::string_view prefix = "model.medusa_layers.";
constexpr std::int64_t max_heads = 64;
constexpr std::int64_t max_config_bytes = std::int64_t{1} << 24;

kernels::DType type_of(Precision precision) {
    return precision == Precision::fp32 ? kernels::DType::f32 : kernels::DType::bf16;
}

/// How to load the heads: a WeightPlan per matrix and gain, in loading order.
std::vector<WeightPlan> plan_heads(const HeadsConfig& config, kernels::DType dtype,
                                   std::vector<DraftHeads::Head>& heads) {
    std::vector<WeightPlan> plans;
    const std::int64_t hidden = config.hidden_size;
    heads.resize(config.num_heads);
    for (std::size_t i = 0; i < heads.size(); ++i) {
        const std::string layer = std::string(prefix) + std::to_string(i) + ".";
        plans.push_back(whole_matrix(layer + "linear", hidden, hidden, dtype, heads[i].linear));
        for (const auto& [name, norm] :
             {std::pair{"input_layernorm", &heads[i].input_norm}, std::pair{"post_layernorm", &heads[i].output_norm}}) {
            plans.push_back(whole_vector(layer + name, hidden, norm->gain));
            norm->eps = static_cast<float>(config.norm_eps);
        }
    }
    return plans;
}

/// The method of heads that were trained each on the one before (`chained`), or independently.
const char* method_of(bool chained) {
    return chained ? "tokenswift" : "medusa";
}

}  // namespace

HeadsConfig HeadsConfig::load(const std::filesystem::path& folder, const ModelConfig& target) {
    const std::string file = (folder / "config.json").string();
    const Json json = read_json(file, max_config_bytes);
    HeadsConfig config;
    config.file = file;
    if (find_member(json, "medusa_heads", file) == nullptr)
        throw InputError(file, "medusa_heads", "the number of heads", "nothing",
                         "give a folder of heads as draft-model, or a model folder that contains heads");
    config.num_heads = get_int(json, "medusa_heads", 1, max_heads, file);
    config.hidden_size = get_int_or(json, "hidden_size", target.hidden_size, 1, std::int64_t{1} << 17, file);
    config.norm_eps = get_double_or(json, "rms_norm_eps", target.norm_eps, file);
    if (!(config.norm_eps > 0 && config.norm_eps <= 1))
        throw InputError(file, "rms_norm_eps", "a number above 0, at most 1", describe(Json(config.norm_eps)));
    if (find_member(json, "chained", file) != nullptr) config.chained = get_bool_or(json, "chained", false, file);
    if (config.hidden_size != target.hidden_size)
        throw InputError(file, "hidden_size", std::to_string(target.hidden_size) + ", as the target has",
                         std::to_string(config.hidden_size), "heads belong to the model they were trained on");
    return config;
}

bool holds_chained_heads(const std::filesystem::path& model_folder) {
    try {
        const Json json = read_json(model_folder / "config.json", max_config_bytes);
        if (!json.is_object() || !json.contains("medusa_heads") || json.value("chained", Json(true)) != Json(true))
            return false;
        const std::string first = std::string(prefix) + "0.linear.weight";
        return SafetensorsFolder::open(model_folder).tensors().contains(first);
    } catch (const Error&) {
        return false;
    }
}

std::string methods_of_heads(const std::filesystem::path& folder) {
    try {
        const Json json = read_json(folder / "config.json", max_config_bytes);
        if (!json.is_object() || !json.contains("medusa_heads") || json.contains("num_hidden_layers")) return "";
        const auto chained = json.find("chained");
        if (chained == json.end() || !chained->is_boolean()) return "tokenswift or medusa";
        return method_of(chained->get<bool>());
    } catch (const Error&) {
        return "";
    }
}

TreeShape tree_of_heads(const DraftOptions& options, const HeadsConfig& heads) {
    const DraftMethod& method = *options.method;
    if (heads.chained && *heads.chained != method.chained_heads)
        throw InputError(heads.file, "", "heads for draft = " + method.name,
                         std::string("heads that were trained for draft = ") + method_of(*heads.chained),
                         std::string("set draft = ") + method_of(*heads.chained));
    const std::int64_t more_passes = options.passes - 1;
    const std::int64_t max_levels = more_passes + heads.num_heads + (method.chained_heads ? 1 : 0);
    TreeShape shape = options.shape();
    const TreeSpec& spec = options.tree;
    if (!spec.is_given() || spec.is_auto() || spec.text() == method.default_tree) {
        shape.depth = std::min(shape.depth, max_levels);
        shape.branching.resize(shape.depth);
        if (!spec.is_auto()) shape.budget = shape.num_nodes();
    }
    if (shape.depth > max_levels)
        throw UsageError("draft-tree: expected at most " + std::to_string(max_levels - more_passes) +
                         (method.chained_heads ? " levels, the model's own and one" : " levels, one") +
                         " for each head of " + heads.file + ", got " + std::to_string(shape.depth - more_passes));
    return shape;
}

std::int64_t HeadsConfig::num_parameters(const ModelConfig& target) const {
    return num_heads * (hidden_size * hidden_size + 2 * hidden_size) + target.vocab_size * target.embedding_width();
}

std::vector<std::string> head_faults(const std::filesystem::path& folder, const ModelConfig& target) {
    const HeadsConfig config = HeadsConfig::load(folder, target);
    std::vector<DraftHeads::Head> heads;
    std::vector<std::string> faults =
        tensor_faults(plan_heads(config, kernels::DType::bf16, heads),
                      {std::string(prefix), "head", "medusa_heads", config.num_heads}, SafetensorsFolder::open(folder));
    for (std::string& line : faults) line += "; config.json and the heads must come from the same checkpoint";
    return faults;
}

std::uint64_t heads_fingerprint(const std::filesystem::path& folder, const ModelConfig& target) {
    const HeadsConfig config = HeadsConfig::load(folder, target);
    ByteWriter writer;
    writer.put(std::string(prefix));
    writer.put(config.num_heads);
    writer.put(config.hidden_size);
    writer.put(config.norm_eps);
    writer.put(SafetensorsFolder::open(folder).fingerprint());
    return hash_of(writer.bytes().data(), writer.bytes().size());
}

std::int64_t heads_bytes(const HeadsConfig& config, Precision precision, const kernels::Device& device) {
    std::vector<DraftHeads::Head> heads;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_heads(config, type_of(precision), heads))
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    return bytes;
}

DraftHeads::DraftHeads(const std::filesystem::path& folder, const Model& target)
    : config_(HeadsConfig::load(folder, target.config())) {
    const std::vector<std::string> faults = head_faults(folder, target.config());
    if (!faults.empty()) throw Error(faults.front());
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    FolderSource source(tensors);
    const std::vector<WeightPlan> plans = plan_heads(config_, type_of(target.precision()), heads_);
    load_weights(plans, target.device(), source);
    std::vector<std::string> bad = source.bad_tensors();
    for (const WeightPlan& plan : plans) {
        if (plan.vector == nullptr) continue;
        const std::vector<float> gain = source.vector(plan.parts.front());
        if (!std::all_of(gain.begin(), gain.end(), [](float value) { return std::isfinite(value); }))
            bad.push_back(plan.parts.front().tensor);
    }
    for (const std::string& name : bad)
        throw InputError(tensors.tensors().at(name).file, name, "finite weights", "NaN or infinity",
                         "download or train the heads again");
    fingerprint_ = heads_fingerprint(folder, target.config());
}

namespace {

/// h = from + W norm_in(from), and out = norm_out(h): f32 [rows, hidden]. `h` may be another buffer than `from`'s.
void run_head(Model& target, const DraftHeads::Head& head, const HiddenStates& from, HiddenStates& h, float* out) {
    kernels::Device& device = target.device();
    const std::int64_t width = from.width(), rows = from.num_rows();
    const std::byte* input = target.context().normalised(head.input_norm, from.data(), width, rows);
    device.matmul(head.linear, input, kernels::padded_inputs(width), rows, h.data());
    device.add(h.data(), from.data(), rows * width);
    apply_norm(device, head.output_norm, h.data(), rows, width, kernels::DType::f32, reinterpret_cast<std::byte*>(out),
               width);
}

}  // namespace

HiddenStates independent_heads(Model& target, const DraftHeads& heads, const HiddenStates& h0, std::int64_t count) {
    const std::int64_t size = h0.num_rows() * h0.width();
    HiddenStates h = target.hidden_states(h0.num_rows()), out = target.hidden_states(count * h0.num_rows());
    for (std::int64_t i = 0; i < count; ++i) run_head(target, heads.heads().at(i), h0, h, out.data() + i * size);
    return out;
}

HiddenStates chained_heads(Model& target, const DraftHeads& heads, const HiddenStates& h0, const HiddenStates& normed,
                           std::int64_t count) {
    const std::int64_t rows = h0.num_rows(), size = rows * h0.width();
    HiddenStates out = target.hidden_states((1 + count) * rows);
    std::vector<std::int32_t> all(static_cast<std::size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    target.device().gather(normed.data(), all, h0.width(), out.data());
    HiddenStates states[2] = {target.hidden_states(rows), target.hidden_states(rows)};
    const HiddenStates* before = &h0;
    for (std::int64_t i = 0; i < count; ++i) {
        HiddenStates& h = states[i % 2];
        run_head(target, heads.heads().at(i), *before, h, out.data() + (1 + i) * size);
        before = &h;
    }
    return out;
}

}  // namespace longhaul::engine
