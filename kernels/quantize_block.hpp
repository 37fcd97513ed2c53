// Quantizes one block of int8 or int4 weights, on the host (quantized.hpp, which defines blocks) and on a GPU. Not for
// translation units built with vector flags.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/convert.hpp"
#include "kernels/host_device.hpp"

namespace longhaul::kernels {

/// error + rest^2 with denormals kept. GPU code is compiled to flush them, and another error may choose another scale.
/// (The other steps give the same result with flushing.)
LONGHAUL_HOST_DEVICE inline float add_square(float error, float rest) {
#if defined(__CUDA_ARCH__)
    float square, sum;
    asm("mul.rn.f32 %0, %1, %1;" : "=f"(square) : "f"(rest));
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(error), "f"(square));
    return sum;
#else
    return error + rest * rest;
#endif
}

/// Rounds values / scale to the nearest integers within low..high; returns the squared error.
LONGHAUL_HOST_DEVICE inline float quantize_values(const float* values, std::int64_t count, float scale, float low,
                                                  float high, std::int8_t* q) {
    constexpr float to_nearest = 12582912.0F;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
    const float inverse = 1.0F / scale;
    float error = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        float whole = (values[i] * inverse + to_nearest) - to_nearest;
        whole = whole < low ? low : whole > high ? high : whole;
        q[i] = static_cast<std::int8_t>(whole);
        error = add_square(error, values[i] - whole * scale);
    }
    return error;
}

/// The value of largest magnitude, the first one on ties; NaN if there is one.
LONGHAUL_HOST_DEVICE inline float extreme_of(const float* values, std::int64_t count) {
    const auto magnitude = [](float value) {
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
    };
    float extreme = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        if (!(magnitude(values[i]) <= magnitude(extreme))) extreme = values[i];
        if (extreme != extreme) break;
    }
    return extreme;
}

/// The largest number of which all values are multiples, with their extreme at most the 15th; 0 if there is none. It is
/// the scale of weights that were quantized to 4 bits before, possibly with a zero point and in larger blocks.
LONGHAUL_HOST_DEVICE inline float common_step(const float* values, std::int64_t count, float extreme) {
    constexpr float to_nearest = 12582912.0F;
    for (int multiple = 1; multiple <= 15; ++multiple) {
        const float step = extreme / static_cast<float>(multiple);
        const float inverse = 1.0F / step;
        std::int64_t i = 0;
        for (; i < count; ++i) {
            const float whole = (values[i] * inverse + to_nearest) - to_nearest;
            const auto difference =
                std::bit_cast<std::uint32_t>(whole * step) ^ std::bit_cast<std::uint32_t>(values[i]);
            if ((difference & 0x7fffffffU) != 0) break;  // as bits: a denormal is no multiple, also where it is flushed
        }
        if (i == count) return step;
    }
    return 0.0F;
}

/// Quantizes the `count` values of one block to the nearest integers and returns their scale as bf16 bits. int8: the
/// largest value becomes 127. int4: tries several scales near "the largest becomes -8", and the common step of the
/// values with either sign, and takes the one with the least squared error. NaN and infinity make the scale NaN and all
/// q 0.
LONGHAUL_HOST_DEVICE inline std::uint16_t quantize_block(DType dtype, const float* values, std::int64_t count,
                                                         std::int8_t* q) {
    // `smallest`: below it, 1 / scale may be infinite.
    constexpr std::uint32_t infinity = 0x7f800000U, smallest = (127U - 100U) << 23;
    const float extreme = extreme_of(values, count);
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(extreme) & 0x7fffffffU;
    if (magnitude >= infinity || magnitude < smallest) {
        for (std::int64_t i = 0; i < count; ++i) q[i] = 0;
        return magnitude < infinity ? std::uint16_t{0} : std::uint16_t{0x7fc0};
    }
    if (dtype == DType::int8) {
        const std::uint16_t scale = f32_to_bf16(std::bit_cast<float>(magnitude) / 127.0F);
        quantize_values(values, count, bf16_to_f32(scale), -127.0F, 127.0F, q);
        return scale;
    }
    constexpr float divisors[] = {-8.0F, -7.6F, -8.4F, -8.8F, -9.3F, 7.2F, 7.7F};
    constexpr int num_divisors = sizeof divisors / sizeof divisors[0];
    std::uint16_t best = 0;
    std::uint32_t best_error = 0;  // as bits, which order like the numbers: none is below 0 or NaN
    std::int8_t candidate[64];
    const float step = common_step(values, count, extreme);
    for (int c = 0; c < num_divisors + (step != 0.0F ? 2 : 0); ++c) {
        const std::uint16_t scale = f32_to_bf16(c < num_divisors    ? extreme / divisors[c]
                                                : c == num_divisors ? step
                                                                    : -step);
        const auto error =
            std::bit_cast<std::uint32_t>(quantize_values(values, count, bf16_to_f32(scale), -8.0F, 7.0F, candidate));
        if (best != 0 && error >= best_error) continue;
        best = scale;
        best_error = error;
        for (std::int64_t i = 0; i < count; ++i) q[i] = candidate[i];
    }
    return best;
}

}  // namespace longhaul::kernels
