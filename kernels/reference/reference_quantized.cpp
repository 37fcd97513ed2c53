// Matmul with int8 and int4 weights in plain loops: the oracle for kernels/cpu/quantized.hpp.
//
// A packed matrix is [outputs][slice][block]: a bf16 scale, then one byte per input, always for a full block.
#include "kernels/reference/reference_quantized.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/quantized.hpp"
#include "kernels/reference/reference_math.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::reference {
namespace {

struct Block {
    std::uint16_t scale = 0;
    std::array<std::int8_t, 64> q{};
};

struct InputBlock {
    float scale = 0.0F;
    std::array<std::int32_t, 64> q{};
};

std::int64_t blocks_of(const Matrix& w) {
    return w.num_slices * quantized_blocks(w.dtype, w.slice_length);
}

/// The inputs of one row and block, quantized as in numerics.hpp.
InputBlock quantize_inputs(const std::byte* x, std::int64_t first, std::int64_t count) {
    InputBlock block;
    float largest = 0.0F;
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = std::fabs(load_as_f32(x, DType::bf16, first + i));
        if (!(value <= largest)) largest = value;
        if (std::isnan(largest)) break;
    }
    if (!std::isfinite(largest)) {
        block.scale = std::numeric_limits<float>::quiet_NaN();
        return block;
    }
    if (largest < 0x1p-100F) return block;
    block.scale = largest / 127.0F;
    const float inverse = 127.0F / largest;
    for (std::int64_t i = 0; i < count; ++i) {
        const float shifted = std::fma(load_as_f32(x, DType::bf16, first + i), inverse, 12582912.0F);
        block.q[i] = static_cast<std::int32_t>(shifted - 12582912.0F);
    }
    return block;
}

std::vector<InputBlock> quantize_row_of_inputs(const Matrix& w, const std::byte* x) {
    const std::int64_t length = quantized_block(w.dtype);
    std::vector<InputBlock> blocks;
    for (int slice = 0; slice < w.num_slices; ++slice) {
        for (std::int64_t first = 0; first < w.slice_length; first += length) {
            blocks.push_back(
                quantize_inputs(x, slice * w.slice_length + first, std::min(length, w.slice_length - first)));
        }
    }
    return blocks;
}

float output_of(const Matrix& w, const Block* weights, const InputBlock* inputs) {
    std::array<float, 8> sums{};
    for (int slice = 0; slice < w.num_slices; ++slice) {
        float& sum = sums[slice];
        for (std::int64_t b = 0; b < quantized_blocks(w.dtype, w.slice_length); ++b, ++weights, ++inputs) {
            const std::int64_t length = quantized_block(w.dtype);
            const std::int64_t count = std::min(length, w.slice_length - b * length);
            std::int32_t dot = 0;
            for (std::int64_t i = 0; i < count; ++i) {
                dot += weights->q[i] * inputs->q[i];
            }
            sum = std::fma(static_cast<float>(dot), bf16_to_f32(weights->scale) * inputs->scale, sum);
        }
    }
    return tree_of_slices(sums, w.num_slices);
}

}  // namespace

void pack_quantized_row(const SourceRow& source, std::int64_t output, Matrix& matrix) {
    Block* blocks = matrix.data.as<Block>() + output * blocks_of(matrix);
    const auto at = [&](std::int64_t slice, std::int64_t b) -> Block& {
        return blocks[slice * quantized_blocks(matrix.dtype, matrix.slice_length) + b];
    };
    quantize_row(
        matrix.dtype, *source.part, source.row, matrix.num_slices, matrix.slice_length,
        [&](std::int64_t slice, std::int64_t b, std::int64_t i, std::int8_t q) { at(slice, b).q[i] = q; },
        [&](std::int64_t slice, std::int64_t b, std::uint16_t scale) { at(slice, b).scale = scale; });
}

std::size_t quantized_bytes(const Matrix& matrix) {
    return static_cast<std::size_t>(matrix.num_outputs * blocks_of(matrix)) * sizeof(Block);
}

float quantized_value(const Matrix& matrix, std::int64_t row, std::int64_t k) {
    const std::int64_t length = quantized_block(matrix.dtype);
    const std::int64_t in_slice = k % matrix.slice_length;
    const std::int64_t index = row * blocks_of(matrix) +
                               k / matrix.slice_length * quantized_blocks(matrix.dtype, matrix.slice_length) +
                               in_slice / length;
    const Block& block = matrix.data.as<Block>()[index];
    return static_cast<float>(block.q[in_slice % length]) * bf16_to_f32(block.scale);
}

void matmul_quantized(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y,
                      int threads) {
    const bool worth_threads = num_rows * w.num_outputs * w.num_inputs > 1'000'000;  // about 3 ms
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const std::vector<InputBlock> inputs = quantize_row_of_inputs(w, x + r * x_stride * 2);
        Team::mine().run(worth_threads ? threads : 1, [&](Member& member) {
            const FlushDenormals flush;
            const auto [first, end] = member.share_of(w.num_outputs);
            for (std::int64_t n = first; n < end; ++n) {
                y[r * w.num_outputs + n] = output_of(w, w.data.as<Block>() + n * blocks_of(w), inputs.data());
            }
        });
    }
}

}  // namespace longhaul::kernels::reference
