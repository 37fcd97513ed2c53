#include "engine/model/decoder_layers.hpp"

#include <algorithm>
#include <stdexcept>

namespace longhaul::engine {
namespace {

using kernels::Buffer;
using kernels::KvSlot;

KvSlot slot_of(const KvPlace& place, const KvView& view) {
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

}  // namespace

DecoderLayers::DecoderLayers(ComputeContext& context, const ModelConfig& config, const Split& split,
                             std::span<const LayerWeights> weights, const kernels::KvLayout& layout)
    : context_(context), config_(config), split_(split), weights_(weights), layout_(layout), rope_(config) {
    for (const LayerConfig& kind : config.layers) {
        const bool known = kind.gated == (kind.activation == Activation::silu) && kind.attention_window == 0;
        if (!known) throw std::logic_error("a layer that no operation computes");
    }
}

void DecoderLayers::begin(std::span<const ForwardRow> rows, std::span<const KvView> sequences) {
    const std::int64_t half = config_.head_dim / 2;
    num_rows_ = std::ssize(rows);
    cos_.resize(rows.size() * static_cast<std::size_t>(half));
    sin_.resize(cos_.size());
    slots_.clear();
    attention_rows_.clear();
    find_prompt_rows(rows);
    sequences_.assign(sequences.begin(), sequences.end());
    for (std::int64_t r = 0; r < num_rows_; ++r) {
        const ForwardRow& row = rows[r];
        rope_.fill(row.position, cos_.data() + r * half, sin_.data() + r * half);
        slots_.push_back(slot_of(row.place, sequences_.at(row.sequence)));
        attention_rows_.push_back({.sequence = row.sequence,
                                   .position = row.in_pages + std::ssize(row.path) - 1,
                                   .in_pages = row.in_pages,
                                   .path = row.path.data()});
    }
    context_.device.begin_pass({.sequences = sequences_,
                                .rows = attention_rows_,
                                .slots = slots_,
                                .cos = cos_.data(),
                                .sin = sin_.data(),
                                .num_angles = half,
                                .first_prompt_row = first_prompt_row_,
                                .num_prompt_rows = num_prompt_rows_});
}

void DecoderLayers::find_prompt_rows(std::span<const ForwardRow> rows) {
    const auto of_prompt = [](const ForwardRow& row) { return row.of_prompt; };
    const auto first = std::find_if(rows.begin(), rows.end(), of_prompt);
    const auto end = std::find_if_not(first, rows.end(), of_prompt);
    if (std::any_of(end, rows.end(), of_prompt)) throw std::logic_error("rows of prompts do not stand together");
    num_prompt_rows_ = end - first;
    first_prompt_row_ = num_prompt_rows_ == 0 ? 0 : first - rows.begin();
}

const std::byte* DecoderLayers::enter_block(NormPlace place, const Norm& norm, Residual& rows) {
    return place == NormPlace::after ? context_.rounded(rows.x, rows.width, rows.num_rows)
                                     : context_.normalised(norm, rows);
}

// Sets rows.to_add to the all-reduced `part` plus the bias. For post-norm layers, adds it and applies the norm.
void DecoderLayers::leave_block(NormPlace place, const Norm& norm, const Buffer& bias, float* part, Residual& rows) {
    context_.sums.all_reduce(part, rows.num_rows * rows.width);
    if (bias) context_.device.add_bias(part, bias.as<float>(), rows.num_rows, rows.width);
    rows.to_add = part;
    if (place == NormPlace::before) return;
    context_.add(rows);
    apply_norm(context_.device, norm, rows.x, rows.num_rows, rows.width, kernels::DType::f32,
               reinterpret_cast<std::byte*>(rows.x), rows.width);
}

std::byte* DecoderLayers::queries() {
    return context_.queries.bytes(static_cast<std::size_t>(num_rows_ * split_.num_heads * config_.head_dim) *
                                  kernels::bytes_of(layout_.query_type()));
}

const std::byte* DecoderLayers::attend(std::int64_t layer) {
    const std::int64_t width = weights_[layer].output.num_inputs;
    std::byte* heads =
        context_.attended.bytes(static_cast<std::size_t>(num_rows_ * width) * kernels::bytes_of(context_.act));
    context_.device.attention(layout_, layer, queries(), split_.num_heads, context_.act, heads, width);
    return heads;
}

// x += Wo attention(rope(Wqkv norm(x)))
void DecoderLayers::attention_block(std::int64_t layer, Residual& rows, const LayerInput& given) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const NormPlace place = config_.layer(layer).norm_place;
    const std::byte* input = given.rows != nullptr ? context_.rounded(given.rows, given.width, num_rows_)
                                                   : enter_block(place, w.attention_norm, rows);
    const std::int64_t stride = w.qkv.num_inputs;
    float* qkv = context_.projected.floats(num_rows_ * w.qkv.num_outputs);
    std::byte* q = queries();
    if (w.qkv_bias) {
        device.layer_matmul(w.qkv, input, stride, num_rows_, qkv);
        device.add_bias(qkv, w.qkv_bias.as<float>(), num_rows_, w.qkv.num_outputs);
        device.rope_store(layout_, layer, qkv, split_.num_heads, q);
    } else {
        device.qkv_matmul(w.qkv, input, stride, num_rows_, qkv, layout_, layer, split_.num_heads, q);
    }
    if (before_attention_) before_attention_({layer, q, split_.num_heads});
    const std::byte* heads = attend(layer);

    float* out = context_.sum.floats(num_rows_ * rows.width);
    device.layer_matmul(w.output, heads, w.output.num_inputs, num_rows_, out);
    leave_block(place, w.attention_norm, w.output_bias, out, rows);
}

// x += Wdown (silu(Wgate norm(x)) * Wup norm(x)), or x += Wdown relu(Wup norm(x))
void DecoderLayers::mlp_block(std::int64_t layer, Residual& rows) {
    kernels::Device& device = context_.device;
    const kernels::DType act = context_.act;
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    const std::byte* input = enter_block(kind.norm_place, w.mlp_norm, rows);
    float* gate_up = context_.projected.floats(num_rows_ * w.gate_up.num_outputs);
    const std::int64_t width = split_.intermediate;
    std::byte* active = context_.attended.bytes(static_cast<std::size_t>(num_rows_ * width) * kernels::bytes_of(act));
    if (w.gate_up.gated) {
        device.gated_matmul(w.gate_up, input, w.gate_up.num_inputs, num_rows_, gate_up, act, active, width);
    } else {
        device.layer_matmul(w.gate_up, input, w.gate_up.num_inputs, num_rows_, gate_up);
        if (w.gate_up_bias) device.add_bias(gate_up, w.gate_up_bias.as<float>(), num_rows_, w.gate_up.num_outputs);
        const auto activate = kind.gated ? &kernels::Device::silu_mul : &kernels::Device::relu;
        (device.*activate)(gate_up, num_rows_, width, act, active, width);
    }
    float* out = context_.sum.floats(num_rows_ * rows.width);
    device.layer_matmul(w.down, active, width, num_rows_, out);
    leave_block(kind.norm_place, w.mlp_norm, w.down_bias, out, rows);
}

void DecoderLayers::run(std::int64_t first, std::int64_t end, float* x, TapCollector* taps, LayerInput input) {
    Residual rows{.x = x, .num_rows = num_rows_, .width = config_.hidden_size};
    for (std::int64_t layer = first; layer < end; ++layer) {
        if (taps != nullptr) taps->before_layer(layer, rows);
        attention_block(layer, rows, layer == first ? input : LayerInput{});
        mlp_block(layer, rows);
        if (hook_) hook_();
    }
    context_.add(rows);
}

}  // namespace longhaul::engine
