// Quantization of int8 and int4 weights. The order of the sums over them is in numerics.hpp.
//
// A slice of a row is cut into blocks of inputs that share one bf16 scale. Blocks do not cross slices, so they are
// independent of tensor parallelism; the last block of a slice may be shorter. value = scale * q, with q in -127..127
// or -8..7.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/quantize_block.hpp"

namespace longhaul::kernels {

constexpr bool is_quantized(DType dtype) {
    return dtype == DType::int8 || dtype == DType::int4;
}

/// Inputs per block: those that share a scale.
constexpr std::int64_t quantized_block(DType dtype) {
    return dtype == DType::int8 ? 64 : 32;
}

/// Blocks, and so scales, per slice.
constexpr std::int64_t quantized_blocks(DType dtype, std::int64_t slice_length) {
    return (slice_length + quantized_block(dtype) - 1) / quantized_block(dtype);
}

/// Quantizes one source row. Calls `put(slice, block, i, q)` for each input and `put_scale(slice, block, bf16 bits)`
/// for each block.
template <typename Put, typename PutScale>
void quantize_row(DType dtype, const WeightRows& part, std::int64_t row, int num_slices, std::int64_t slice_length,
                  Put put, PutScale put_scale);

/// Columns first..first + count of a source row as f32, zeros beyond its last column.
void load_columns(const WeightRows& part, std::int64_t row, std::int64_t first, std::int64_t count, float* values);

template <typename Put, typename PutScale>
void quantize_row(DType dtype, const WeightRows& part, std::int64_t row, int num_slices, std::int64_t slice_length,
                  Put put, PutScale put_scale) {
    const std::int64_t length = quantized_block(dtype);
    float values[64];
    std::int8_t q[64];
    for (std::int64_t slice = 0; slice < num_slices; ++slice) {
        for (std::int64_t block = 0; block * length < slice_length; ++block) {
            const std::int64_t first = block * length;
            const std::int64_t count = slice_length - first < length ? slice_length - first : length;
            load_columns(part, row, slice * slice_length + first, count, values);
            put_scale(slice, block, quantize_block(dtype, values, count, q));
            for (std::int64_t i = 0; i < count; ++i) put(slice, block, i, q[i]);
        }
    }
}

}  // namespace longhaul::kernels
