// Matmul with bf16 and f32 weights, bit-identical to the CPU devices. Each thread computes the chain of one slice with
// fused multiply-adds in the order of numerics.hpp, for two outputs and a few rows. All threads of a slice read the
// same word of a row's inputs; each reads 16 bytes of weights, next to those of its neighbours. A chain has 512 or more
// dependent steps, so the kernel is limited by latency, not by memory. The tensor core kernels are the fast ones
// (matmul_stream.cuh).
#pragma once

#include "kernels/convert.hpp"
#include "kernels/cuda/matmul.cuh"

namespace longhaul::kernels::cuda {

constexpr int exact_tiles = 4;  ///< per block
constexpr int exact_threads_of_slice = exact_tiles * 8;

/// Bytes of shared memory per block.
constexpr std::size_t exact_bytes(int num_slices, int rows) {
    return static_cast<std::size_t>(num_slices) * static_cast<std::size_t>(rows) * exact_tiles * tile_outputs *
           sizeof(float);
}

/// Loads inputs 4q..4q+3 of a slice for outputs g and g + 8 of a tile. `slice`: start of its steps.
template <DType type>
__device__ __forceinline__ void load_quad(const std::byte* slice, std::int64_t quad, int g, float (&w)[2][4]) {
    if constexpr (type == DType::bf16) {
        const int fragment = static_cast<int>(quad % 8 / 4), half = static_cast<int>(quad % 4 / 2);
        const int t = static_cast<int>(quad % 2 * 2);
        const std::byte* const from =
            slice + quad / 8 * step_bytes(type) + fragment * 512 + (g * 4 + t) * 16 + half * 8;
        const auto first = *reinterpret_cast<const uint2*>(from), second = *reinterpret_cast<const uint2*>(from + 16);
        const std::uint32_t words[2][2] = {{first.x, second.x}, {first.y, second.y}};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                w[i][2 * k] = low_of(words[i][k]);
                w[i][2 * k + 1] = high_of(words[i][k]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4 a = load_16(slice + quad * step_bytes(type) + (g + 8 * i) * 16);
            w[i][0] = __uint_as_float(a.x);
            w[i][1] = __uint_as_float(a.y);
            w[i][2] = __uint_as_float(a.z);
            w[i][3] = __uint_as_float(a.w);
        }
    }
}

/// Returns sum + two products, for inputs k and k + 1 (even k) of the row `x`.
template <DType type>
__device__ __forceinline__ float add_pair(float sum, const float* w, const std::byte* x, std::int64_t k) {
    if constexpr (type == DType::bf16) {
        const std::uint32_t pair = __ldg(reinterpret_cast<const std::uint32_t*>(x) + k / 2);
        sum = __fmaf_rn(w[1], high_of(pair), sum);
        return __fmaf_rn(w[0], low_of(pair), sum);
    } else {
        sum = __fmaf_rn(w[0], __ldg(reinterpret_cast<const float*>(x) + k), sum);
        return __fmaf_rn(w[1], __ldg(reinterpret_cast<const float*>(x) + k + 1), sum);
    }
}

/// Grid: groups of `rows` rows; groups of 4 tiles of outputs. Block: [slice][tile][g].
template <DType type, int rows>
__global__ void __launch_bounds__(256) exact_matmul(MatmulJob job) {
    float* const sums = shared_memory<float>();  // [slice][rows][outputs]
    const int num_slices = job.layout.num_slices;
    const int slice = static_cast<int>(threadIdx.x) / exact_threads_of_slice;
    const int tile = static_cast<int>(threadIdx.x) % exact_threads_of_slice / 8, g = static_cast<int>(threadIdx.x) % 8;
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * exact_tiles;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * rows;
    float sum[rows][2] = {};
    if (first_tile + tile < job.layout.num_tiles) {
        const std::byte* const weights =
            job.weights + ((first_tile + tile) * num_slices + slice) * job.layout.steps * step_bytes(type);
        const std::byte* x[rows];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            const std::int64_t row = first_row + r < job.num_rows ? first_row + r : job.num_rows - 1;
            x[r] = job.x + (row * job.x_stride + slice * job.x_slice) * static_cast<std::int64_t>(bytes_of(type));
        }
        const std::int64_t length = job.layout.slice_length;
        for (std::int64_t k = 0; k < length; k += 4) {
            float w[2][4];
            load_quad<type>(weights, k / 4, g, w);
            // Padding is skipped, not added: -0 + 0 would change the sign of zero.
            const bool whole = k + 2 < length;
#pragma unroll
            for (int r = 0; r < rows; ++r) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    sum[r][i] = add_pair<type>(sum[r][i], w[i], x[r], k);
                    if (whole) sum[r][i] = add_pair<type>(sum[r][i], w[i] + 2, x[r], k + 2);
                }
            }
        }
    }
    constexpr int outputs = exact_tiles * tile_outputs;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sums[(slice * rows + r) * outputs + tile * tile_outputs + g + 8 * i] = sum[r][i];
        }
    }
    __syncthreads();
    add_slices(job, {first_tile * tile_outputs, first_row, outputs, rows, 0}, sums, num_slices, outputs);
}

}  // namespace longhaul::kernels::cuda
