#include "engine/model/compute_context.hpp"

#include <utility>

#include "kernels/numerics.hpp"

namespace longhaul::engine {

std::vector<float> to_host(kernels::Device& device, const kernels::Buffer& vector) {
    std::vector<float> values(vector.num_bytes() / sizeof(float));
    if (vector) device.download(values.data(), vector.data(), vector.num_bytes());
    return values;
}

void apply_norm(kernels::Device& device, const Norm& norm, const float* x, std::int64_t num_rows, std::int64_t width,
                kernels::DType act, std::byte* out, std::int64_t out_stride) {
    const auto* gain = norm.gain.as<float>();
    if (norm.bias) {
        device.layer_norm(x, gain, norm.bias.as<float>(), norm.eps, num_rows, width, act, out, out_stride);
    } else {
        device.rms_norm(x, gain, norm.eps, num_rows, width, act, out, out_stride);
    }
}

ComputeContext::ComputeContext(kernels::Device& on, DeviceGroup& of, kernels::DType act_type)
    : device(on),
      sums(of),
      act(act_type),
      normed(on),
      projected(on),
      queries(on),
      head_squares(on),
      attended(on),
      sum(on),
      expert_inputs(on),
      expert_sums(on),
      expert_biases(on),
      expert_latents(on),
      expert_latent_sums(on),
      mixed(on),
      mixer_gates(on),
      latent_parts(on),
      latent_inputs(on),
      layer_embeddings(on) {}

/// Memory for the input of a matmul, act [num_rows, padded width].
std::byte* ComputeContext::inputs(std::int64_t width, std::int64_t num_rows) {
    return normed.bytes(static_cast<std::size_t>(num_rows * kernels::padded_inputs(width)) * kernels::bytes_of(act));
}

const std::byte* ComputeContext::rounded(const float* x, std::int64_t width, std::int64_t num_rows) {
    std::byte* out = inputs(width, num_rows);
    device.round_rows(x, num_rows, width, act, out, kernels::padded_inputs(width));
    return out;
}

const std::byte* ComputeContext::normalised(const Norm& norm, const float* x, std::int64_t width,
                                            std::int64_t num_rows) {
    if (!norm.gain) return rounded(x, width, num_rows);
    std::byte* out = inputs(width, num_rows);
    apply_norm(device, norm, x, num_rows, width, act, out, kernels::padded_inputs(width));
    return out;
}

const std::byte* ComputeContext::normalised(const Norm& norm, Residual& rows) {
    if (!norm.gain || norm.bias) add(rows);
    const float* to_add = std::exchange(rows.to_add, nullptr);
    if (to_add == nullptr) return normalised(norm, rows.x, rows.width, rows.num_rows);
    std::byte* out = inputs(rows.width, rows.num_rows);
    device.add_rms_norm(rows.x, to_add, norm.gain.as<float>(), norm.eps, rows.num_rows, rows.width, act, out,
                        kernels::padded_inputs(rows.width));
    return out;
}

const std::byte* ComputeContext::block_input(NormPlace place, const Norm& norm, Residual& rows) {
    return place == NormPlace::after ? rounded(rows.x, rows.width, rows.num_rows) : normalised(norm, rows);
}

void ComputeContext::norm_in_place(const Norm& norm, float* x, std::int64_t num_rows, std::int64_t width) {
    apply_norm(device, norm, x, num_rows, width, kernels::DType::f32, reinterpret_cast<std::byte*>(x), width);
}

void ComputeContext::add(Residual& rows) {
    const float* to_add = std::exchange(rows.to_add, nullptr);
    if (to_add != nullptr) device.add(rows.x, to_add, rows.num_rows * rows.width);
}

void ComputeContext::finish() {
    sums.finish();
    device.finish();
}

}  // namespace longhaul::engine
