// What the machine can do at best, measured beside what is timed.
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace longhaul::runner {

class Ceilings {
  public:
    virtual ~Ceilings() = default;
    virtual double bytes_per_second() = 0;
    /// Of products with such weights; 0: not known.
    virtual double flops_per_second(kernels::DType weights) = 0;
};

/// Of the processor's memory and units with `threads` threads; of a device with memory of its own, the bytes that an
/// addition of two long vectors moves (and its bf16 peak, by the device itself, whatever the weights). `device` must
/// outlive them.
std::unique_ptr<Ceilings> make_ceilings(kernels::Device& device, int threads);

}  // namespace longhaul::runner
