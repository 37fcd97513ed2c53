// Shared by the self-tests of instructions whose rounding the manuals leave open or other processors might not share.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace longhaul::kernels::cpu {
namespace {

/// Random numbers of all magnitudes from a linear congruential generator, as bf16 or f32 bits; no infinities.
struct Numbers {
    std::uint64_t state = 20250401;

    std::uint32_t next(std::uint32_t exponent_from, std::uint32_t exponents) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const auto bits = static_cast<std::uint32_t>(state >> 32);
        return (bits & 0x807fffffU) | ((exponent_from + (bits >> 16 & 0xffffU) % exponents) << 23);
    }
    std::uint32_t next_pair(std::uint32_t exponent_from, std::uint32_t exponents) {
        const std::uint32_t odd = next(exponent_from, exponents) & 0xffff0000U;
        return odd | next(exponent_from, exponents) >> 16;
    }
};

/// Sets FTZ and DAZ while it exists.
class FlushHere {
  public:
    FlushHere() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    FlushHere(const FlushHere&) = delete;
    FlushHere& operator=(const FlushHere&) = delete;
    ~FlushHere() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
};

}  // namespace
}  // namespace longhaul::kernels::cpu
