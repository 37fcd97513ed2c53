#include "engine/model/feed_forward.hpp"

#include <stdexcept>

namespace longhaul::engine {

using kernels::Buffer;
using kernels::Matrix;

static kernels::Gate gate_of(const LayerConfig& kind) {
    if (kind.activation == Activation::swiglu_oai) return kernels::Gate::swiglu_oai;
    return kind.activation == Activation::gelu ? kernels::Gate::gelu : kernels::Gate::silu;
}

static kernels::Activation activation_of(const LayerConfig& kind) {
    switch (kind.activation) {
        case Activation::relu:
            return kernels::Activation::relu;
        case Activation::relu_squared:
            return kernels::Activation::relu_squared;
        case Activation::gelu:
            return kernels::Activation::gelu;
        case Activation::gelu_exact:
            return kernels::Activation::gelu_exact;
        case Activation::silu:
        case Activation::swiglu_oai:
            break;
    }
    throw std::logic_error("an activation without a gate that no operation computes");
}

FeedForward::FeedForward(ComputeContext& context, const ModelConfig& config, const Split& split,
                         std::span<const LayerWeights> weights)
    : context_(context), config_(config), split_(split), weights_(weights) {
    for (const LayerWeights& w : weights) {
        score_corrections_.push_back(to_host(context.device, w.score_correction));
        expert_scales_.push_back(to_host(context.device, w.expert_scales));
    }
}

float* FeedForward::compute(std::int64_t layer, Residual& rows) {
    return config_.layer(layer).experts.own_norms ? normed_experts(layer, rows) : mlp_or_experts(layer, rows);
}

// active = activation(Wgate x) * Wup x, or activation(Wup x)
void FeedForward::activate(std::int64_t layer, const std::byte* input, std::int64_t num_rows, std::byte* active) {
    kernels::Device& device = context_.device;
    const kernels::DType act = context_.act;
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    const std::int64_t width = w.down.num_inputs;
    float* gate_up = context_.projected.floats(num_rows * w.gate_up.num_outputs);
    if (w.gate_up.gated)
        return device.gated_matmul(w.gate_up, gate_of(kind), input, w.gate_up.num_inputs, num_rows, gate_up, act,
                                   active, width);
    device.layer_matmul(w.gate_up, input, w.gate_up.num_inputs, num_rows, gate_up);
    if (w.gate_up_bias) device.add_bias(gate_up, w.gate_up_bias.as<float>(), num_rows, w.gate_up.num_outputs);
    apply_activation(kind, gate_up, num_rows, width, active);
}

void FeedForward::apply_activation(const LayerConfig& kind, const float* gate_up, std::int64_t num_rows,
                                   std::int64_t width, std::byte* active) {
    if (kind.gated)
        return context_.device.gate_mul(gate_of(kind), gate_up, num_rows, width, context_.act, active, width);
    context_.device.activate(activation_of(kind), gate_up, num_rows, width, context_.act, active, width);
}

void FeedForward::mlp(std::int64_t layer, const std::byte* input, std::int64_t num_rows, float* out) {
    const LayerWeights& w = weights_[layer];
    const std::int64_t width = w.down.num_inputs;
    std::byte* active =
        context_.attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(context_.act));
    activate(layer, input, num_rows, active);
    context_.device.layer_matmul(w.down, active, width, num_rows, out);
    context_.sums.all_reduce(out, num_rows * config_.hidden_size);
}

ExpertRouting FeedForward::choose_experts(std::int64_t layer, const std::byte* input, std::int64_t num_rows) {
    const LayerWeights& w = weights_[layer];
    const Matrix& router = w.router;
    std::vector<float> logits(static_cast<std::size_t>(num_rows * router.num_outputs));
    float* on_device = context_.projected.floats(std::ssize(logits));
    context_.device.matmul(router, input, router.num_inputs, num_rows, on_device);
    if (w.router_bias) context_.device.add_bias(on_device, w.router_bias.as<float>(), num_rows, router.num_outputs);
    context_.device.download(logits.data(), reinterpret_cast<const std::byte*>(on_device),
                             logits.size() * sizeof(float));
    const auto at = static_cast<std::size_t>(layer);
    return route(logits, config_.layer(layer).experts, score_corrections_[at], expert_scales_[at]);
}

// y = what `matrix` of each expert makes of the expert's copies x, act [copies, x_stride].
void FeedForward::multiply_copies(std::span<const Expert> experts, Matrix Expert::*matrix, const ExpertRouting& routing,
                                  const std::byte* x, std::int64_t x_stride, float* y) {
    const std::int64_t row_bytes = x_stride * static_cast<std::int64_t>(kernels::bytes_of(context_.act));
    std::vector<kernels::MatmulCall> calls;
    for (std::size_t e = 0; e < experts.size(); ++e) {
        const Matrix& w = experts[e].*matrix;
        const std::int64_t first = routing.first_copies[e], count = routing.first_copies[e + 1] - first;
        if (count > 0) calls.push_back({&w, x + first * row_bytes, count, y + first * w.num_outputs});
    }
    context_.device.matmuls(calls, x_stride);
}

// y += the bias of each copy's expert, f32 [experts, width].
void FeedForward::add_expert_bias(const Buffer& bias, const ExpertRouting& routing, std::int64_t width, float* y) {
    if (!bias) return;
    const std::int64_t size = std::ssize(routing.experts) * width;
    float* of_copies = context_.expert_biases.floats(size);
    context_.device.gather(bias.as<float>(), routing.experts, width, of_copies);
    context_.device.add(y, of_copies, size);
}

// out = sum over a row's experts of weight * MLP of that expert, and of the shared expert if it has a weight, f32
// [rows, inputs of an expert]. The ranks' parts are added up for each expert, before the weighted sum: a sum over
// experts and ranks together would have other bits for another number of ranks.
void FeedForward::experts(std::int64_t layer, const ExpertRouting& routing, const std::byte* input,
                          std::int64_t num_rows, float* out) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    const auto element = static_cast<std::int64_t>(kernels::bytes_of(context_.act));
    const std::int64_t hidden = config_.expert_hidden_size(kind.experts), stride = kernels::padded_inputs(hidden);
    const std::int64_t width = split_.expert_intermediate, up_width = kind.num_up() * width;

    const std::int64_t num_copies = std::ssize(routing.rows);
    std::byte* copies = context_.expert_inputs.bytes(static_cast<std::size_t>(num_copies * stride * element));
    device.gather(reinterpret_cast<const float*>(input), routing.rows, stride * element / 4,
                  reinterpret_cast<float*>(copies));
    float* gate_up = context_.projected.floats(num_copies * up_width);
    multiply_copies(w.experts, &Expert::gate_up, routing, copies, stride, gate_up);
    add_expert_bias(w.experts_up_bias, routing, up_width, gate_up);
    std::byte* active = context_.attended.bytes(static_cast<std::size_t>(num_copies * width * element));
    apply_activation(kind, gate_up, num_copies, width, active);
    const std::int64_t num_shared = kind.experts.shared_gate ? num_rows : 0;
    float* sums = context_.expert_sums.floats((num_copies + num_shared) * hidden);
    multiply_copies(w.experts, &Expert::down, routing, active, width, sums);
    context_.sums.all_reduce(sums, num_copies * hidden);
    add_expert_bias(w.experts_down_bias, routing, hidden, sums);
    if (num_shared > 0) mlp(layer, input, num_rows, sums + num_copies * hidden);
    device.weighted_sums(sums, routing.terms, kind.experts.num_terms(), hidden, out);
}

// out = Wup experts(Wdown x), f32 [rows, hidden] (ExpertConfig::latent_size).
void FeedForward::latent_experts(std::int64_t layer, const ExpertRouting& routing, const std::byte* input,
                                 std::int64_t num_rows, float* out) {
    kernels::Device& device = context_.device;
    const LayerWeights& w = weights_[layer];
    const std::int64_t size = config_.layer(layer).experts.latent_size, stride = kernels::padded_inputs(size);
    std::byte* const rounded =
        context_.expert_latents.bytes(static_cast<std::size_t>(num_rows * stride) * kernels::bytes_of(context_.act));
    float* latent = context_.projected.floats(num_rows * size);
    device.layer_matmul(w.expert_latent_down, input, w.expert_latent_down.num_inputs, num_rows, latent);
    device.round_rows(latent, num_rows, size, context_.act, rounded, stride);
    latent = context_.expert_latent_sums.floats(num_rows * size);
    experts(layer, routing, rounded, num_rows, latent);
    device.round_rows(latent, num_rows, size, context_.act, rounded, stride);
    device.layer_matmul(w.expert_latent_up, rounded, stride, num_rows, out);
}

// The output of a block: its MLP, or its experts plus the shared expert, f32 [rows, hidden].
float* FeedForward::mlp_or_experts(std::int64_t layer, Residual& rows) {
    const LayerWeights& w = weights_[layer];
    const LayerConfig& kind = config_.layer(layer);
    const std::byte* input = context_.block_input(kind.norm_place, w.mlp_norm, rows);
    float* out = context_.sum.floats(rows.num_rows * rows.width);
    if (kind.experts.count == 0) {
        mlp(layer, input, rows.num_rows, out);
        return out;
    }
    const ExpertRouting routing = choose_experts(layer, input, rows.num_rows);
    if (kind.experts.latent_size > 0) {
        latent_experts(layer, routing, input, rows.num_rows, out);
    } else {
        experts(layer, routing, input, rows.num_rows, out);
    }
    if (w.gate_up.data && !kind.experts.shared_gate) {
        float* shared = context_.expert_sums.floats(rows.num_rows * rows.width);
        mlp(layer, input, rows.num_rows, shared);
        context_.device.add(out, shared, rows.num_rows * rows.width);
    }
    return out;
}

// The same if router, experts and shared expert norm the rows each for itself, and their outputs are normed.
float* FeedForward::normed_experts(std::int64_t layer, Residual& rows) {
    const LayerWeights& w = weights_[layer];
    const ExpertRouting routing = choose_experts(layer, context_.normalised(w.router_norm, rows), rows.num_rows);
    float* out = context_.sum.floats(rows.num_rows * rows.width);
    experts(layer, routing, context_.normalised(w.expert_norm, rows), rows.num_rows, out);
    context_.norm_in_place(w.expert_out_norm, out, rows.num_rows, rows.width);
    float* shared = context_.expert_sums.floats(rows.num_rows * rows.width);
    mlp(layer, context_.normalised(w.mlp_norm, rows), rows.num_rows, shared);
    context_.norm_in_place(w.shared_out_norm, shared, rows.num_rows, rows.width);
    context_.device.add(out, shared, rows.num_rows * rows.width);
    return out;
}

}  // namespace longhaul::engine
