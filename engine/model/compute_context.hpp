// Execution state that the parts of a model (embedding, layers, head) share on one rank: the device, the group's
// collectives, and scratch memory sized for the largest pass so far. Parts run one at a time, so they can share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/weights.hpp"
#include "engine/parallel/device_group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// Device memory that grows on demand and never shrinks. Contents are lost when it grows.
class Scratch {
  public:
    explicit Scratch(kernels::Device& device) : device_(device) {}
    std::byte* bytes(std::size_t num_bytes) {
        if (buffer_.num_bytes() < num_bytes) {
            buffer_ = kernels::Buffer();
            buffer_ = kernels::Buffer(device_, num_bytes);
        }
        return buffer_.data();
    }
    float* floats(std::int64_t count) {
        return reinterpret_cast<float*>(bytes(static_cast<std::size_t>(count) * sizeof(float)));
    }

  private:
    kernels::Device& device_;
    kernels::Buffer buffer_;
};

/// The residual stream, f32 [num_rows, width], and the output of the last block, which the next norm adds to it.
struct Residual {
    float* x = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t width = 0;
    const float* to_add = nullptr;
};

struct ComputeContext {
    /// `act`: type of matmul inputs.
    ComputeContext(kernels::Device& on, DeviceGroup& of, kernels::DType act_type);

    kernels::Device& device;
    DeviceGroup& sums;
    kernels::DType act;
    Scratch normed;     ///< input of the next matmul
    Scratch projected;  ///< output of a block's first matmul
    Scratch queries;
    Scratch head_squares;  ///< of the norms over all heads
    Scratch attended;      ///< input of a block's second matmul
    Scratch sum;           ///< output of a block
    /// Rows of a block's input, and of its output, one for each of their experts. The sums are also those of an MLP
    /// beside attention or experts.
    Scratch expert_inputs, expert_sums, expert_biases;
    Scratch expert_latents,
        expert_latent_sums;               ///< of experts with ExpertConfig::latent_size: their inputs, their sums
    Scratch mixed;                        ///< output of attention before its gate, f32
    Scratch mixer_gates;                  ///< of linear attention: rates and steps
    Scratch latent_parts, latent_inputs;  ///< of latent attention: projections, and inputs of its heads' matmuls
    Scratch layer_embeddings;             ///< of a pass's rows

    /// Matmul input, act [num_rows, padded width]: the rows, rounded.
    const std::byte* rounded(const float* x, std::int64_t width, std::int64_t num_rows);
    /// Matmul input: the rows after adding rows.to_add (if set), normed (only rounded if `norm` is empty).
    const std::byte* normalised(const Norm& norm, Residual& rows);
    const std::byte* normalised(const Norm& norm, const float* x, std::int64_t width, std::int64_t num_rows);
    /// Input of a block's first matmul: the rows, normed, or only rounded if the layer norms after its blocks.
    const std::byte* block_input(NormPlace place, const Norm& norm, Residual& rows);
    /// Norms the rows x, f32 [num_rows, width].
    void norm_in_place(const Norm& norm, float* x, std::int64_t num_rows, std::int64_t width);
    /// Adds rows.to_add to the residual stream, if set.
    void add(Residual& rows);
    /// Waits for the device, so that callers measure completed work. Throws if a collective can never complete.
    void finish();

  private:
    std::byte* inputs(std::int64_t width, std::int64_t num_rows);
};

/// The numbers of a vector of weights, f32; none if the model does not have it.
std::vector<float> to_host(kernels::Device& device, const kernels::Buffer& vector);

/// out [num_rows, out_stride] of `act` = the rows x, f32 [num_rows, width], normed by `norm`, which must not be empty.
/// `out` may be `x` if the norm is a layer norm and `act` is f32.
void apply_norm(kernels::Device& device, const Norm& norm, const float* x, std::int64_t num_rows, std::int64_t width,
                kernels::DType act, std::byte* out, std::int64_t out_stride);

}  // namespace longhaul::engine
