// The f32 exponential of the numerics (numerics.hpp). reference/reference_math.hpp implements it for one value,
// cpu/rows.hpp for vector registers.
//
//   x' = max(lowest, min(highest, x))                    (so exp saturates at exp(88); below -87 the result is 0)
//   t  = fma(x', log2_e, round_magic);  n = t - round_magic     n = round-to-nearest-even(x' / ln 2), no conversion
//   r  = fma(n, -ln2_low, fma(n, -ln2_high, x'))         |r| <= ln 2 / 2
//   q  = c0 + r (c1 + r (c2 + r (c3 + r c4)))            by fma, innermost first
//   e  = (fma(r * r, q, r) + 1) * 2^n                    2^n from the low bits of t, or by an instruction that scales;
//                                                      exact, n is in -126..127
//
// c0..c4 interpolate (e^r - 1 - r) / r^2 at the Chebyshev nodes of the interval: the relative error is 1.0e-8 for the
// polynomial, at most 1.04 ulp for the result (tests/kernels/rows_test.cpp measures it). exp(0) is exactly 1.
#pragma once

namespace longhaul::kernels::exp_constants {

constexpr float highest = 88.0F;
constexpr float lowest = -87.0F;
constexpr float log2_e = 0x1.715476p+0F;
constexpr float round_magic = 0x1.8p+23F;
constexpr float ln2_high = 0x1.62e43p-1F;
constexpr float ln2_low = -0x1.05c61p-29F;
constexpr float c0 = 0.5F;
constexpr float c1 = 0x1.5554dcp-3F;
constexpr float c2 = 0x1.555518p-5F;
constexpr float c3 = 0x1.120c62p-7F;
constexpr float c4 = 0x1.6d11fep-10F;

// gelu(x) = x / (1 + exp(gelu_slope (x + gelu_cubic x^3))), the tanh approximation.
constexpr float gelu_cubic = 0.044715F;
constexpr float gelu_slope = -1.5957691216057308F;  ///< -2 sqrt(2 / pi)

}  // namespace longhaul::kernels::exp_constants
