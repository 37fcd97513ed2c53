// What the machine can do at best: the ceilings beside which benchmarks print their numbers. Measured in the same run
// as the numbers, honestly: memory by reading more than four times the last-level cache with all threads, arithmetic by
// the multiply-add of the bf16 product on registers alone.
#pragma once

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// What memory gives `threads` threads together. Holds max(256 MB, 5 x last-level cache), touched once: on virtual
/// machines the first touch of a page costs far more than reading it ever will.
class ReadBandwidth {
  public:
    explicit ReadBandwidth(int threads);
    ReadBandwidth(const ReadBandwidth&) = delete;
    ReadBandwidth& operator=(const ReadBandwidth&) = delete;
    ~ReadBandwidth();

    /// Bytes per second over several passes, by the faster of two ways of reading (one or four streams a thread); takes
    /// about a tenth of a second, as long as a pass of a model: the luckiest of short ones would be no ceiling for it.
    double measure();

  private:
    int threads_;
    std::int64_t num_bytes_;
    std::byte* data_;
};

/// Operations per second (a multiply-add is two) of `threads` threads by the instruction that multiplies `weights`;
/// int4 as int8. Throws std::invalid_argument where the processor cannot run `variant`; the reference has no ceiling of
/// its own and is refused too.
double measure_peak_flops(CpuVariant variant, int threads, DType weights = DType::bf16);

}  // namespace longhaul::kernels
