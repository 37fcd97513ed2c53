// x Phi(x), the exact GELU, for finite f32: Phi is the distribution function of the normal distribution. An activation
// of MLPs (gate.hpp); each backend implements it.
//
//   a = |x|;  t = 1 / fma(slope, a, 1)
//   p = c0 + t (c1 + ... + t (c7 + t c8))                by fma, innermost first
//   h = (t * p) * exp(-0.5 * (x * x))                    Phi(-a); exp as in exp_constants.hpp
//   gelu = fma(-a, h, max(0, x))                         x - x Phi(-x), or x Phi(x): without cancellation
//
// c0..c8 fit Phi(-a) exp(a^2 / 2) / t, for a up to 14, with a relative error of 5.3e-8. gelu has an absolute error of
// at most 2.4e-7 (tests/kernels/rows_test.cpp measures it).
#pragma once

namespace longhaul::kernels::gelu_constants {

constexpr float slope = 0x1.5c28f6p-2F;
constexpr int degree = 8;
/// c0..c8. (A GPU reads no arrays of the host.)
constexpr float coefficient(int i) {
    constexpr float c[] = {0x1.15c034p-3F, 0x1.16c206p-3F,  0x1.d7d906p-4F, 0x1.d8850ep-4F, -0x1.6e617p-5F,
                           0x1.9e16f2p-3F, -0x1.17b296p-2F, 0x1.1db498p-3F, -0x1.abfa1ap-6F};
    return c[i];
}

}  // namespace longhaul::kernels::gelu_constants
