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

/// For the job's longest item, and for 4,096, 32,768 and 102,400 positions if they are fewer.
std::vector<LengthCost> length_costs(const ModelParts& parts, const kernels::Device& device, std::int64_t longest);

struct WorkSize {
    std::int64_t new_tokens = 0;      ///< of all items
    std::int64_t mean_positions = 0;  ///< of an item at its end
    std::int64_t batch_size = 1;      ///< items that share a pass over the weights
};

/// Bytes that plain decoding of all items reads: the weights once per pass, and the keys and values of each item, of
/// which it has half on average while it grows (more behind a prompt).
double total_read_bytes(const ModelParts& parts, const kernels::Device& device, const WorkSize& work);

}  // namespace longhaul::runner
