// What the machine can do at best: the ceilings beside which benchmarks print their numbers. Measured in the same run
// as the numbers, honestly: memory by reading more than four times the last-level cache with all threads, arithmetic by
// the multiply-add of the bf16 product on registers alone.
#pragma once

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// Bytes per second that `threads` threads together read from memory: the best of several passes and ways of reading
/// (one or four streams a thread). Takes about half a second and max(256 MB, 5 x last-level cache) of memory.
double measure_read_bandwidth(int threads);

/// Operations per second (a multiply-add is two) of `threads` threads. Throws std::invalid_argument where the processor
/// cannot run `variant`; the reference has no ceiling of its own and is refused too.
double measure_peak_flops(CpuVariant variant, int threads);

}  // namespace longhaul::kernels
