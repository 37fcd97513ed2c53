#include "engine/model/linear_attention.hpp"

#include "kernels/linear_attention.hpp"

namespace longhaul::engine {

const std::byte* LinearAttention::attend(const LinearWeights& w, const kernels::KvLayout& layout, std::int64_t layer,
                                         const std::byte* input, std::int64_t num_rows, std::int64_t width) {
    kernels::Device& device = context_.device;
    const kernels::DeltaShape& shape = layout.delta;
    const std::int64_t heads = shape.num_value_heads(), out_width = heads * shape.value_dim;
    const std::int64_t stride = w.inputs.num_outputs;
    float* const inputs = context_.projected.floats(num_rows * stride);
    device.layer_matmul(w.inputs, input, w.inputs.num_inputs, num_rows, inputs);
    float* const gates = context_.mixer_gates.floats(num_rows * shape.gates_width());
    device.layer_matmul(w.gates, input, w.gates.num_inputs, num_rows, gates);
    float* const out = context_.mixed.floats(num_rows * out_width);
    device.delta_rule()->mix(layout, layer,
                             {.filter = w.filter.as<float>(),
                              .log_rate = w.log_rate.as<float>(),
                              .step_bias = w.step_bias.as<float>(),
                              .filter_bias = w.filter_bias ? w.filter_bias.as<float>() : nullptr,
                              .skip = w.skip ? w.skip.as<float>() : nullptr},
                             inputs, stride, gates, out);
    const float* const output_gates = inputs + shape.num_key_heads * shape.channels();
    return shape.rule == kernels::StateRule::sum ? gate_and_norm(w, shape, output_gates, stride, out, num_rows, width)
                                                 : norm_and_gate(w, shape, output_gates, stride, out, num_rows, width);
}

// The norm of each value head, times silu(gate).
const std::byte* LinearAttention::norm_and_gate(const LinearWeights& w, const kernels::DeltaShape& shape,
                                                const float* gates, std::int64_t stride, float* out,
                                                std::int64_t num_rows, std::int64_t width) {
    kernels::Device& device = context_.device;
    const std::int64_t heads = shape.num_value_heads(), out_width = heads * shape.value_dim;
    apply_norm(device, w.norm, out, num_rows * heads, shape.value_dim, kernels::DType::f32,
               reinterpret_cast<std::byte*>(out), shape.value_dim);
    std::byte* const gated =
        context_.attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(context_.act));
    device.output_gate(kernels::OutputGate::silu, gates, stride, out, num_rows, out_width, context_.act, gated, width);
    return gated;
}

// Mamba-2: the norm of all value heads of a group together, times silu(gate). It has the squares of all ranks.
const std::byte* LinearAttention::gate_and_norm(const LinearWeights& w, const kernels::DeltaShape& shape,
                                                const float* gates, std::int64_t stride, float* out,
                                                std::int64_t num_rows, std::int64_t width) {
    kernels::Device& device = context_.device;
    const std::int64_t heads = shape.num_value_heads(), out_width = heads * shape.value_dim;
    device.output_gate(kernels::OutputGate::silu, gates, stride, out, num_rows, out_width, kernels::DType::f32,
                       reinterpret_cast<std::byte*>(out), out_width);
    const kernels::KvLayout as_queries{.head_dim = shape.value_dim};
    const kernels::WholeHeads of{.num_q = all_heads_, .first_q = rank_ * heads, .q_per_norm = heads_per_norm_};
    float* const squares = context_.head_squares.floats(num_rows * all_heads_);
    device.head_squares(as_queries, out, num_rows, heads, of, squares);
    context_.sums.all_reduce(squares, num_rows * all_heads_);
    device.whole_norm(as_queries, out, num_rows, heads, of, squares, w.norm.gain.as<float>(), nullptr, w.norm.eps);
    std::byte* const rounded =
        context_.attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(context_.act));
    device.round_rows(out, num_rows, out_width, context_.act, rounded, width);
    return rounded;
}

}  // namespace longhaul::engine
