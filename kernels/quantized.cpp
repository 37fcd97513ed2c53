#include "kernels/quantized.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/convert.hpp"

namespace longhaul::kernels {
namespace {

constexpr float to_nearest = 12582912.0F;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number

/// Nearest whole numbers of values / scale within low..high, and the squared error they leave.
float quantize(const float* values, std::int64_t count, float scale, float low, float high, std::int8_t* q) {
    const float inverse = 1.0F / scale;
    float error = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        const float whole = std::clamp((values[i] * inverse + to_nearest) - to_nearest, low, high);
        q[i] = static_cast<std::int8_t>(whole);
        const float rest = values[i] - whole * scale;
        error += rest * rest;
    }
    return error;
}

float extreme_of(const float* values, std::int64_t count) {
    float extreme = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        if (!(std::fabs(values[i]) <= std::fabs(extreme))) extreme = values[i];  // a NaN stays
        if (std::isnan(extreme)) break;
    }
    return extreme;
}

}  // namespace

std::uint16_t quantize_block(DType dtype, const float* values, std::int64_t count, std::int8_t* q) {
    constexpr float smallest = 0x1p-100F;  // below it 1 / scale may be infinite
    const float extreme = extreme_of(values, count);
    if (!std::isfinite(extreme) || std::fabs(extreme) < smallest) {
        std::fill_n(q, count, std::int8_t{0});
        return std::isfinite(extreme) ? std::uint16_t{0} : std::uint16_t{0x7fc0};
    }
    if (dtype == DType::int8) {
        const std::uint16_t scale = f32_to_bf16(std::fabs(extreme) / 127.0F);
        quantize(values, count, bf16_to_f32(scale), -127.0F, 127.0F, q);
        return scale;
    }
    std::uint16_t best = 0;
    float best_error = 0.0F;
    std::array<std::int8_t, 64> candidate{};
    for (const float divisor : {-8.0F, -7.6F, -8.4F, -8.8F, -9.3F, 7.2F, 7.7F}) {
        const std::uint16_t scale = f32_to_bf16(extreme / divisor);
        const float error = quantize(values, count, bf16_to_f32(scale), -8.0F, 7.0F, candidate.data());
        if (best != 0 && !(error < best_error)) continue;
        best = scale;
        best_error = error;
        std::copy_n(candidate.begin(), count, q);
    }
    return best;
}

void load_columns(const WeightRows& part, std::int64_t row, std::int64_t first, std::int64_t count, float* values) {
    const std::int64_t there = std::clamp<std::int64_t>(part.num_columns - first, 0, count);
    const std::int64_t from = row * part.row_stride + part.first_column + first;
    for (std::int64_t i = 0; i < there; ++i) values[i] = load_as_f32(part.data, part.dtype, from + i);
    std::fill(values + there, values + count, 0.0F);
}

}  // namespace longhaul::kernels
