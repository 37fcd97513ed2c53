// What the kernels of rotation and attention read of a pass, in device memory. begin_pass brings the slots and angles
// there once; rows, paths and pages of attention are brought by attention itself, in the order of its work
// (attention_plan.hpp), with the first layer of the pass.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

struct DevicePass {
    PassRows host;                  ///< as begin_pass was given it
    std::uint64_t number = 0;       ///< of this pass, from 1: what was made for an earlier one is stale
    const KvSlot* slots = nullptr;  ///< device [host.slots.size()]
    const float* cos = nullptr;     ///< device [host.slots.size(), head_dim / 2], as sin; 8-byte aligned
    const float* sin = nullptr;
};

}  // namespace longhaul::kernels::cuda
