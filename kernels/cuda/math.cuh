// Elementary steps of the contract (numerics.hpp) for one value, as GPU code; reference_math.hpp says the same on the
// host. Nothing here is CUDA's own exp or an approximate instruction.
#pragma once

#include "kernels/cuda/gpu.hpp"
#include "kernels/exp_constants.hpp"

namespace longhaul::kernels::cuda {

/// e^x as exp_constants.hpp defines it. NaN stays NaN.
__device__ __forceinline__ float exp_of(float x) {
    namespace c = exp_constants;
    const float below_highest = c::highest < x ? c::highest : x;
    const float clamped = c::lowest > below_highest ? c::lowest : below_highest;
    const float t = __fmaf_rn(clamped, c::log2_e, c::round_magic);
    const float n = __fsub_rn(t, c::round_magic);
    const float r = __fmaf_rn(n, -c::ln2_low, __fmaf_rn(n, -c::ln2_high, clamped));
    float q = __fmaf_rn(r, c::c4, c::c3);
    q = __fmaf_rn(r, q, c::c2);
    q = __fmaf_rn(r, q, c::c1);
    q = __fmaf_rn(r, q, c::c0);
    const float mantissa = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), q, r), 1.0F);
    const float power = __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000U);
    return x < c::lowest ? 0.0F : __fmul_rn(mantissa, power);
}

/// Nearest even; NaN stays NaN (quiet). In the low half of the word.
__device__ __forceinline__ std::uint32_t bf16_bits(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return (bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16) | 0x40U : rounded;
}

/// Two values rounded to bf16, the first in the low half.
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
    return bf16_bits(low) | bf16_bits(high) << 16;
}

__device__ __forceinline__ float bf16_low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000U);
}

__device__ __forceinline__ float minus_infinity() {
    return __uint_as_float(0xff800000U);
}

}  // namespace longhaul::kernels::cuda
