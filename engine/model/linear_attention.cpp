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
    float* const gates = context_.mixer_gates.floats(num_rows * 2 * heads);
    device.layer_matmul(w.gates, input, w.gates.num_inputs, num_rows, gates);
    float* const out = context_.mixed.floats(num_rows * out_width);
    device.delta_rule()->mix(
        layout, layer,
        {.filter = w.filter.as<float>(), .log_rate = w.log_rate.as<float>(), .step_bias = w.step_bias.as<float>()},
        inputs, stride, gates, out);
    apply_norm(device, w.norm, out, num_rows * heads, shape.value_dim, kernels::DType::f32,
               reinterpret_cast<std::byte*>(out), shape.value_dim);
    std::byte* const gated =
        context_.attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(context_.act));
    device.output_gate(kernels::OutputGate::silu, inputs + shape.num_key_heads * shape.channels(), stride, out,
                       num_rows, out_width, context_.act, gated, width);
    return gated;
}

std::int64_t LinearAttention::row_bytes(const kernels::DeltaShape& shape) {
    constexpr std::int64_t f32 = 4;
    return f32 * shape.num_value_heads() * (2 + shape.value_dim);
}

}  // namespace longhaul::engine
