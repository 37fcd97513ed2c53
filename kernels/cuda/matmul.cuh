// Shared by the matmul kernels: their arguments, and how the sums of slices become outputs.
//
// The order of sums never depends on the number of rows, the tile or the GPU. One warp (or thread) computes a slice as
// one chain of additions, and slices are added as the balanced tree of numerics.hpp, wherever they were computed: a
// block computes all slices of its outputs, or (`split`) a subtree of them, and the last block to end adds the
// subtrees.
#pragma once

#include <cstdint>

#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/weight_layout.hpp"

namespace longhaul::kernels::cuda {

/// y[r, n] = sum_k W[n, k] x[r, k].
struct MatmulJob {
    const std::byte* weights = nullptr;  ///< in the layout of weight_layout.hpp
    WeightLayout layout;
    std::int64_t num_outputs = 0;
    const std::byte* x = nullptr;  ///< act [num_rows, x_stride]; slice s starts at element s * x_slice
    std::int64_t x_stride = 0;
    std::int64_t x_slice = 0;
    std::int64_t num_rows = 0;
    float* y = nullptr;  ///< f32 [num_rows, num_outputs]
    // quantized weights only
    const float* x_scales = nullptr;  ///< f32 [num_slices * steps * step_blocks, scale_rows]
    std::int64_t scale_rows = 0;
    // if blocks compute subtrees
    int split = 1;
    float* parts = nullptr;       ///< f32 [split, num_rows, num_outputs]
    unsigned* arrived = nullptr;  ///< counter per tile of outputs and rows; 0 before and after the kernel
    // gated_matmul only
    std::int64_t gated_width = 0;  ///< columns of `active`; 0: not gated
    Gate gate = Gate::silu;
    bool active_bf16 = false;     ///< type of `active`: bf16 or f32
    std::byte* active = nullptr;  ///< [num_rows, active_stride]; y and `parts` are then scratch
    std::int64_t active_stride = 0;
};

/// Column of y and of `parts` for output n of the packed matrix, -1 if it is padding. In a gated matrix the tiles hold
/// 8 gates followed by their 8 ups, and y holds all gates followed by all ups.
__device__ __forceinline__ std::int64_t column_of(const MatmulJob& job, std::int64_t n) {
    if (job.gated_width == 0) return n < job.num_outputs ? n : -1;
    const std::int64_t column = gated_column(n);
    if (column >= job.gated_width) return -1;
    return is_up(n) ? job.gated_width + column : column;
}

__device__ __forceinline__ void store_gated(const MatmulJob& job, std::int64_t row, std::int64_t column, float gate,
                                            float up) {
    const float value[1] = {gated(job.gate, gate, up)};
    store_act(job.active + row * job.active_stride * (job.active_bf16 ? 2 : 4), job.active_bf16, column, value);
}

/// Adds 1, 2, 4 or 8 slices as a balanced tree.
template <class Sum>
__device__ __forceinline__ float tree_of_slices(int count, Sum sum) {
    float sums[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) sums[s] = s < count ? sum(s) : 0.0F;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        if (step < count) {
#pragma unroll
            for (int s = 0; s < 8; s += 2 * step) sums[s] = __fadd_rn(sums[s], sums[s + step]);
        }
    }
    return sums[0];
}

/// The outputs (first_output.., `outputs` of them) and rows (first_row..) that a block computes.
struct BlockTile {
    std::int64_t first_output, first_row;
    int outputs, rows;
    int index;  ///< index in `arrived`
};

/// Whether this block is the last of the `split` blocks of its tile, so that all parts are written. Called by all
/// threads of the block; overwrites the start of its shared memory.
__device__ inline bool last_of_tile(const MatmulJob& job, int index) {
    auto* const before = shared_memory<unsigned>();
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicAdd(job.arrived + index, 1U);
    __syncthreads();
    if (*before + 1 != static_cast<unsigned>(job.split)) return false;
    __threadfence();
    if (threadIdx.x == 0) job.arrived[index] = 0;
    return true;
}

/// Calls visit(i, column, row) for each column of `active` that a block computes; gate i of the block's outputs is at
/// i / 8 * 16 + i % 8, its up 8 places later.
template <class Visit>
__device__ __forceinline__ void for_each_gated(const MatmulJob& job, const BlockTile& tile, Visit visit) {
    const int columns = tile.outputs / 2;
    for (int i = static_cast<int>(threadIdx.x); i < columns * tile.rows; i += static_cast<int>(blockDim.x)) {
        const std::int64_t column = tile.first_output / 2 + i % columns;
        if (column < job.gated_width && tile.first_row + i / columns < job.num_rows) {
            visit(i % columns, column, i / columns);
        }
    }
}

/// Adds `values` sums of `split` parts for each of `count` elements: `from(i)` is where the first part of the first
/// value of element i is, a valid address also for elements outside the matrix; `store(i, sums)` stores them. Up to
/// max_loads loads of a thread are in flight together: they take most of the time.
template <int split, int values, int max_loads, class From, class Store>
__device__ __forceinline__ void add_elements(const MatmulJob& job, int count, From from, Store store) {
    constexpr int batch = max_loads / (split * values) > 0 ? max_loads / (split * values) : 1;
    const std::int64_t part = job.num_rows * job.num_outputs;
    const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < count; first += batch * threads) {
        float parts[batch][values][split];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            const float* const at = from(first + b * threads < count ? first + b * threads : first);
#pragma unroll
            for (int v = 0; v < values; ++v) {
#pragma unroll
                for (int s = 0; s < split; ++s) {
                    // Bypasses L1, which is not coherent with writes of other blocks.
                    parts[b][v][s] = __ldcg(at + v * job.gated_width + s * part);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            float sums[values];
#pragma unroll
            for (int v = 0; v < values; ++v)
                sums[v] = tree_of_slices(split, [&](int s) { return parts[b][v][s < split ? s : 0]; });
            if (first + b * threads < count) store(first + b * threads, sums);
        }
    }
}

/// Adds the parts of the tile. Called by the block for which last_of_tile returned true.
template <int split, int max_loads>
__device__ __forceinline__ void add_parts_of(const MatmulJob& job, const BlockTile& tile) {
    const auto row_of = [&](int row) {
        return tile.first_row + row < job.num_rows ? tile.first_row + row : job.num_rows - 1;
    };
    if (job.gated_width != 0) {
        const int columns = tile.outputs / 2;
        const std::int64_t first_column = tile.first_output / 2;
        add_elements<split, 2, max_loads>(
            job, columns * tile.rows,
            [&](int i) {
                const std::int64_t column = first_column + i % columns;
                return job.parts + row_of(i / columns) * job.num_outputs +
                       (column < job.gated_width ? column : job.gated_width - 1);
            },
            [&](int i, const float(&sums)[2]) {
                const std::int64_t column = first_column + i % columns, row = tile.first_row + i / columns;
                if (column < job.gated_width && row < job.num_rows) store_gated(job, row, column, sums[0], sums[1]);
            });
        return;
    }
    add_elements<split, 1, max_loads>(
        job, tile.outputs * tile.rows,
        [&](int i) {
            const std::int64_t n = tile.first_output + i % tile.outputs;
            return job.parts + row_of(i / tile.outputs) * job.num_outputs +
                   (n < job.num_outputs ? n : job.num_outputs - 1);
        },
        [&](int i, const float(&sums)[1]) {
            const std::int64_t n = tile.first_output + i % tile.outputs, row = tile.first_row + i / tile.outputs;
            if (n < job.num_outputs && row < job.num_rows) job.y[row * job.num_outputs + n] = sums[0];
        });
}
template <int max_loads>
__device__ inline void add_parts(const MatmulJob& job, const BlockTile& tile) {
    if (job.split == 2) return add_parts_of<2, max_loads>(job, tile);
    if (job.split == 4) return add_parts_of<4, max_loads>(job, tile);
    add_parts_of<8, max_loads>(job, tile);
}

/// Ends a block whose warps computed one slice each. Their sums are in shared memory, [slices][rows][row_floats] f32,
/// and the caller has synchronized the block. blockIdx.z is the block's subtree.
__device__ inline void add_slices(const MatmulJob& job, const BlockTile& tile, const float* sums, int slices,
                                  int row_floats) {
    if (job.gated_width != 0 && job.split == 1) {
        for_each_gated(job, tile, [&](int i, std::int64_t column, int row) {
            const float* const gate = sums + row * row_floats + i / 8 * tile_outputs + i % 8;
            const int slice = tile.rows * row_floats;
            store_gated(job, tile.first_row + row, column,
                        tree_of_slices(slices, [&](int s) { return gate[s * slice]; }),
                        tree_of_slices(slices, [&](int s) { return gate[s * slice + 8]; }));
        });
        return;
    }
    float* to = job.split == 1 ? job.y : job.parts + blockIdx.z * job.num_rows * job.num_outputs;
    for (int i = static_cast<int>(threadIdx.x); i < tile.outputs * tile.rows; i += static_cast<int>(blockDim.x)) {
        const int column = i % tile.outputs, row = i / tile.outputs;
        const std::int64_t n = column_of(job, tile.first_output + column), r = tile.first_row + row;
        if (n < 0 || r >= job.num_rows) continue;
        to[r * job.num_outputs + n] =
            tree_of_slices(slices, [&](int s) { return sums[(s * tile.rows + row) * row_floats + column]; });
    }
    if (job.split == 1) return;
    if (last_of_tile(job, tile.index)) add_parts<8>(job, tile);
}

/// Clamps `index` to the last of `count` items. Sums of clamped items are computed, but never stored.
__device__ __forceinline__ int no_further(int index, std::int64_t count) {
    return index < count ? index : static_cast<int>(count) - 1;
}

/// The two bf16 elements of a word as f32.
__device__ __forceinline__ float low_of(std::uint32_t word) {
    return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_of(std::uint32_t word) {
    return __uint_as_float(word & 0xffff0000U);
}

/// Loads 16 bytes, aligned to 16.
__device__ __forceinline__ uint4 load_16(const std::byte* from) {
    return *reinterpret_cast<const uint4*>(from);
}

}  // namespace longhaul::kernels::cuda
