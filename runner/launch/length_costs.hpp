// What a text of some length costs on a rank: memory, and the time that plain decoding of a token takes. Shown by
// `check`.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "runner/launch/memory_plan.hpp"

namespace longhaul::runner {

struct LengthCost {
    std::int64_t positions = 0;
    std::int64_t kv_bytes = 0;    ///< of one item, including draft models
    std::int64_t read_bytes = 0;  ///< by a pass of the target over one token
};

/// For 4,096, 32,768 and 102,400 positions, as far as the model's context goes; for the context if it is shorter.
std::vector<LengthCost> length_costs(const ModelParts& parts, const kernels::Device& device);

}  // namespace longhaul::runner
