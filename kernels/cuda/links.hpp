// All-reduce over the GPUs of a tensor-parallel group, without the host in between.
#pragma once

#include <memory>

#include "kernels/cuda/runtime.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

/// Whether this program was built with NCCL.
bool built_with_links();

/// Links of GPU `gpu`, whose operations run on `stream`; `stream` must outlive them. nullptr in a build without NCCL.
std::unique_ptr<DeviceLinks> make_links(const Stream& stream, int gpu, SumOrder order);

/// out[i] = sum of the i-th elements of `parts`, added as a balanced tree (sum_ranks.hpp). parts: f32 [num_parts,
/// count]; `out` must not overlap them. 1, 2, 4 or 8 parts.
void sum_parts(const Stream& stream, float* out, const float* parts, int num_parts, std::int64_t count);

}  // namespace longhaul::kernels::cuda
