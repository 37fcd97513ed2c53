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

TensorNames layer_names(const ModelConfig& config) {
    TensorNames names = tensor_names(config);
    names.layers = "layers.";
    names.attention_norm.clear();
    return names;
}

kernels::DType type_of(Precision precision) {
    return precision == Precision::fp32 ? kernels::DType::f32 : kernels::DType::bf16;
}

/// How to load a rank's part: the fusion, the layer, the token info.
std::vector<WeightPlan> plan_draft_layer(const DraftLayerConfig& config, const Split& split, kernels::DType dtype,
                                         DraftLayer::Parts& parts) {
    std::vector<WeightPlan> plans;
    const std::int64_t hidden = config.layer.hidden_size;
    for (kernels::Matrix* half : {&parts.fusion.embedding, &parts.fusion.state}) {
        WeightPlan& plan = plans.emplace_back(whole_matrix("fc", hidden, hidden, dtype, *half));
        plan.name += half == &parts.fusion.embedding ? ".embedding" : ".state";
        plan.parts.front().columns = 2 * hidden;
        plan.parts.front().first_column = half == &parts.fusion.embedding ? 0 : hidden;
    }
    if (config.fusion_bias) {
        plans.push_back(whole_vector("fc.bias", hidden, parts.fusion.bias));
        plans.back().parts.front().tensor = "fc.bias";
    }
    parts.layer.resize(1);
    std::vector<WeightPlan> layer =
        plan_layers(config.layer, split, {.layers = dtype, .tables = dtype}, layer_names(config.layer), 0, parts.layer);
    std::move(layer.begin(), layer.end(), std::back_inserter(plans));
    if (const std::int64_t rank = config.token_info_rank; rank > 0) {
        TokenInfoWeights& info = parts.token_info;
        const std::int64_t tokens = std::ssize(config.info_tokens);
        plans.push_back(whole_matrix("token_info.down", rank, hidden, dtype, info.down));
        plans.push_back(whole_matrix("token_info.up", tokens, rank, dtype, info.up));
        plans.push_back(whole_vector("token_info.norm", tokens, info.norm.gain));
        info.norm.eps = static_cast<float>(config.layer.norm_eps);
    }
    return plans;
}

std::vector<std::string> faults_of(const DraftLayerConfig& config, const SafetensorsFolder& tensors) {
    DraftLayer::Parts parts;
    std::vector<std::string> faults =
        tensor_faults(plan_draft_layer(config, Split(config.layer, 0, 1), kernels::DType::bf16, parts),
                      {"layers.", "layer", "num_hidden_layers", 1}, tensors);
    if (config.token_info_rank == 0 && tensors.contains("token_info.up.weight"))
        faults.push_back(config.file +
                         ": token_info_rank: expected the rank of token_info.up.weight, got none; without it the layer "
                         "would draft without its token info");
    return faults;
}

std::uint64_t fingerprint_of(const DraftLayerConfig& config, const SafetensorsFolder& tensors) {
    ByteWriter writer;
    writer.put(model_fingerprint(config.layer, tensors.fingerprint()));
    writer.put(static_cast<std::uint64_t>(config.fusion_bias ? 1 : 0));
    return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

}  // namespace

std::vector<std::string> draft_layer_faults(const std::filesystem::path& folder, const ModelConfig& target,
                                            const DraftMethod& method) {
    return faults_of(DraftLayerConfig::load(folder, target, method), SafetensorsFolder::open(folder));
}

std::uint64_t draft_layer_fingerprint(const std::filesystem::path& folder, const ModelConfig& target,
                                      const DraftMethod& method) {
    return fingerprint_of(DraftLayerConfig::load(folder, target, method), SafetensorsFolder::open(folder));
}

std::int64_t draft_layer_bytes(const DraftLayerConfig& config, const Split& split, Precision precision,
                               const kernels::Device& device) {
    DraftLayer::Parts parts;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_draft_layer(config, split, type_of(precision), parts))
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    return bytes;
}

DraftLayer::DraftLayer(const std::filesystem::path& folder, Model& target, const DraftMethod& method)
    : config_(DraftLayerConfig::load(folder, target.config(), method)),
      target_(target),
      split_(config_.layer, target.group().rank(), target.group().size()),
      sum_(target.device()) {
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    const std::vector<std::string> faults = faults_of(config_, tensors);
    if (!faults.empty()) throw Error(faults.front());
    FolderSource source(tensors);
    load_weights(plan_draft_layer(config_, split_, type_of(target.precision()), parts_), target.device(), source);
    for (const std::string& name : source.bad_tensors())
        throw InputError(tensors.tensors().at(name).file, name, "finite weights", "NaN or infinity",
                         "download or train the layer again");
    layers_ = std::make_unique<DecoderLayers>(target.context(), config_.layer, split_, parts_.layer,
                                              kv_layout_of(config_.layer, split_, target.kv_layout().dtype));
    if (config_.token_info_rank > 0) token_info_ = std::make_unique<TokenInfo>(target, config_, parts_.token_info);
    fingerprint_ = fingerprint_of(config_, tensors);
}

DraftLayer::~DraftLayer() = default;

HiddenStates DraftLayer::forward(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                 const HiddenStates& states) {
    kernels::Device& device = target_.device();
    const Fusion& fusion = parts_.fusion;
    const std::int64_t num_rows = std::ssize(rows), hidden = config_.layer.hidden_size;
    const HiddenStates embedded = target_.embed(rows);
    HiddenStates x = target_.hidden_states(num_rows);
    float* sum = sum_.floats(num_rows * hidden);
    const auto product = [&](const kernels::Matrix& matrix, const HiddenStates& from, float* to) {
        device.matmul(matrix, target_.context().rounded(from.data(), hidden, num_rows), matrix.num_inputs, num_rows,
                      to);
    };
    product(fusion.embedding, embedded, x.data());
    product(fusion.state, states, sum);
    device.add(x.data(), sum, num_rows * hidden);
    if (fusion.bias) device.add_bias(x.data(), fusion.bias.as<float>(), num_rows, hidden);
    return forward_states(rows, sequences, std::move(x));
}

HiddenStates DraftLayer::forward_states(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                        HiddenStates states) {
    layers_->begin(rows, sequences);
    layers_->run(0, 1, states.data());
    target_.context().finish();  // the pages of the sequences may change from here on
    return states;
}

}  // namespace longhaul::engine
