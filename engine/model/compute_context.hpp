// What the parts of a model compute with on one rank: the device, the group's sums, and memory for the rows of the
// widest pass so far. One part runs at a time, so they share it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/weights.hpp"
#include "engine/parallel/device_group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// Grows, never shrinks.
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

/// The residual stream, f32 [num_rows, width], and what the last block gave: the next norm adds it.
struct Residual {
    float* x = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t width = 0;
    const float* to_add = nullptr;
};

struct ComputeContext {
    /// `act`: what matrix products read.
    ComputeContext(kernels::Device& on, DeviceGroup& of, kernels::DType act_type);

    kernels::Device& device;
    DeviceGroup& sums;
    kernels::DType act;
    Scratch normed;     ///< what the next product reads
    Scratch projected;  ///< what a first product of a block gives
    Scratch queries;
    Scratch attended;  ///< what a second product of a block reads
    Scratch sum;       ///< what a block gives

    /// What products read, act [num_rows, padded width]: the rows as they are ...
    const std::byte* rounded(const float* x, std::int64_t width, std::int64_t num_rows);
    /// ... or normed (rounded where `norm` is empty), with what is still to be added.
    const std::byte* normalised(const Norm& norm, Residual& rows);
    const std::byte* normalised(const Norm& norm, const float* x, std::int64_t width, std::int64_t num_rows);
    /// Adds what is still to be added.
    void add(Residual& rows);
    /// Waits for the device: what a caller measures is what was computed, and a sum that will never come is an error
    /// here.
    void finish();

  private:
    std::byte* inputs(std::int64_t width, std::int64_t num_rows);
};

/// out [num_rows, width] of `act` = the rows x, normed by `norm`, which is not empty; `out` may be `x` where that norm
/// is a layer norm and `act` is f32.
void apply_norm(kernels::Device& device, const Norm& norm, const float* x, std::int64_t num_rows, std::int64_t width,
                kernels::DType act, std::byte* out, std::int64_t out_stride);

}  // namespace longhaul::engine
