// The limits of the machine, printed next to benchmark results (runner/bench/ceilings.cpp) and measured in the same
// run: memory bandwidth by reading more than four times the last-level cache with all threads, arithmetic by the
// multiply-add of the bf16 matmul on registers alone.
#pragma once

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// Read bandwidth of `threads` threads together. Holds max(256 MB, 5 x last-level cache), at most `max_bytes`, touched
/// once: on virtual machines the first touch of a page costs far more than all later reads.
class ReadBandwidth {
  public:
    explicit ReadBandwidth(int threads, std::int64_t max_bytes = std::int64_t{1} << 40);
    ReadBandwidth(const ReadBandwidth&) = delete;
    ReadBandwidth& operator=(const ReadBandwidth&) = delete;
    ~ReadBandwidth();

    /// Bytes per second over several passes, by the faster of two access patterns (one or four streams per thread).
    /// Takes about a tenth of a second, as long as a forward pass: the best of some short measurements would exceed
    /// what a pass can reach.
    double measure();

  private:
    int threads_;
    std::int64_t num_bytes_;
    std::byte* data_;
};

/// Operations per second (a multiply-add is two) of `threads` threads, by the multiply-add instruction for `weights`;
/// int4 as int8. Throws std::invalid_argument if the processor cannot run `variant`, and for the reference, which has
/// no peak of its own.
double measure_peak_flops(CpuVariant variant, int threads, DType weights = DType::bf16);

}  // namespace longhaul::kernels
