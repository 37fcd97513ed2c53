#include "engine/draft/draft_layer.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/model_fingerprint.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/tensor_faults.hpp"
#include "engine/model/tensor_names.hpp"
#include "engine/model/weight_loading.hpp"

namespace longhaul::engine {
namespace {

kernels::DType type_of(Precision precision) {
    return precision == Precision::fp32 ? kernels::DType::f32 : kernels::DType::bf16;
}

void plan_norm(const DraftLayerConfig& config, const std::string& name, std::int64_t width, Norm& norm,
               std::vector<WeightPlan>& plans, bool adds_one = false) {
    WeightPlan& plan = plans.emplace_back(whole_vector(name, width, norm.gain));
    plan.offset = adds_one ? 1.0F : 0.0F;
    norm.eps = static_cast<float>(config.layer.norm_eps);
}

/// The fusion, a matrix for each part of its input. Every rank holds it whole.
void plan_fusion(const DraftLayerConfig& config, kernels::DType dtype, DraftLayer::Parts& parts,
                 std::vector<WeightPlan>& plans) {
    const std::int64_t hidden = config.layer.hidden_size;
    const std::int64_t num_parts = config.has_own_head() ? std::ssize(config.eagle3.tap_layers) : 2;
    const std::string name = config.is_targets_own() ? config.mtp.fusion : "fc";
    if (config.eagle3.norm_before_fusion) {
        parts.fusion.resize(1);
        plans.push_back(whole_matrix(name, hidden, num_parts * hidden, dtype, parts.fusion.front()));
        return;
    }
    parts.fusion.resize(static_cast<std::size_t>(num_parts));
    for (std::int64_t i = 0; i < num_parts; ++i) {
        WeightPlan& plan = plans.emplace_back(whole_matrix(name, hidden, hidden, dtype, parts.fusion[i]));
        plan.name += "." + std::to_string(i);
        plan.parts.front().columns = num_parts * hidden;
        plan.parts.front().first_column = i * hidden;
    }
    if (!config.fusion_bias) return;
    plans.push_back(whole_vector("fc.bias", hidden, parts.fusion_bias));
    plans.back().parts.front().tensor = "fc.bias";
}

/// The decoder layer. EAGLE-3's has no number, and twice the inputs.
void plan_layer(const DraftLayerConfig& config, const Split& split, kernels::DType dtype, DraftLayer::Parts& parts,
                std::vector<WeightPlan>& plans) {
    TensorNames names = tensor_names(config.layer);
    names.layers = "layers.";
    names.attention_norm.clear();
    parts.layer.resize(1);
    const std::int64_t input_width = config.has_own_head() ? 2 * config.layer.hidden_size : 0;
    for (WeightPlan& plan :
         plan_layers(config.layer, split, {.layers = dtype, .tables = dtype}, names, 0, parts.layer, input_width)) {
        const std::string numbered = names.layers + "0.";
        for (TensorPart& part : plan.parts) {
            if (config.has_own_head()) part.tensor.replace(0, numbered.size(), config.eagle3.prefix);
        }
        plans.push_back(std::move(plan));
    }
}

/// The target's own layer, quantized as the target's are, and its norms.
void plan_own_layer(const DraftLayerConfig& config, const Split& split, Precision precision, DraftLayer::Parts& parts,
                    std::vector<WeightPlan>& plans) {
    TensorNames names = tensor_names(config.layer);
    names.layers = config.mtp.layers;
    parts.layer.resize(1);
    for (WeightPlan& plan :
         plan_layers(config.layer, split, weight_types(precision), names, config.mtp.number, parts.layer))
        plans.push_back(std::move(plan));
    for (const auto& [name, norm] : {std::pair{config.mtp.embedding_norm, &parts.embedding_norm},
                                     {config.mtp.state_norm, &parts.state_norm},
                                     {config.mtp.output_norm, &parts.output_norm}})
        plan_norm(config, name, config.layer.hidden_size, *norm, plans, config.layer.files.norm_adds_one);
}

/// EAGLE-3: norms of the layer's input, and the output head, sharded over the vocabulary.
void plan_head(const DraftLayerConfig& config, const Split& split, kernels::DType dtype, DraftLayer::Parts& parts,
               std::vector<WeightPlan>& plans) {
    const std::int64_t hidden = config.layer.hidden_size, num_taps = std::ssize(config.eagle3.tap_layers);
    const std::string& layer = config.eagle3.prefix;
    const auto add_norm = [&](const std::string& name, std::int64_t width, Norm& norm) {
        plan_norm(config, name, width, norm, plans);
    };
    add_norm(layer + "input_layernorm", hidden, parts.embedding_norm);
    add_norm(layer + "hidden_norm", hidden, parts.state_norm);
    add_norm("norm", hidden, parts.head.final_norm);
    if (config.eagle3.norm_before_fusion) {
        parts.tap_norms.resize(1);
        add_norm("input_norm", num_taps * hidden, parts.tap_norms.front());
    }
    if (config.eagle3.norms_taps) {
        parts.tap_norms.resize(static_cast<std::size_t>(num_taps));
        for (std::int64_t i = 0; i < num_taps; ++i)
            add_norm("fc_norm." + std::to_string(i), hidden, parts.tap_norms[static_cast<std::size_t>(i)]);
    }
    WeightPlan& head =
        plans.emplace_back(whole_matrix("lm_head", config.layer.vocab_size, hidden, dtype, parts.head.head));
    head.parts.front().first_row = split.rank * split.vocab;
    head.parts.front().num_rows = split.vocab;
}

/// How to load a rank's part.
std::vector<WeightPlan> plan_draft_layer(const DraftLayerConfig& config, const Split& split, Precision precision,
                                         DraftLayer::Parts& parts) {
    const kernels::DType dtype = type_of(precision);
    std::vector<WeightPlan> plans;
    plan_fusion(config, dtype, parts, plans);
    if (config.is_targets_own()) {
        plan_own_layer(config, split, precision, parts, plans);
        return plans;
    }
    plan_layer(config, split, dtype, parts, plans);
    if (config.has_own_head()) plan_head(config, split, dtype, parts, plans);
    if (const std::int64_t rank = config.token_info_rank; rank > 0) {
        TokenInfoWeights& info = parts.token_info;
        const std::int64_t tokens = std::ssize(config.info_tokens);
        plans.push_back(whole_matrix("token_info.down", rank, config.layer.hidden_size, dtype, info.down));
        plans.push_back(whole_matrix("token_info.up", tokens, rank, dtype, info.up));
        plan_norm(config, "token_info.norm", tokens, info.norm, plans);
    }
    return plans;
}

std::vector<std::string> faults_of(const DraftLayerConfig& config, const SafetensorsFolder& tensors) {
    DraftLayer::Parts parts;
    const NumberedTensors layers =
        config.is_targets_own() ? NumberedTensors{} : NumberedTensors{"layers.", "layer", "num_hidden_layers", 1};
    std::vector<std::string> faults =
        tensor_faults(plan_draft_layer(config, Split(config.layer, 0, 1), Precision::bf16, parts), layers, tensors);
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
    const Eagle3Config& eagle3 = config.eagle3;
    for (const std::int64_t layer : eagle3.tap_layers) writer.put(layer);
    const std::array norms{eagle3.norm_before_residual, eagle3.norm_before_fusion, eagle3.norms_taps,
                           eagle3.norms_output};
    if (std::find(norms.begin(), norms.end(), true) != norms.end())  // earlier versions had none of them
        for (const bool norm : norms) writer.put(norm);
    return hash_of(writer.bytes().data(), writer.bytes().size());
}

}  // namespace

std::vector<std::string> draft_layer_faults(const std::filesystem::path& folder, const ModelConfig& target,
                                            const DraftMethod& method) {
    return faults_of(DraftLayerConfig::load(folder, target, method), SafetensorsFolder::open(folder));
}

bool holds_mtp_layer(const std::filesystem::path& model_folder) {
    try {
        const ModelConfig target = ModelConfig::load(model_folder);
        return !mtp_names(target).fusion.empty() &&
               draft_layer_faults(model_folder, target, find_draft_method("mtp")).empty();
    } catch (const std::exception&) {
        return false;
    }
}

std::uint64_t draft_layer_fingerprint(const std::filesystem::path& folder, const ModelConfig& target,
                                      const DraftMethod& method) {
    return fingerprint_of(DraftLayerConfig::load(folder, target, method), SafetensorsFolder::open(folder));
}

std::int64_t draft_layer_bytes(const DraftLayerConfig& config, const Split& split, Precision precision,
                               const kernels::Device& device) {
    DraftLayer::Parts parts;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_draft_layer(config, split, precision, parts))
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    return bytes;
}

DraftLayer::OwnGroup::OwnGroup(Model& target)
    : group(make_local_group()),
      sums(make_device_group(target.device(), *group, notice)),
      context(target.device(), *sums, target.context().act) {}

DraftLayer::DraftLayer(const DraftLayerConfig& config, Model& target, Parallel parallel)
    : config_(config),
      target_(target),
      own_(parallel == Parallel::replicated && target.group().size() > 1 ? std::make_unique<OwnGroup>(target)
                                                                         : nullptr),
      split_(config_.layer, group().rank(), group().size()),
      sum_(target.device()) {}

DraftLayer::DraftLayer(const std::filesystem::path& folder, Model& target, const DraftMethod& method, Parallel parallel)
    : DraftLayer(DraftLayerConfig::load(folder, target.config(), method), target, parallel) {
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    const std::vector<std::string> faults = faults_of(config_, tensors);
    if (!faults.empty()) throw Error(faults.front());
    FolderSource source(tensors);
    load(source);
    for (const std::string& name : source.bad_tensors())
        throw InputError(
            tensors.tensors().at(name).file, name, "finite weights", "NaN or infinity",
            config_.is_targets_own() ? "draft = self drafts without this layer" : "download or train the layer again");
    fingerprint_ = fingerprint_of(config_, tensors);
}

std::unique_ptr<DraftLayer> DraftLayer::random(const DraftLayerConfig& config, Model& target, std::uint64_t seed) {
    std::unique_ptr<DraftLayer> layer(new DraftLayer(config, target, Parallel::sharded));
    RandomSource source(seed);
    layer->load(source);
    return layer;
}

void DraftLayer::load(TensorSource& source) {
    load_weights(plan_draft_layer(config_, split_, target_.precision(), parts_), target_.device(), source);
    layers_ = std::make_unique<DecoderLayers>(context(), config_.layer, split_, parts_.layer,
                                              kv_layouts_of(config_.layer, split_, target_.kv_layout().dtype));
    if (config_.has_own_head()) load_head();
    if (config_.token_info_rank > 0) token_info_ = std::make_unique<TokenInfo>(target_, config_, parts_.token_info);
}

DraftLayer::~DraftLayer() = default;

bool DraftLayer::writes_kv() const {
    return own_ ? target_.group().is_first() : split_.writes_kv;
}

void DraftLayer::load_head() {
    head_ = std::make_unique<OutputHead>(context(), group(), config_.layer, split_, parts_.head);
    head_tokens_ = TokenColumns(target_.device(), config_.eagle3.tokens);
    std::vector<float> absent(static_cast<std::size_t>(target_.config().vocab_size), absent_logit);
    for (const std::int32_t token : config_.eagle3.tokens) absent[token] = 0;
    absent_ = kernels::Buffer(target_.device(), absent.size() * sizeof(float));
    target_.device().upload(absent_.data(), absent.data(), absent_.num_bytes());
}

std::vector<Tap> DraftLayer::taps() const {
    if (!config_.has_own_head()) return {{.at = Tap::At::normed_hidden, .rows = {}}};
    std::vector<Tap> taps;
    for (const std::int64_t layer : config_.eagle3.tap_layers)
        taps.push_back({.at = Tap::At::layer_input, .layer = layer, .rows = {}});
    return taps;
}

HiddenStates DraftLayer::states_of(std::span<const HiddenStates> taps, std::span<const std::int32_t> rows) {
    std::vector<HiddenStates> picked;
    for (const HiddenStates& tap : taps) {
        HiddenStates& some = picked.emplace_back(target_.hidden_states(std::ssize(rows)));
        if (!rows.empty()) target_.device().gather(tap.data(), rows, tap.width(), some.data());
    }
    if (!config_.has_own_head()) return std::move(picked.front());
    std::vector<const HiddenStates*> inputs;
    for (const HiddenStates& some : picked) inputs.push_back(&some);
    if (config_.eagle3.norm_before_fusion) {
        const HiddenStates all = normed(parts_.tap_norms.front(), side_by_side(inputs));
        const HiddenStates* const joined[] = {&all};
        return fused(joined);
    }
    if (config_.eagle3.norms_taps) {
        for (std::size_t i = 0; i < picked.size(); ++i) picked[i] = normed(parts_.tap_norms[i], picked[i]);
    }
    return fused(inputs);
}

/// The fusion of row i of all inputs: the sum of a product each, in their order, and the bias. f32 [rows, hidden].
HiddenStates DraftLayer::fused(std::span<const HiddenStates* const> inputs) {
    kernels::Device& device = target_.device();
    const std::int64_t num_rows = inputs.front()->num_rows(), hidden = config_.layer.hidden_size;
    HiddenStates x = target_.hidden_states(num_rows);
    if (num_rows == 0) return x;
    float* const sum = sum_.floats(num_rows * hidden);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const kernels::Matrix& matrix = parts_.fusion[i];
        const std::byte* input = target_.context().rounded(inputs[i]->data(), inputs[i]->width(), num_rows);
        device.matmul(matrix, input, matrix.num_inputs, num_rows, i == 0 ? x.data() : sum);
        if (i > 0) device.add(x.data(), sum, num_rows * hidden);
    }
    if (parts_.fusion_bias) device.add_bias(x.data(), parts_.fusion_bias.as<float>(), num_rows, hidden);
    return x;
}

HiddenStates DraftLayer::normed(const Norm& norm, const HiddenStates& rows) {
    HiddenStates to = rows.another(rows.num_rows(), rows.width());
    if (rows.num_rows() == 0) return to;
    apply_norm(target_.device(), norm, rows.data(), rows.num_rows(), rows.width(), kernels::DType::f32,
               reinterpret_cast<std::byte*>(to.data()), rows.width());
    return to;
}

/// Row i of all inputs, one beside the other. f32 [rows, inputs * hidden].
HiddenStates DraftLayer::side_by_side(std::span<const HiddenStates* const> inputs) {
    kernels::Device& device = target_.device();
    const auto count = static_cast<std::int64_t>(inputs.size());
    const std::int64_t num_rows = inputs.front()->num_rows(), hidden = config_.layer.hidden_size;
    const HiddenStates below = target_.hidden_states(count * num_rows);
    HiddenStates beside = inputs.front()->another(num_rows, count * hidden);
    if (num_rows == 0) return beside;
    std::vector<std::int32_t> all(static_cast<std::size_t>(num_rows)), order;
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t i = 0; i < count; ++i)
        device.gather(inputs[i]->data(), all, hidden, below.data() + i * num_rows * hidden);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int64_t i = 0; i < count; ++i) order.push_back(static_cast<std::int32_t>(i * num_rows + row));
    }
    device.gather(below.data(), order, hidden, beside.data());
    return beside;
}

HiddenStates DraftLayer::forward(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                 const HiddenStates& states) {
    const HiddenStates embedded = target_.embed(rows);
    if (config_.is_targets_own()) {
        const HiddenStates token = normed(parts_.embedding_norm, embedded), state = normed(parts_.state_norm, states);
        const HiddenStates* const pair[] = {&token, &state};
        return normed(parts_.output_norm, forward_states(rows, sequences, fused(pair)));
    }
    if (!config_.has_own_head()) {
        const HiddenStates* const pair[] = {&embedded, &states};
        return forward_states(rows, sequences, fused(pair));
    }
    const HiddenStates token = normed(parts_.embedding_norm, embedded), state = normed(parts_.state_norm, states);
    const HiddenStates* const pair[] = {&token, &state};
    const HiddenStates input = side_by_side(pair);
    HiddenStates x = target_.hidden_states(states.num_rows());
    std::vector<std::int32_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    const HiddenStates& residual = config_.eagle3.norm_before_residual ? state : states;
    target_.device().gather(residual.data(), all, residual.width(), x.data());
    layers_->begin(rows, sequences);
    layers_->run(0, 1, x.data(), {.input = {.rows = input.data(), .width = input.width()}});
    target_.context().finish();
    return config_.eagle3.norms_output ? normed(parts_.head.final_norm, x) : std::move(x);
}

Logits DraftLayer::logits(const HiddenStates& outputs) {
    static const Norm none;  // of outputs that are estimates of normed states, or normed already
    if (!head_) return target_.logits(outputs, &none);
    const Norm& norm = config_.eagle3.norms_output ? none : parts_.head.final_norm;
    const Logits own = head_->logits(outputs.data(), outputs.num_rows(), norm);
    return own.widened(head_tokens_, target_.config().vocab_size, absent_);
}

HiddenStates DraftLayer::forward_states(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                        HiddenStates states) {
    layers_->begin(rows, sequences);
    layers_->run(0, 1, states.data());
    target_.context().finish();  // the pages of the sequences may change from here on
    return states;
}

}  // namespace longhaul::engine
