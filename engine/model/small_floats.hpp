// Floating-point types of 8 and 4 bits, as numbers (OCP 8-bit Floating Point and Microscaling Formats specifications).
#pragma once

#include <array>
#include <bit>
#include <limits>

namespace longhaul::engine {

/// F8_E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinity, NaN is 0x7f and 0xff.
constexpr float e4m3(unsigned bits) {
    const unsigned exponent = bits >> 3 & 15U, fraction = bits & 7U, sign = (bits & 0x80U) << 24;
    if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return (sign != 0 ? -0x1p-9F : 0x1p-9F) * static_cast<float>(fraction);
    return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
}

/// E8M0: powers of two; NaN is 0xff.
constexpr float e8m0(unsigned bits) {
    if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(bits == 0 ? 0x400000U : bits << 23);
}

/// E2M1: sign, 2 bits of exponent, 1 of fraction.
inline constexpr std::array<float, 16> e2m1_numbers{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                    -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

}  // namespace longhaul::engine
