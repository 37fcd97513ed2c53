// What the machine can do at best, measured beside what is timed.
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace longhaul::runner {

class Ceilings {
  public:
    virtual ~Ceilings() = default;
    virtual double bytes_per_second() = 0;
    virtual double flops_per_second() = 0;  ///< 0: not known
};

/// Of the processor's memory and units with `threads` threads; of a device with memory of its own, the bytes that an
/// addition of two long vectors moves (and its peak by the device itself). `device` must outlive them.
std::unique_ptr<Ceilings> make_ceilings(kernels::Device& device, int threads);

}  // namespace longhaul::runner
