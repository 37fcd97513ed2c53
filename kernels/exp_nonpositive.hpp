// The f64 exponential of the sampling loops, on the host (engine/sampling, engine/verify) and in GPU kernels.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.hpp"

namespace longhaul::kernels::scalar {

/// exp for x <= 0, accurate to about 1e-11: 2^k times a polynomial in the remainder. Branch-free, so the compiler
/// vectorises loops of it (with -fno-trapping-math); the same bits on every machine.
inline LONGHAUL_HOST_DEVICE double exp_nonpositive(double x) {
    constexpr double log2e = 1.4426950408889634;
    constexpr double ln2_high = 0.693147180369123816490;
    constexpr double ln2_low = 1.90821492927058770002e-10;
    constexpr double shifter = 0x1.8p52;
    x = x < -700.0 ? -700.0 : x;
    const double shifted = x * log2e + shifter;
    const double k = shifted - shifter;
    const double r = (x - k * ln2_high) - k * ln2_low;
    double sum = 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    const auto bits = std::bit_cast<std::uint64_t>(shifted) << 52;  // low bits of `shifted` hold k
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + bits);
}

}  // namespace longhaul::kernels::scalar
