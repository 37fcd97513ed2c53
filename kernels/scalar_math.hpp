// Elementary functions of one double with the same bits on every machine, for sampling, noise and rotary angles. Those
// of the C library differ between versions and processors (it picks FMA variants at run time), and a single different
// bit in a probability can change the text. So these use only + - * / and bit operations, which IEEE 754 fixes, in the
// order written here. They rely on -ffp-contract=off (set by the build) and do not depend on flush-to-zero, which our
// threads use.
//
// Accuracy: below 1 ulp, measured against long double in tests/kernels/scalar_math_test.cpp. Coefficients are those of
// Taylor series, with enough terms that the remainder vanishes; sums are arranged so that the small terms are rounded,
// not the large ones.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/host_device.hpp"

namespace longhaul::kernels::scalar {

namespace detail {

// ln 2 in two parts. The first has 42 bits, so that its product with an exponent is exact.
inline constexpr double ln2_high = 0x1.62e42fefa3800p-1;
inline constexpr double ln2_low = 0x1.ef35793c76730p-45;

/// `x` rounded to the nearest integer, ties to even, for |x| < 2^51: adding 1.5 * 2^52 drops the fraction bits.
inline LONGHAUL_HOST_DEVICE double round_to_integer(double x) {
    constexpr double shift = 0x1.8p52;
    return (x + shift) - shift;
}

/// 2^k for k in [-1022, 1023].
inline LONGHAUL_HOST_DEVICE double power_of_two(std::int64_t k) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

/// A positive finite number as mantissa * 2^exponent with mantissa in [sqrt(1/2), sqrt(2)), where the logarithm series
/// is shortest and numbers near 1 keep exponent 0.
struct Parts {
    double mantissa;
    std::int64_t exponent;
};

inline LONGHAUL_HOST_DEVICE Parts split(double x) {
    constexpr auto sqrt_half = std::bit_cast<std::uint64_t>(0x1.6a09e667f3bcdp-1);
    auto bits = std::bit_cast<std::uint64_t>(x);
    std::int64_t subnormal_shift = 0;
    if (bits < (std::uint64_t{1} << 52)) {  // integer test: under DAZ, arithmetic would see a zero
        subnormal_shift = leading_zeros(bits) - 11;
        bits <<= subnormal_shift;
    }
    const std::int64_t exponent = static_cast<std::int64_t>(bits - sqrt_half) >> 52;
    bits -= static_cast<std::uint64_t>(exponent) << 52;
    return {std::bit_cast<double>(bits), exponent - subnormal_shift};
}

/// log((1 + f) * (1 + c) * 2^k) for 1 + f in [sqrt(1/2), sqrt(2)) and a tiny c. With s = f / (2 + f), log(1 + f) = 2
/// atanh(s) = 2s + sR, R = 2s^2/3 + 2s^4/5 + …; and 2s = f - (f^2/2 - s f^2/2), so the large term f is exact and every
/// rounded term is small compared with it.
inline LONGHAUL_HOST_DEVICE double log_of_parts(double f, std::int64_t k, double c) {
    const double s = f / (2.0 + f);
    const double z = s * s;
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double low = (2.0 / 3 + z * (2.0 / 5)) + z2 * (2.0 / 7 + z * (2.0 / 9));
    const double middle = (2.0 / 11 + z * (2.0 / 13)) + z2 * (2.0 / 15 + z * (2.0 / 17));
    const double high = (2.0 / 19 + z * (2.0 / 21)) + z2 * (2.0 / 23);
    const double series = z * (low + z4 * (middle + z4 * high));
    const double half_square = 0.5 * f * f;
    const auto exponent = static_cast<double>(k);
    return exponent * ln2_high - ((half_square - (s * (half_square + series) + (exponent * ln2_low + c))) - f);
}

/// An angle as quadrant * pi/2 + high + low, |high| <= pi/4 and |low| below half an ulp of high.
struct Reduced {
    std::int64_t quadrant;
    double high;
    double low;
};

/// Largest |x| whose multiple of pi/2 has 24 bits: its products with the 29-bit parts below are exact.
inline constexpr double max_angle = 0x1p24;

inline Reduced reduce_angle(double x) {
    constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
    constexpr double part1 = 0x1.921fb54p+0;  // pi/2 in three parts of 29 bits and a remainder
    constexpr double part2 = 0x1.10b4611p-30;
    constexpr double part3 = 0x1.4c4c662p-59;
    constexpr double part4 = 0x1.1701b839a2520p-88;
    const double n = round_to_integer(x * two_over_pi);
    const double a = x - n * part1;  // exact: the operands are close, and multiples of 2^-53
    const double b = n * part2;
    const double sum = a - b;
    const double b_seen = a - sum;
    const double lost = (a - (sum + b_seen)) - (b - b_seen);  // exact rounding error of a - b
    const double rest = (lost - n * part3) - n * part4;
    const double high = sum + rest;
    return {static_cast<std::int64_t>(n), high, (sum - high) + rest};
}

inline double sin_series(double high, double low) {
    const double z = high * high;
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double first = (-1.0 / 6 + z * (1.0 / 120)) + z2 * (-1.0 / 5040 + z * (1.0 / 362880));
    const double second =
        (-1.0 / 39916800 + z * (1.0 / 6227020800)) + z2 * (-1.0 / 1307674368000 + z * (1.0 / 355687428096000));
    return high + (high * z * (first + z4 * second) + low * (1.0 - 0.5 * z));
}

inline double cos_series(double high, double low) {
    const double z = high * high;
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double first = (1.0 / 24 + z * (-1.0 / 720)) + z2 * (1.0 / 40320 + z * (-1.0 / 3628800));
    const double second =
        (1.0 / 479001600 + z * (-1.0 / 87178291200)) + z2 * (1.0 / 20922789888000 + z * (-1.0 / 6402373705728000));
    const double half = 0.5 * z;
    const double large = 1.0 - half;
    return large + (((1.0 - large) - half) + (z2 * (first + z4 * second) - high * low));
}

}  // namespace detail

/// e^x. Results below the smallest normal number are 0.
inline LONGHAUL_HOST_DEVICE double det_exp(double x) {
    if (!(x >= -0x1.6232bdd7abcd2p+9)) return x != x ? x : 0.0;  // ln of the smallest normal number
    if (x > 0x1.62e42fefa39efp+9) return std::numeric_limits<double>::infinity();
    constexpr double one_over_ln2 = 0x1.71547652b82fep+0;
    const double k = detail::round_to_integer(x * one_over_ln2);
    const double r = (x - k * detail::ln2_high) - k * detail::ln2_low;
    const double r2 = r * r;
    const double r4 = r2 * r2;
    const double low = (1.0 / 2 + r * (1.0 / 6)) + r2 * (1.0 / 24 + r * (1.0 / 120));
    const double middle = (1.0 / 720 + r * (1.0 / 5040)) + r2 * (1.0 / 40320 + r * (1.0 / 362880));
    const double high = (1.0 / 3628800 + r * (1.0 / 39916800)) + r2 * (1.0 / 479001600 + r * (1.0 / 6227020800));
    const double value = 1.0 + (r + r2 * (low + r4 * (middle + r4 * high)));
    const auto exponent = static_cast<std::int64_t>(k);
    // 2^1024 is not a double, but value * 2^1024 may be.
    return exponent > 1023 ? 2.0 * value * 0x1p1023 : value * detail::power_of_two(exponent);
}

/// Natural logarithm; -infinity of 0, NaN of negative numbers.
inline LONGHAUL_HOST_DEVICE double det_log(double x) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto bits = std::bit_cast<std::uint64_t>(x);
    if (bits << 1 == 0) return -infinity;
    if (bits >> 63 != 0 || x != x) return std::numeric_limits<double>::quiet_NaN();
    if (x == infinity) return infinity;
    const detail::Parts parts = detail::split(x);
    return detail::log_of_parts(parts.mantissa - 1.0, parts.exponent, 0.0);
}

/// log(1 + x) with full relative precision for tiny x; -infinity of -1, NaN below.
inline LONGHAUL_HOST_DEVICE double det_log1p(double x) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (x > -0x1p-54 && x < 0x1p-54) return x;
    if (x > -0x1.2bec333018866p-2 && x < 0x1.a827999fcef32p-2) return detail::log_of_parts(x, 0, 0.0);
    if (x == -1.0) return -infinity;
    if (!(x > -1.0)) return std::numeric_limits<double>::quiet_NaN();
    if (x == infinity) return infinity;
    const double sum = 1.0 + x;
    const double lost = x < 1.0 ? x - (sum - 1.0) : 1.0 - (sum - x);  // exact rounding error of the sum
    const detail::Parts parts = detail::split(sum);
    return detail::log_of_parts(parts.mantissa - 1.0, parts.exponent, lost / sum);
}

struct SinCos {
    double sin;
    double cos;
};

/// Sine and cosine of an angle in radians, |x| <= 2^24. Beyond that the result is NaN: no caller has such angles, and a
/// wrong result must not look like a right one. Near zeros of the result the absolute error is below 2^-85.
inline SinCos det_sincos(double x) {
    if (!(x >= -detail::max_angle && x <= detail::max_angle)) {
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        return {nan, nan};
    }
    const detail::Reduced angle = detail::reduce_angle(x);
    const double sin = detail::sin_series(angle.high, angle.low);
    const double cos = detail::cos_series(angle.high, angle.low);
    switch (angle.quadrant & 3) {
        case 0:
            return {sin, cos};
        case 1:
            return {cos, -sin};
        case 2:
            return {-sin, -cos};
        default:
            return {-cos, sin};
    }
}

inline double det_sin(double x) {
    return det_sincos(x).sin;
}
inline double det_cos(double x) {
    return det_sincos(x).cos;
}

}  // namespace longhaul::kernels::scalar
