// Ceilings of the machine (memory bandwidth, peak FLOP/s), measured next to each benchmark.
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace longhaul::runner {

class Ceilings {
  public:
    virtual ~Ceilings() = default;
    virtual double bytes_per_second() = 0;
    /// Peak of matmuls with weights of this type; 0: unknown.
    virtual double flops_per_second(kernels::DType weights) = 0;
};

/// Ceilings of the CPU with `threads` threads. For a device with its own memory: the bandwidth of adding two long
/// vectors, and the bf16 peak measured by the device itself, whatever the type of the weights. `device` must outlive
/// the result.
std::unique_ptr<Ceilings> make_ceilings(kernels::Device& device, int threads);

}  // namespace longhaul::runner
