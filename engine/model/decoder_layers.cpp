#include "engine/model/decoder_layers.hpp"

#include <algorithm>
#include <stdexcept>

namespace longhaul::engine {
namespace {

using kernels::Buffer;
using kernels::KvSlot;
using kernels::Matrix;

KvSlot slot_of(const KvPlace& place, const kernels::AttentionSequence& view) {
    switch (place.in) {
        case KvPlace::In::pages:
            return slot_in(view.pages, place.slot);
        case KvPlace::In::scratch:
            return slot_in(view.scratch_pages, place.slot);
        case KvPlace::In::nowhere:
            break;
    }
    return {};
}

bool is_computed(const ExpertConfig& experts, const LayerConfig& kind, const ModelConfig& config) {
    if (!kind.has_mlp || kind.mlp_bias || (experts.bias && !kind.gated)) return false;
    if (experts.latent_size > 0 && (experts.bias || experts.shared_gate)) return false;
    return !experts.shared_gate || (config.shared_intermediate_size > 0 && !experts.bias && !experts.own_norms);
}

/// Whether the code below computes a layer with these settings. The readers of config.json give no others.
bool is_computed(const LayerConfig& kind, const ModelConfig& config) {
    if (!has_kernel(kind.activation, kind.gated)) return false;
    if (kind.head_norm && kind.whole_norm) return false;
    if (!kind.head_norm && (kind.query_norm_scale != 1.0 || kind.value_norm || kind.shares_kv)) return false;
    if (config.has_latent_attention() && (kind.head_norm || kind.whole_norm || kind.qkv_bias)) return false;
    const bool ends_with_mlp = config.layer_embedding_size == 0 && !kind.output_scale;
    if (!kind.has_mlp && !ends_with_mlp) return false;
    if (kind.parallel) {
        const bool is_plain = kind.norm_place == NormPlace::before && kind.block_scale == 1.0;
        return kind.has_mlp && kind.experts.count == 0 && ends_with_mlp && is_plain;
    }
    return kind.experts.count == 0 || is_computed(kind.experts, kind, config);
}

}  // namespace

DecoderLayers::DecoderLayers(ComputeContext& context, const ModelConfig& config, const Split& split,
                             std::span<const LayerWeights> weights, std::span<const kernels::KvLayout> layouts)
    : context_(context),
      config_(config),
      split_(split),
      latent_(context, config, split),
      linear_(context, config, split),
      feed_forward_(context, config, split, weights),
      weights_(weights),
      first_layout_(layouts.front()),
      places_(config.places_of_layers()) {
    const auto computed = [&](const LayerConfig& kind) { return is_computed(kind, config); };
    if (!std::all_of(config.layers.begin(), config.layers.end(), computed))
        throw std::logic_error("a layer that no operation computes");
    for (const LayerWeights& w : weights) {
        output_scales_.push_back(to_host(context.device, w.output_scale));
    }
    const auto norms_values = [](const LayerConfig& kind) { return kind.value_norm; };
    if (std::any_of(config.layers.begin(), config.layers.end(), norms_values)) {
        const std::vector<float> ones(static_cast<std::size_t>(config.widest_head()), 1.0F);
        value_gain_ = Buffer(context.device, ones.size() * sizeof(float));
        context.device.upload(value_gain_.data(), ones.data(), value_gain_.num_bytes());
    }
    for (const RopeConfig& rope : config.ropes()) ropes_.emplace_back(RopeTable(config, rope));
    angles_.resize(ropes_.size());
    groups_.resize(layouts.size());
    for (const std::int64_t rope : config.ropes_of_layers()) {
        layouts_.push_back(layouts[places_[layouts_.size()].group]);
        layouts_.back().angles = rope;
    }
}

void DecoderLayers::begin(std::span<const ForwardRow> rows, std::span<const KvView> sequences) {
    num_rows_ = std::ssize(rows);
    find_prompt_rows(rows);
    group_rows_.clear();
    for (std::size_t group = 0; group < groups_.size(); ++group) begin_group(group, rows, sequences);
    pass_angles_.clear();
    for (std::size_t rope = 0; rope < ropes_.size(); ++rope) find_angles(rope, rows);
    const kernels::GroupRows& first = group_rows_.front();
    context_.device.begin_pass({.sequences = first.sequences,
                                .rows = first.rows,
                                .slots = first.slots,
                                .more_groups = std::span<const kernels::GroupRows>(group_rows_).subspan(1),
                                .angles = pass_angles_,
                                .num_angles = config_.widest_head() / 2,
                                .first_prompt_row = first_prompt_row_,
                                .num_prompt_rows = num_prompt_rows_});
}

// In the first group a row reads the pages it was given, which may be a selection; in the others all positions of the
// text before its path.
void DecoderLayers::begin_group(std::size_t group, std::span<const ForwardRow> rows,
                                std::span<const KvView> sequences) {
    GroupState& state = groups_[group];
    state.slots.clear();
    state.rows.clear();
    state.sequences.clear();
    for (const KvView& view : sequences) state.sequences.push_back(view.group(group));
    for (std::int64_t r = 0; r < num_rows_; ++r) {
        const ForwardRow& row = rows[r];
        const std::int64_t in_pages = group == 0 ? row.in_pages : row.position + 1 - std::ssize(row.path);
        state.slots.push_back(slot_of(row.place, state.sequences.at(row.sequence)));
        state.rows.push_back({.sequence = row.sequence,
                              .position = in_pages + std::ssize(row.path) - 1,
                              .in_pages = in_pages,
                              .path = row.path.data()});
    }
    group_rows_.push_back({state.sequences, state.rows, state.slots});
}

void DecoderLayers::find_angles(std::size_t rope, std::span<const ForwardRow> rows) {
    Angles& angles = angles_[rope];
    const auto half = static_cast<std::size_t>(ropes_[rope].num_pairs());
    angles.cos.resize(rows.size() * static_cast<std::size_t>(config_.widest_head() / 2));
    angles.sin.resize(angles.cos.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const ForwardRow& row = rows[r];
        ropes_[rope].fill(row.position, std::max(row.text_length, row.position + 1), angles.cos.data() + r * half,
                          angles.sin.data() + r * half);
    }
    pass_angles_.push_back({.cos = angles.cos.data(), .sin = angles.sin.data()});
    const auto grows = [&](const ForwardRow& row) { return ropes_[rope].query_factor(row.position) != 1.0F; };
    if (std::none_of(rows.begin(), rows.end(), grows)) return;
    angles.query_cos = angles.cos;
    angles.query_sin = angles.sin;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const float factor = ropes_[rope].query_factor(rows[r].position);
        for (std::vector<float>* values : {&angles.query_cos, &angles.query_sin}) {
            for (std::size_t i = r * half; i < (r + 1) * half; ++i) (*values)[i] *= factor;
        }
    }
    pass_angles_.back().query_cos = angles.query_cos.data();
    pass_angles_.back().query_sin = angles.query_sin.data();
}

void DecoderLayers::find_prompt_rows(std::span<const ForwardRow> rows) {
    const auto of_prompt = [](const ForwardRow& row) { return row.of_prompt; };
    const auto first = std::find_if(rows.begin(), rows.end(), of_prompt);
    const auto end = std::find_if_not(first, rows.end(), of_prompt);
    if (std::any_of(end, rows.end(), of_prompt)) throw std::logic_error("rows of prompts do not stand together");
    num_prompt_rows_ = end - first;
    first_prompt_row_ = num_prompt_rows_ == 0 ? 0 : first - rows.begin();
}

// Sets rows.to_add to `sum` plus the bias, normed if the block's output has a norm, times the layer's factor. For
// post-norm layers, adds it and applies the norm.
void DecoderLayers::leave_block(const LayerConfig& kind, const BlockNorms& norms, const Buffer& bias, float* sum,
                                Residual& rows) {
    if (bias) context_.device.add_bias(sum, bias.as<float>(), rows.num_rows, rows.width);
    if (kind.norms_outputs()) context_.norm_in_place(norms.out, sum, rows.num_rows, rows.width);
    if (kind.block_scale != 1.0)
        context_.device.scale(sum, static_cast<float>(kind.block_scale), rows.num_rows * rows.width);
    rows.to_add = sum;
    if (kind.norm_place != NormPlace::after) return;
    context_.add(rows);
    context_.norm_in_place(norms.in, rows.x, rows.num_rows, rows.width);
}

std::byte* DecoderLayers::queries() {
    return context_.queries.bytes(static_cast<std::size_t>(num_rows_ * split_.num_heads * config_.widest_head()) *
                                  kernels::bytes_of(layout().query_type()));
}

const std::byte* DecoderLayers::attend(std::int64_t layer) {
    const std::int64_t width = config_.has_latent_attention() ? split_.query_width(config_.heads(config_.layer(layer)))
                                                              : weights_[layer].output.num_inputs;
    std::byte* heads =
        context_.attended.bytes(static_cast<std::size_t>(num_rows_ * width) * kernels::bytes_of(context_.act));
    attention(layer, context_.act, heads, width);
    return heads;
}

// A norm over all heads of q, or of k, has the squares of all ranks.
void DecoderLayers::norm_heads(std::int64_t layer, float* qkv) {
    kernels::Device& device = context_.device;
    const kernels::KvLayout layout = projected_layout(layer);
    const Norm& q_norm = weights_[layer].query_norm;
    const auto *const q_gain = q_norm.gain.as<float>(), *const k_gain = weights_[layer].key_norm.gain.as<float>();
    const std::int64_t q_heads = split_.num_heads;
    if (!config_.layer(layer).whole_norm)
        return device.head_norm(
            layout, qkv, num_rows_, q_heads,
            {.q = q_gain, .k = k_gain, .v = config_.layer(layer).value_norm ? value_gain_.as<float>() : nullptr},
            q_norm.eps);
    const kernels::WholeHeads of{.num_q = config_.num_heads,
                                 .num_kv = config_.num_kv_heads,
                                 .first_q = split_.first_head,
                                 .first_kv = split_.first_kv_head,
                                 .counts_kv = split_.writes_kv};
    const std::int64_t count = num_rows_ * (of.num_q + of.num_kv);
    float* squares = context_.head_squares.floats(count);
    device.head_squares(layout, qkv, num_rows_, q_heads, of, squares);
    context_.sums.all_reduce(squares, count);
    device.whole_norm(layout, qkv, num_rows_, q_heads, of, squares, q_gain, k_gain, q_norm.eps);
}

void DecoderLayers::attention(std::int64_t layer, kernels::DType act, std::byte* heads, std::int64_t width) {
    const float* sinks = weights_[layer].sinks ? weights_[layer].sinks.as<float>() : nullptr;
    context_.device.attention(layout_of(layer), places_[layer].index, queries(), split_.num_heads, sinks, act, heads,
                              width);
}

// Attention, times the sigmoid of a projection of the block's input.
const std::byte* DecoderLayers::attend_gated(std::int64_t layer, const std::byte* input) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const std::int64_t width = split_.query_width(config_.heads(config_.layer(layer)));
    const std::int64_t out_width = w.output.num_inputs;
    float* const sums = context_.mixed.floats(num_rows_ * width);
    attention(layer, kernels::DType::f32, reinterpret_cast<std::byte*>(sums), width);
    float* const gates = context_.projected.floats(num_rows_ * width);
    device.layer_matmul(w.output_gate, input, w.output_gate.num_inputs, num_rows_, gates);
    std::byte* const heads =
        context_.attended.bytes(static_cast<std::size_t>(num_rows_ * out_width) * kernels::bytes_of(context_.act));
    device.output_gate(kernels::OutputGate::sigmoid, gates, width, sums, num_rows_, width, context_.act, heads,
                       out_width);
    return heads;
}

// What a layer's heads make of its input, act [rows, inputs of the output projection].
const std::byte* DecoderLayers::mix(std::int64_t layer, const std::byte* input, const LayerPass& pass) {
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    if (kind.linear)
        return linear_.attend(w.linear, layout_of(layer), places_[layer].index, input, num_rows_, w.output.num_inputs);
    std::byte* q = queries();
    project_qkv(layer, input, q);
    if (pass.before_attention && !kind.shares_kv) pass.before_attention({places_[layer], q, split_.num_heads});
    if (kind.output_gate) return attend_gated(layer, input);
    const std::byte* heads = attend(layer);
    return config_.has_latent_attention() ? latent_.values(w.latent, heads, num_rows_, w.output.num_inputs) : heads;
}

// The queries of all rows, rotated, and their keys and values in the cache.
void DecoderLayers::project_qkv(std::int64_t layer, const std::byte* input, std::byte* q) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const kernels::KvLayout layout = projected_layout(layer);
    const std::int64_t in_group = places_[layer].index;
    if (config_.has_latent_attention())
        return device.rope_store(layout, in_group, latent_.project(w.latent, input, num_rows_), split_.num_heads, q);
    const std::int64_t stride = w.qkv.num_inputs;
    float* qkv = context_.projected.floats(num_rows_ * w.qkv.num_outputs);
    if (!w.qkv_bias && !w.query_norm.gain)
        return device.qkv_matmul(w.qkv, input, stride, num_rows_, qkv, layout, in_group, split_.num_heads, q);
    device.layer_matmul(w.qkv, input, stride, num_rows_, qkv);
    if (w.qkv_bias) device.add_bias(qkv, w.qkv_bias.as<float>(), num_rows_, w.qkv.num_outputs);
    if (w.query_norm.gain) norm_heads(layer, qkv);
    device.rope_store(layout, in_group, qkv, split_.num_heads, q);
}

// x += Wo attention(rope(Wqkv norm(x)))
void DecoderLayers::attention_block(std::int64_t layer, Residual& rows, const LayerInput& given,
                                    const LayerPass& pass) {
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    const std::byte* input = given.rows != nullptr ? context_.rounded(given.rows, given.width, num_rows_)
                                                   : context_.block_input(kind.norm_place, w.attention_norm, rows);
    const std::byte* heads = mix(layer, input, pass);
    float* out = context_.sum.floats(num_rows_ * rows.width);
    context_.device.layer_matmul(w.output, heads, w.output.num_inputs, num_rows_, out);
    context_.sums.all_reduce(out, num_rows_ * rows.width);
    leave_block(kind, {w.attention_norm, w.attention_out_norm}, w.output_bias, out, rows);
}

// x += Wo attention(rope(Wqkv norm(x))) + MLP(norm(x)), where the MLP may have a norm of its own
void DecoderLayers::parallel_block(std::int64_t layer, Residual& rows, const LayerPass& pass) {
    const LayerWeights& w = weights_[layer];
    const std::byte* input = context_.normalised(w.attention_norm, rows);
    const std::byte* heads = mix(layer, input, pass);
    const std::int64_t size = num_rows_ * rows.width;
    float* out = context_.sum.floats(size);
    context_.device.layer_matmul(w.output, heads, w.output.num_inputs, num_rows_, out);
    context_.sums.all_reduce(out, size);
    if (w.output_bias) context_.device.add_bias(out, w.output_bias.as<float>(), num_rows_, rows.width);
    if (w.mlp_norm.gain) input = context_.normalised(w.mlp_norm, rows);
    float* of_mlp = context_.expert_sums.floats(size);
    feed_forward_.mlp(layer, input, num_rows_, of_mlp);
    if (w.down_bias) context_.device.add_bias(of_mlp, w.down_bias.as<float>(), num_rows_, rows.width);
    context_.device.add(out, of_mlp, size);
    rows.to_add = out;
}

// x += norm(W (gelu(Wgate x) * the layer's embedding))
void DecoderLayers::embedding_block(std::int64_t layer, Residual& rows, const float* embeddings) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const std::int64_t width = w.embedding_gate.num_outputs, padded = w.embedding_output.num_inputs;
    context_.add(rows);
    float* const gates = context_.projected.floats(num_rows_ * width);
    device.layer_matmul(w.embedding_gate, context_.rounded(rows.x, rows.width, num_rows_), w.embedding_gate.num_inputs,
                        num_rows_, gates);
    std::byte* const active =
        context_.attended.bytes(static_cast<std::size_t>(num_rows_ * padded) * kernels::bytes_of(context_.act));
    device.output_gate(kernels::OutputGate::gelu, gates, width, embeddings + layer * num_rows_ * width, num_rows_,
                       width, context_.act, active, padded);
    float* const out = context_.sum.floats(num_rows_ * rows.width);
    device.layer_matmul(w.embedding_output, active, padded, num_rows_, out);
    context_.norm_in_place(w.embedding_out_norm, out, rows.num_rows, rows.width);
    rows.to_add = out;
}

// x += MLP(norm(x)), with another norm on that if the layer has one; then x *= output scale
void DecoderLayers::mlp_block(std::int64_t layer, Residual& rows, const LayerPass& pass) {
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    leave_block(kind, {w.mlp_norm, w.mlp_out_norm}, w.down_bias, feed_forward_.compute(layer, rows), rows);
    if (w.embedding_gate.data) embedding_block(layer, rows, pass.layer_embeddings);
    const std::vector<float>& scale = output_scales_[static_cast<std::size_t>(layer)];
    if (scale.empty()) return;
    context_.add(rows);
    context_.device.scale(rows.x, scale.front(), num_rows_ * rows.width);
}

void DecoderLayers::run(std::int64_t first, std::int64_t end, float* x, const LayerPass& pass) {
    Residual rows{.x = x, .num_rows = num_rows_, .width = config_.hidden_size};
    for (std::int64_t layer = first; layer < end; ++layer) {
        if (pass.taps != nullptr) pass.taps->before_layer(layer, rows);
        const LayerConfig& kind = config_.layer(layer);
        if (kind.parallel) {
            if (layer == first && pass.input.rows != nullptr) throw std::logic_error("an input of attention alone");
            parallel_block(layer, rows, pass);
        } else {
            attention_block(layer, rows, layer == first ? pass.input : LayerInput{}, pass);
            if (kind.has_mlp) mlp_block(layer, rows, pass);
        }
        if (hook_) hook_();
    }
    context_.add(rows);
}

}  // namespace longhaul::engine
