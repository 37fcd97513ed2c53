// Matmul with bf16 weights on tensor cores for many rows (prompts): 128 outputs x 128 rows per block, limited by
// arithmetic. Bit-identical to matmul_stream.cuh: the same chains, computed slice by slice and added as the same tree.
//
// Each of the eight warps computes 64 outputs x 32 rows. Weights and inputs of a step (8 KB each) go through a queue
// that the block shares; a warp reads them in their stored order, 512 contiguous bytes at a time, without bank
// conflicts. A complete slice is added to the tree at once: a sum that waits for its first partner stays in registers,
// the sum of two slices in shared memory, the sum of four in y itself.
#pragma once

#include "kernels/cuda/matmul.cuh"

namespace longhaul::kernels::cuda {

struct TileShape {
    static constexpr int threads = 256;
    static constexpr int tiles = 8;  ///< of 16 outputs
    static constexpr int outputs = tiles * tile_outputs;
    static constexpr int rows = 128;
    static constexpr int MT = 4, NT = 4;  ///< per warp: 4 tiles of outputs, 4 times 8 rows
    static constexpr int stages = 4;
    static constexpr int weight_bytes = tiles * 1024;
    static constexpr int stage_bytes = weight_bytes + rows * 64;
    static constexpr std::size_t pair_bytes = sizeof(float) * outputs * rows;  ///< sums of two slices
    static constexpr std::size_t shared_bytes = stages * stage_bytes + pair_bytes;
};

using TileSums = float[TileShape::MT][TileShape::NT][4];

/// The pieces that one thread fetches in each step: two of weights, two of inputs.
struct TileQueue {
    std::byte* slots;
    const std::byte* weights[2];  ///< of step 0 of slice 0
    const std::byte* x[2];
    std::int64_t slice_weights, slice_x;  ///< strides in bytes between slices
    int place[2];
    int length;  ///< inputs from this thread's first one to the end of a slice

    __device__ TileQueue(const MatmulJob& job, std::byte* queue, std::int64_t first_tile, std::int64_t first_row)
        : slots(queue), slice_weights(job.layout.steps * 1024), slice_x(job.x_slice * 2) {
        const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int piece = thread + i * TileShape::threads;
            place[i] = piece * 16;
            const std::int64_t wanted = first_tile + piece / 64, row = first_row + piece / 4;
            const std::int64_t tile = wanted < job.layout.num_tiles ? wanted : job.layout.num_tiles - 1;
            weights[i] = job.weights + tile * job.layout.num_slices * slice_weights + piece % 64 * 16;
            x[i] = job.x + (row < job.num_rows ? row : job.num_rows - 1) * job.x_stride * 2 + piece % 4 * 16;
        }
        length = static_cast<int>(job.layout.slice_length) - thread % 4 * 8;
    }

    __device__ std::byte* stage(int index) const {
        return slots + index % TileShape::stages * TileShape::stage_bytes;
    }

    /// Fetches step `step` of slice `slice` into slot `index` of the queue.
    __device__ void fetch(int index, int slice, int step) const {
        std::byte* const to = stage(index);
        const bool inside = step * 32 < length;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            copy_async_16(to + place[i], weights[i] + slice * slice_weights + static_cast<std::int64_t>(step) * 1024);
            std::byte* const input = to + TileShape::weight_bytes + place[i];
            if (inside) {
                copy_async_16(input, x[i] + slice * slice_x + static_cast<std::int64_t>(step) * 64);
            } else {
                *reinterpret_cast<uint4*>(input) = make_uint4(0, 0, 0, 0);
            }
        }
    }

    /// Adds the products of one step; `weight_at` and `input_at` are the byte offsets of the warp's outputs and rows.
    __device__ void multiply_add(int index, int weight_at, int input_at, TileSums& sum) const {
        const std::byte* const from = stage(index);
        uint4 b[TileShape::NT];
#pragma unroll
        for (int n = 0; n < TileShape::NT; ++n) b[n] = load_16(from + TileShape::weight_bytes + input_at + n * 512);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int m = 0; m < TileShape::MT; ++m) {
                const uint4 a = load_16(from + weight_at + m * 1024 + half * 512);
#pragma unroll
                for (int n = 0; n < TileShape::NT; ++n) {
                    mma_bf16(sum[m][n], {a.x, a.y, a.z, a.w},
                             {half == 0 ? b[n].x : b[n].z, half == 0 ? b[n].y : b[n].w});
                }
            }
        }
    }
};

/// Calls visit(m, n, i) for each sum of a thread.
template <class Visit>
__device__ __forceinline__ void for_each_sum(Visit visit) {
#pragma unroll
    for (int m = 0; m < TileShape::MT; ++m) {
#pragma unroll
        for (int n = 0; n < TileShape::NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(m, n, i);
        }
    }
}

/// One thread's part of the tree of slices. Registers are scarce: gated matrices have a kernel of their own, and what a
/// slice needs only at its end is computed there.
template <bool is_gated>
struct TileTree {
    const MatmulJob& job;
    TileSums sum = {};  ///< of the most recent slices

    /// Output and row of the thread's first sum.
    [[nodiscard]] __device__ __forceinline__ std::int64_t output() const {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        return std::int64_t{blockIdx.y} * TileShape::outputs + warp % 2 * TileShape::MT * tile_outputs + lane / 4;
    }
    [[nodiscard]] __device__ __forceinline__ std::int64_t row() const {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        return std::int64_t{blockIdx.x} * TileShape::rows + warp / 2 * TileShape::NT * 8 + lane % 4 * 2;
    }
    /// This thread's sums of two slices, with stride TileShape::threads.
    [[nodiscard]] __device__ __forceinline__ float* pair() const {
        return reinterpret_cast<float*>(shared_memory<std::byte>() + TileShape::stages * TileShape::stage_bytes) +
               threadIdx.x;
    }
    /// y, or the block's part: sums of four slices, finally of all.
    [[nodiscard]] __device__ __forceinline__ float* to() const {
        return job.split == 1 ? job.y : job.parts + blockIdx.z * job.num_rows * job.num_outputs;
    }

    /// Calls visit(sum, its address in `to`) for each sum within the matrix.
    template <class Visit>
    __device__ __forceinline__ void for_each_output(Visit visit) {
        const std::int64_t first_output = output(), first_row = row();
        float* const first = to();
        for_each_sum([&](int m, int n, int i) {
            const std::int64_t output_index = first_output + m * tile_outputs + i / 2 * 8;
            std::int64_t column = output_index < job.num_outputs ? output_index : -1;
            if constexpr (is_gated) column = column_of(job, output_index);
            const std::int64_t at_row = first_row + n * 8 + i % 2;
            if (column >= 0 && at_row < job.num_rows) visit(sum[m][n][i], first + at_row * job.num_outputs + column);
        });
    }

    /// Stores the gated outputs: a thread has the gates and their ups.
    __device__ __forceinline__ void store_active() {
        for_each_sum([&](int m, int n, int i) {
            if (i >= 2) return;
            const std::int64_t column = gated_column(output() + m * tile_outputs), at_row = row() + n * 8 + i;
            if (column < job.gated_width && at_row < job.num_rows)
                store_gated(job, at_row, column, sum[m][n][i], sum[m][n][i + 2]);
        });
    }

    /// Adds slice `slice` of the block's 1, 2, 4 or 8 slices, in ascending order. The last one leaves the total in
    /// `to`, or gates it.
    __device__ __forceinline__ void join(int slice, int slices, const TileSums& newest) {
        const auto place = [](int m, int n, int i) { return ((m * TileShape::NT + n) * 4 + i) * TileShape::threads; };
        const bool odd = slice % 2 == 1;
        for_each_sum([&](int m, int n, int i) {
            sum[m][n][i] = odd ? __fadd_rn(sum[m][n][i], newest[m][n][i]) : newest[m][n][i];
        });
        if (slice + 1 < slices && slice % 4 == 1) {
            for_each_sum([&](int m, int n, int i) { pair()[place(m, n, i)] = sum[m][n][i]; });
        }
        if (slice % 4 == 3) {
            for_each_sum([&](int m, int n, int i) { sum[m][n][i] = __fadd_rn(pair()[place(m, n, i)], sum[m][n][i]); });
        }
        if (slice == 7) for_each_output([](float& s, const float* four) { s = __fadd_rn(*four, s); });
        if constexpr (is_gated) {
            if (slice + 1 == slices && job.split == 1) return store_active();
        }
        if (slice == 3 || slice + 1 == slices) for_each_output([](float s, float* at) { *at = s; });
    }
};

/// Grid: groups of 128 rows; groups of 128 outputs; subtrees of slices.
template <bool is_gated>
__global__ void __launch_bounds__(TileShape::threads, 1) tile_matmul(MatmulJob job) {
    using Shape = TileShape;
    std::byte* const shared = shared_memory<std::byte>();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * Shape::tiles;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * Shape::rows;
    const int weight_at = warp % 2 * Shape::MT * 1024 + lane * 16;
    const int input_at = warp / 2 * Shape::NT * 512 + lane * 16;
    const TileQueue queue(job, shared, first_tile, first_row);
    TileTree<is_gated> tree{job};

    const int slices = job.layout.num_slices / job.split, steps = static_cast<int>(job.layout.steps);
    const int first_slice = static_cast<int>(blockIdx.z) * slices;
    int next_slice = 0, next_step = 0, fetched = 0;
    const auto fetch_next = [&] {
        if (next_slice < slices) queue.fetch(fetched, first_slice + next_slice, next_step);
        commit_copies();
        ++fetched;
        if (++next_step == steps) {
            next_step = 0;
            ++next_slice;
        }
    };
#pragma unroll
    for (int i = 0; i < Shape::stages - 1; ++i) fetch_next();
    for (int slice = 0, index = 0; slice < slices; ++slice) {
        TileSums sum = {};
        for (int step = 0; step < steps; ++step, ++index) {
            wait_copies<Shape::stages - 2>();
            __syncthreads();  // this step is complete, and no thread still reads the slot that is filled next
            fetch_next();
            queue.multiply_add(index, weight_at, input_at, sum);
        }
        tree.join(slice, slices, sum);
    }
    if (job.split == 1) return;
    const BlockTile tile{first_tile * tile_outputs, first_row, Shape::outputs, Shape::rows,
                         static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)};
    if (last_of_tile(job, tile.index)) add_parts(job, tile);
}

}  // namespace longhaul::kernels::cuda
