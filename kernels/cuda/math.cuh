// Elementary functions, sums and conversions of the contract for one GPU thread, bit-identical to the CPU
// (numerics.hpp, exp_constants.hpp), and vectorized loads and stores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/convert.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/exp_constants.hpp"

namespace longhaul::kernels::cuda {

/// e^x = mantissa * power, as exp_constants.hpp defines it, for x from `lowest` to `highest`.
struct Exponential {
    float mantissa, power;

    explicit __device__ __forceinline__ Exponential(float x) {
        namespace c = exp_constants;
        const float t = __fmaf_rn(x, c::log2_e, c::round_magic);
        const float n = t - c::round_magic;
        const float r = __fmaf_rn(n, -c::ln2_low, __fmaf_rn(n, -c::ln2_high, x));
        float q = __fmaf_rn(r, c::c4, c::c3);
        q = __fmaf_rn(r, q, c::c2);
        q = __fmaf_rn(r, q, c::c1);
        q = __fmaf_rn(r, q, c::c0);
        mantissa = __fmaf_rn(r * r, q, r) + 1.0F;
        power = __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000U);
    }
};

/// e^x as exp_constants.hpp defines it. NaN stays NaN.
__device__ __forceinline__ float exp_of(float x) {
    namespace c = exp_constants;
    const float below_highest = c::highest < x ? c::highest : x;
    const Exponential e(c::lowest > below_highest ? c::lowest : below_highest);
    return x < c::lowest ? 0.0F : e.mantissa * e.power;
}

/// See Device::soft_cap.
__device__ __forceinline__ float soft_capped(float x, float cap) {
    return cap - 2.0F * cap / (1.0F + exp_of(__fmul_rn(x, 2.0F / cap)));
}

/// 1 + exp_of(x), for x from `lowest` to `highest`: the product is exact.
__device__ __forceinline__ float one_plus_exp(float x) {
    const Exponential e(x);
    return __fmaf_rn(e.mantissa, e.power, 1.0F);
}

/// x / y with the steps that the compiler emits for a division, but without its branch for operands that need scaling:
/// y and its reciprocal are normal numbers, and so is the quotient unless y is 2 or x is 0. The remainder is negated,
/// so that the sign of a zero is right.
__device__ __forceinline__ float quotient_of(float x, float y) {
    const float near = reciprocal_of(y);
    const float reciprocal = __fmaf_rn(near, __fmaf_rn(-y, near, 1.0F), near);
    const float quotient = __fmul_rn(x, reciprocal);
    return __fmaf_rn(-reciprocal, __fmaf_rn(y, quotient, -x), quotient);
}

/// Adds lanes 0..15 of a warp (and lanes 16..31) as a balanced tree: i with i + 8, then + 4, + 2, + 1. All lanes must
/// call; the sum is in lane 0 (and 16).
__device__ __forceinline__ float lane_tree(float sum) {
    for (int half = 8; half > 0; half /= 2) sum = sum + __shfl_down_sync(full_warp, sum, half);
    return sum;
}

/// The two bf16 elements of a word as f32.
__device__ __forceinline__ float bf16_low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000U);
}

/// Two of the four signed bytes of a word as bf16, exactly: 128 plus the low seven bits, less 128 or, if the byte is
/// negative, 256. upper_byte: 0x43, that of 128; faster if the compiler does not know it.
template <unsigned low, unsigned high>
__device__ __forceinline__ std::uint32_t bf16_of_bytes(std::uint32_t bytes, std::uint32_t upper_byte) {
    constexpr unsigned of_second = 4;
    const std::uint32_t pair = __byte_perm(bytes, upper_byte, low | of_second << 4 | high << 8 | of_second << 12);
    return difference_of_bf16(pair & 0xff7fff7fU, pair & 0xff80ff80U);
}

__device__ __forceinline__ float minus_infinity() {
    return __uint_as_float(0xff800000U);
}
__device__ __forceinline__ float quiet_nan() {
    return __uint_as_float(0x7fc00000U);
}

/// Loads `count` floats; `from` must be aligned to their size.
template <int count>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[count]) {
    static_assert(count == 1 || count == 2 || count == 4);
    if constexpr (count == 4) {
        const auto all = *reinterpret_cast<const float4*>(from);
        to[0] = all.x;
        to[1] = all.y;
        to[2] = all.z;
        to[3] = all.w;
    } else if constexpr (count == 2) {
        const auto all = *reinterpret_cast<const float2*>(from);
        to[0] = all.x;
        to[1] = all.y;
    } else {
        to[0] = from[0];
    }
}

/// Rounds two values to bf16, the first in the low half.
__device__ __forceinline__ std::uint32_t bf16_pair(float first, float second) {
    return static_cast<std::uint32_t>(f32_to_bf16(first)) | static_cast<std::uint32_t>(f32_to_bf16(second)) << 16;
}

/// Stores `count` values, as f32 or rounded to bf16, to elements index.. of `to`; the address must be aligned to their
/// size.
template <int count>
__device__ __forceinline__ void store_act(std::byte* to, bool bf16, std::int64_t index, const float (&values)[count]) {
    static_assert(count == 1 || count == 2 || count == 4);
    if (!bf16) {
        float* const at = reinterpret_cast<float*>(to) + index;
        if constexpr (count == 4) {
            *reinterpret_cast<float4*>(at) = make_float4(values[0], values[1], values[2], values[3]);
        } else if constexpr (count == 2) {
            *reinterpret_cast<float2*>(at) = make_float2(values[0], values[1]);
        } else {
            *at = values[0];
        }
        return;
    }
    std::uint16_t* const at = reinterpret_cast<std::uint16_t*>(to) + index;
    if constexpr (count == 4) {
        *reinterpret_cast<uint2*>(at) = make_uint2(bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]));
    } else if constexpr (count == 2) {
        *reinterpret_cast<std::uint32_t*>(at) = bf16_pair(values[0], values[1]);
    } else {
        *at = f32_to_bf16(values[0]);
    }
}

}  // namespace longhaul::kernels::cuda
