#include "engine/draft/draft_layer.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/tensor_names.hpp"

namespace longhaul::engine {
namespace {

constexpr const char* fusion_name = "fc";

TensorNames layer_names(const ModelConfig& config) {
    TensorNames names = tensor_names(config);
    names.layers = "layers.";
    names.attention_norm.clear();
    return names;
}

kernels::DType type_of(Precision precision) {
    return precision == Precision::fp32 ? kernels::DType::f32 : kernels::DType::bf16;
}

/// How to load a rank's part: the fusion, then the layer.
std::vector<WeightPlan> plan_draft_layer(const DraftLayerConfig& config, const Split& split, kernels::DType dtype,
                                         DraftLayer::Fusion& fusion, std::vector<LayerWeights>& weights) {
    std::vector<WeightPlan> plans;
    const std::int64_t hidden = config.layer.hidden_size;
    const std::string name = fusion_name;
    for (const std::int64_t half : {0, 1}) {
        WeightPlan plan;
        plan.name = name + (half == 0 ? ".embedding" : ".state");
        plan.parts = {{.tensor = name + ".weight",
                       .rows = hidden,
                       .columns = 2 * hidden,
                       .num_rows = hidden,
                       .first_column = half * hidden,
                       .num_columns = hidden}};
        plan.matrix = half == 0 ? &fusion.embedding : &fusion.state;
        plan.dtype = dtype;
        plan.num_slices = kernels::num_slices;
        plan.slice_length = kernels::padded_inputs(hidden) / kernels::num_slices;
        plans.push_back(std::move(plan));
    }
    if (config.fusion_bias) {
        WeightPlan bias;
        bias.name = name + ".bias";
        bias.parts = {{.tensor = name + ".bias", .rows = hidden, .columns = 1, .num_rows = hidden, .num_columns = 1}};
        bias.vector = &fusion.bias;
        plans.push_back(std::move(bias));
    }
    weights.resize(1);
    std::vector<WeightPlan> layer =
        plan_layers(config.layer, split, {.layers = dtype, .tables = dtype}, layer_names(config.layer), 0, weights);
    std::move(layer.begin(), layer.end(), std::back_inserter(plans));
    return plans;
}

}  // namespace

DraftLayerConfig DraftLayerConfig::load(const std::filesystem::path& folder, const ModelConfig& target) {
    DraftLayerConfig config;
    config.file = (folder / "config.json").string();
    const Json json = read_json(config.file);
    if (find_member(json, "draft_vocab_size", config.file) != nullptr)
        throw InputError(config.file, "draft_vocab_size", "a layer of EAGLE 1 or 2, which has none",
                         describe(json["draft_vocab_size"]), "layers of EAGLE-3 are not in this version");
    config.layer = ModelConfig::load(folder);
    if (config.layer.learned_positions || target.learned_positions)
        throw InputError(config.file, "model_type", "a layer and a target of Llama's family",
                         target.learned_positions ? "a target of OPT" : "a layer of OPT",
                         "draft = eagle drafts for Llama and Qwen2");
    config.fusion_bias = get_bool_or(json, "bias", true, config.file);
    const auto refuse = [&](const char* field, std::int64_t expected, std::int64_t got, const char* fix) {
        if (expected != got) throw InputError(config.file, field, std::to_string(expected), std::to_string(got), fix);
    };
    refuse("num_hidden_layers", 1, config.layer.num_layers, "draft = eagle takes a draft layer, not a language model");
    constexpr const char* trained_for = "a draft layer belongs to the model it was trained on";
    refuse("hidden_size", target.hidden_size, config.layer.hidden_size, trained_for);
    refuse("vocab_size", target.vocab_size, config.layer.vocab_size, trained_for);
    LayerConfig& kind = config.layer.layers.front();
    kind.qkv_bias = get_bool_or(json, "qkv_bias", kind.qkv_bias, config.file);
    // Its positions are limited by memory alone, whatever its max_position_embeddings.
    config.layer.max_positions = target.max_positions;
    return config;
}

std::int64_t DraftLayerConfig::num_parameters(const ModelConfig& target) const {
    const std::int64_t hidden = layer.hidden_size;
    const std::int64_t attention = (2 * layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim * hidden;
    const std::int64_t mlp = (layer.layers.front().num_up() + 1) * layer.intermediate_size * hidden;
    return 2 * hidden * hidden + attention + mlp + target.vocab_size * target.embedding_width();
}

std::vector<std::string> draft_layer_faults(const std::filesystem::path& folder, const ModelConfig& target) {
    const DraftLayerConfig config = DraftLayerConfig::load(folder, target);
    DraftLayer::Fusion fusion;
    std::vector<LayerWeights> weights;
    return tensor_faults(plan_draft_layer(config, Split(config.layer, 0, 1), kernels::DType::bf16, fusion, weights),
                         {"layers.", "layer", "num_hidden_layers", 1}, SafetensorsFolder::open(folder));
}

std::uint64_t draft_layer_fingerprint(const std::filesystem::path& folder, const ModelConfig& target) {
    const DraftLayerConfig config = DraftLayerConfig::load(folder, target);
    ByteWriter writer;
    writer.put(model_fingerprint(config.layer, SafetensorsFolder::open(folder).fingerprint()));
    writer.put(static_cast<std::uint64_t>(config.fusion_bias ? 1 : 0));
    return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

std::int64_t draft_layer_bytes(const DraftLayerConfig& config, const Split& split, Precision precision,
                               const kernels::Device& device) {
    DraftLayer::Fusion fusion;
    std::vector<LayerWeights> weights;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_draft_layer(config, split, type_of(precision), fusion, weights))
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    return bytes;
}

DraftLayer::DraftLayer(const std::filesystem::path& folder, Model& target)
    : config_(DraftLayerConfig::load(folder, target.config())),
      target_(target),
      split_(config_.layer, target.group().rank(), target.group().size()),
      sum_(target.device()) {
    const std::vector<std::string> faults = draft_layer_faults(folder, target.config());
    if (!faults.empty()) throw Error(faults.front());
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    FolderSource source(tensors);
    const std::vector<WeightPlan> plans =
        plan_draft_layer(config_, split_, type_of(target.precision()), fusion_, weights_);
    load_weights(plans, target.device(), source);
    for (const std::string& name : source.bad_tensors())
        throw InputError(tensors.tensors().at(name).file, name, "finite weights", "NaN or infinity",
                         "download or train the layer again");
    layers_ = std::make_unique<DecoderLayers>(target.context(), config_.layer, split_, weights_,
                                              kv_layout_of(config_.layer, split_, target.kv_layout().dtype));
    fingerprint_ = draft_layer_fingerprint(folder, target.config());
}

DraftLayer::~DraftLayer() = default;

HiddenStates DraftLayer::forward(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                 const HiddenStates& states) {
    kernels::Device& device = target_.device();
    ComputeContext& context = target_.context();
    const std::int64_t num_rows = std::ssize(rows), hidden = config_.layer.hidden_size;
    const HiddenStates embedded = target_.embed(rows);
    HiddenStates x = target_.hidden_states(num_rows);
    float* sum = sum_.floats(num_rows * hidden);
    const auto product = [&](const kernels::Matrix& matrix, const HiddenStates& from, float* to) {
        device.matmul(matrix, context.rounded(from.data(), hidden, num_rows), matrix.num_inputs, num_rows, to);
    };
    product(fusion_.embedding, embedded, x.data());
    product(fusion_.state, states, sum);
    device.add(x.data(), sum, num_rows * hidden);
    if (fusion_.bias) device.add_bias(x.data(), fusion_.bias.as<float>(), num_rows, hidden);
    layers_->begin(rows, sequences);
    layers_->run(0, 1, x.data());
    context.finish();  // the pages of the sequences may change from here on
    return x;
}

}  // namespace longhaul::engine
