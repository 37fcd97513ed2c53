// Layout of a packed matrix on the GPU. Values are stored in the order in which the lanes of a warp hold them for an
// mma: weights go from device memory to registers in contiguous reads of 512 bytes, 16 bytes per lane, without any
// exchange or transposition.
//
// A matrix is [tile of 16 outputs][slice][step][step_bytes]. For quantized weights the scales
// [tile][slice][block][8][2] follow (bf16; pair g holds those of outputs g and g + 8). Slices are padded with zeros to
// whole steps, outputs to whole tiles. A step contains, for all 16 outputs of the tile:
//   f32   4 inputs:  [output][input] (not used by an mma)
//   bf16  32 inputs: two fragments of m16n8k16, 512 bytes each
//   int8  64 inputs: two fragments of m16n8k32, 512 bytes each; a step is a block, which shares a scale
//   int4  64 inputs: two fragments of m16n8k32 in 512 bytes; each fragment is a block
//
// bf16: fragment h holds inputs 16h.. of the step in their order, so that rows in shared memory serve as they are
// (ldmatrix, wgmma). Quantized: any assignment of a step's inputs to mma columns is valid, as long as weights and
// inputs agree; lane (g, t) = (lane / 4, lane % 4) holds for its outputs a run of inputs, 16t.. (int8) of the step,
// with half of the run in each fragment. So the inputs that a lane needs from a row are also 16 contiguous bytes.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/host_device.hpp"
#include "kernels/quantized.hpp"

namespace longhaul::kernels::cuda {

constexpr int tile_outputs = 16;

constexpr int step_inputs(DType dtype) {
    return dtype == DType::f32 ? 4 : dtype == DType::bf16 ? 32 : 64;
}

constexpr int step_bytes(DType dtype) {
    return dtype == DType::f32 ? 256 : dtype == DType::int4 ? 512 : 1024;
}

/// Bytes of scales per tile, slice and block.
constexpr int scale_bytes = 2 * tile_outputs;

/// Blocks per step; 0 for types without scales.
constexpr int step_blocks(DType dtype) {
    return dtype == DType::int4 ? 2 : dtype == DType::int8 ? 1 : 0;
}

/// Outputs of a gated matrix are packed in groups of 8: those of the gates and those of the ups alternate, so that each
/// tile, and each lane, holds both. For output n of the packed matrix: its column among the gates (or ups).
LONGHAUL_HOST_DEVICE constexpr std::int64_t gated_column(std::int64_t n) {
    return n / tile_outputs * 8 + n % 8;
}
LONGHAUL_HOST_DEVICE constexpr bool is_up(std::int64_t n) {
    return n % tile_outputs >= 8;
}

/// Byte offset of an input in its step. int4: inputs 4..7 of a lane's run use the upper half of the byte.
constexpr int byte_in_step(DType dtype, int output, int input) {
    const int g = output % 8, upper = output % tile_outputs / 8;
    if (dtype == DType::f32) return output % tile_outputs * 16 + input * 4;
    if (dtype == DType::bf16) {
        const int fragment = input / 16, k = input % 16;
        return fragment * 512 + (g * 4 + k % 8 / 2) * 16 + (k / 8 * 2 + upper) * 4 + k % 2 * 2;
    }
    if (dtype == DType::int8) {
        const int t = input / 16, in_run = input % 16;
        return in_run / 8 * 512 + (g * 4 + t) * 16 + (in_run % 8 / 4 * 2 + upper) * 4 + in_run % 4;
    }
    const int block = input / 32, t = input % 32 / 8, in_run = input % 8;
    return (g * 4 + t) * 16 + (block * 2 + upper) * 4 + in_run % 4;
}

/// The geometry of a packed matrix.
struct WeightLayout {
    DType dtype = DType::bf16;
    int num_slices = 0;
    std::int64_t slice_length = 0;
    std::int64_t steps = 0;  ///< per slice
    std::int64_t num_tiles = 0;

    static constexpr WeightLayout of(const Matrix& matrix) {
        const int inputs = step_inputs(matrix.dtype);
        return {.dtype = matrix.dtype,
                .num_slices = matrix.num_slices,
                .slice_length = matrix.slice_length,
                .steps = (matrix.slice_length + inputs - 1) / inputs,
                .num_tiles = (matrix.num_outputs + tile_outputs - 1) / tile_outputs};
    }

    [[nodiscard]] constexpr std::int64_t scales_offset() const {
        return num_tiles * num_slices * steps * step_bytes(dtype);
    }
    [[nodiscard]] constexpr std::int64_t num_bytes() const {
        return scales_offset() + num_tiles * num_slices * steps * step_blocks(dtype) * scale_bytes;
    }
    [[nodiscard]] constexpr std::int64_t byte_of(std::int64_t output, std::int64_t slice, std::int64_t in_slice) const {
        const int inputs = step_inputs(dtype);
        const std::int64_t step = (output / tile_outputs * num_slices + slice) * steps + in_slice / inputs;
        return step * step_bytes(dtype) +
               byte_in_step(dtype, static_cast<int>(output % tile_outputs), static_cast<int>(in_slice % inputs));
    }
    [[nodiscard]] constexpr std::int64_t scale_of(std::int64_t output, std::int64_t slice, std::int64_t block) const {
        const std::int64_t place = (output / tile_outputs * num_slices + slice) * steps * step_blocks(dtype) + block;
        return scales_offset() + place * scale_bytes + (output % 8 * 2 + output % tile_outputs / 8) * 2;
    }
};

}  // namespace longhaul::kernels::cuda
