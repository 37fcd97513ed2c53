// Sums over the GPUs of a tensor-parallel group, without the host between them.
#pragma once

#include <memory>

#include "kernels/cuda/runtime.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

/// Of GPU `gpu`, whose operations run on `stream`, which outlives them. nullptr in a build without NCCL.
std::unique_ptr<DeviceLinks> make_links(const Stream& stream, int gpu);

/// out[i] = the i-th elements of `parts` as a balanced tree (sum_ranks.hpp). parts: f32 [num_parts, count]; `out` is
/// none of them. 1, 2, 4 or 8 parts.
void sum_parts(const Stream& stream, float* out, const float* parts, int num_parts, std::int64_t count);

}  // namespace longhaul::kernels::cuda
