// Numbers as whole numbers with one scale: keys and values held in int8, and the queries and weights that meet them.
// Products and sums only, which every processor rounds alike. Always inlined: see the wall in cpu/kernel_table.hpp.
#pragma once

#include <cstdint>

#include "kernels/host_device.hpp"

namespace longhaul::kernels {

constexpr float max_quantized_kv = 127.0F;       ///< of keys and values
constexpr float max_quantized_query = 32767.0F;  ///< of queries and weights: 512 products with 127 fit into 32 bits

/// How numbers up to `largest` in magnitude become whole numbers up to `most`: x * inverse, to the nearest even; and
/// back: times scale. Too small (below 2^-100): all zero. Not finite: all zero, and the scale is NaN.
struct QuantizationScale {
    float scale = 0.0F;
    float inverse = 0.0F;

    [[gnu::always_inline]] LONGHAUL_HOST_DEVICE static QuantizationScale of(float largest, float most) {
        if (!(largest < __builtin_inff())) return {__builtin_nanf(""), 0.0F};
        if (largest < 0x1p-100F) return {};
        return {largest / most, most / largest};
    }
    /// NaN where the scale is: 0.
    [[nodiscard]] [[gnu::always_inline]] LONGHAUL_HOST_DEVICE std::int32_t whole(float x) const {
        if (inverse == 0.0F) return 0;
        const float sum = x * inverse + 0x1.8p23F;
        return static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, sum) - 0x4b400000U);
    }
};

/// The largest magnitude; NaN or infinite where a number is.
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
