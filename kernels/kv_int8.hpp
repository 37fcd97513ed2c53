// Quantization to integers with one scale: the int8 KV cache, and the queries and attention weights multiplied with it.
// Uses only multiplications, divisions and additions, which every processor rounds alike. Always inlined: see "the
// wall" in cpu/kernel_table.hpp.
#pragma once

#include <cstdint>

#include "kernels/host_device.hpp"

namespace longhaul::kernels {

/// For keys and values.
constexpr float max_quantized_kv = 127.0F;
/// For queries and weights: the sum of 512 products with 127 fits into 32 bits.
constexpr float max_quantized_query = 32767.0F;

/// Maps numbers of magnitude up to `largest` to integers of magnitude up to `most`: x * inverse, rounded to nearest
/// even; back: times scale. If `largest` is below 2^-100, all integers are 0. If it is not finite, all integers are 0
/// and the scale is NaN.
struct QuantizationScale {
    float scale = 0.0F;
    float inverse = 0.0F;

    [[gnu::always_inline]] LONGHAUL_HOST_DEVICE static QuantizationScale of(float largest, float most) {
        if (!(largest < __builtin_inff())) return {__builtin_nanf(""), 0.0F};
        if (largest < 0x1p-100F) return {};
        return {largest / most, most / largest};
    }
    /// The integer for x; 0 if the scale is NaN.
    [[nodiscard]] [[gnu::always_inline]] LONGHAUL_HOST_DEVICE std::int32_t whole(float x) const {
        if (inverse == 0.0F) return 0;
        const float sum = x * inverse + 0x1.8p23F;
        return static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, sum) - 0x4b400000U);
    }
};

/// The largest magnitude; NaN or infinity if a number is.
[[gnu::always_inline]] inline float largest_magnitude(const float* x, std::int64_t count) {
    float largest = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        const float magnitude = __builtin_fabsf(x[i]);
        if (magnitude != magnitude) return magnitude;
        if (magnitude > largest) largest = magnitude;
    }
    return largest;
}

}  // namespace longhaul::kernels
