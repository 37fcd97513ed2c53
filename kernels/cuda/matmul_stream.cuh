// Matmul with bf16 weights on tensor cores for few rows (decode steps, small token trees): weights are read once, and
// memory bandwidth is the limit.
//
// A warp computes one slice of `MT` tiles of 16 outputs for `NT` times 8 rows; the warps of a block compute different
// slices of the same outputs. Both operands go through a queue of `stages` steps in shared memory, which is the warp's
// own: no warp waits for another one until its sums are complete. This keeps 48 to 96 KB per multiprocessor in flight
// without using registers. The first weights are fetched while the kernel before still runs (early()).
//
// Each block fetches inputs from L2: NT / (2 MT) bytes of inputs per byte of weights. That is why more rows use more
// tiles, and why tile_matmul takes over above 16 rows.
#pragma once

#include "kernels/cuda/matmul.cuh"

namespace longhaul::kernels::cuda {

template <int MT, int NT, int stages>
struct StreamShape {
    static constexpr int outputs = MT * tile_outputs;
    static constexpr int rows = NT * 8;
    static constexpr int pieces = 2 * MT + NT;      ///< 512-byte pieces per step
    static constexpr int row_floats = outputs + 4;  ///< the padding makes the lanes of a group write to different banks
    static constexpr int stage_bytes = pieces * 512;
    static constexpr int queue_bytes = stages * stage_bytes;
    static constexpr int sums_bytes = static_cast<int>(sizeof(float)) * rows * row_floats;
    static constexpr std::size_t shared_bytes(int warps) {
        return static_cast<std::size_t>(warps) * (queue_bytes > sums_bytes ? queue_bytes : sums_bytes);
    }
};

/// The queue slot after `place`; both are byte offsets from the start of the queue.
template <class Shape>
__device__ __forceinline__ int place_after(int place) {
    const int next = place + Shape::stage_bytes;
    return next == Shape::queue_bytes ? 0 : next;
}

/// A lane's view of its warp's slice: the sources of its pieces, and its part of the queue.
template <int MT, int NT, int stages>
struct SliceQueue {
    using Shape = StreamShape<MT, NT, stages>;

    std::byte* slots;          ///< of the warp
    const std::byte* weights;  ///< this lane's piece of step 0 of the first tile
    const std::byte* x;        ///< this lane's piece of step 0 of the first 8 rows
    int weights_at[MT];        ///< byte offset from there to each tile
    int rows, row_bytes;       ///< number of rows, and stride between them
    int length;                ///< inputs from this lane's first one to the end of the slice

    __device__ SliceQueue(const MatmulJob& job, std::byte* queue, std::int64_t first_tile, std::int64_t first_row,
                          int slice)
        : slots(queue) {
        const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
        const std::int64_t slice_bytes = job.layout.steps * 1024;
        weights = job.weights + (first_tile * job.layout.num_slices + slice) * slice_bytes + lane * 16;
        x = job.x + ((first_row + lane / 4) * job.x_stride + slice * job.x_slice + 8 * t) * 2;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            weights_at[m] = no_further(m, job.layout.num_tiles - first_tile) *
                            static_cast<int>(job.layout.num_slices * slice_bytes);
        }
        const std::int64_t rows_left = job.num_rows - first_row;
        rows = static_cast<int>(rows_left < Shape::rows ? rows_left : Shape::rows);
        row_bytes = static_cast<int>(job.x_stride * 2);
        length = static_cast<int>(job.layout.slice_length) - 8 * t;
    }

    /// This lane's 16 bytes of a piece.
    __device__ std::byte* slot(int place, int piece) const {
        return slots + place + piece * 512 + threadIdx.x % 32 * 16;
    }
    /// Inputs 8 * quarter.. of row `row` of the n-th 8 rows. Quarters are exchanged so that those of eight rows are in
    /// different banks.
    __device__ std::byte* input_slot(int place, int n, int row, int quarter) const {
        return slots + place + (2 * MT + n) * 512 + row * 64 + (quarter ^ row / 2 % 4) * 16;
    }

    __device__ void fetch_weights(int step, int place) const {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const std::byte* const from = weights + (weights_at[m] + step * 1024);
            copy_async_16(slot(place, 2 * m), from);
            copy_async_16(slot(place, 2 * m + 1), from + 512);
        }
    }
    __device__ void fetch_inputs(int step, int place) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const bool is_there = step * 32 < length && n * 8 + lane / 4 < rows;
            copy_async_16(input_slot(place, n, lane / 4, lane % 4), x + (n * 8 * row_bytes + step * 64), is_there);
        }
    }

    __device__ void multiply_add(int place, float (&sum)[MT][NT][4]) const {
        uint4 a[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            a[m][0] = load_16(slot(place, 2 * m));
            a[m][1] = load_16(slot(place, 2 * m + 1));
        }
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            std::uint32_t b[4];
            load_matrix_x4(b, input_slot(place, n, lane % 8, lane / 8));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    const uint4& outputs = a[m][half];
                    mma_bf16(sum[m][n], {outputs.x, outputs.y, outputs.z, outputs.w}, {b[2 * half], b[2 * half + 1]});
                }
            }
        }
    }
};

/// Writes a warp's sums to shared memory, [rows][row_floats].
template <int MT, int NT>
__device__ __forceinline__ void put_sums(const float (&sum)[MT][NT][4], float* to, int row_floats) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[(n * 8 + 2 * t + i % 2) * row_floats + m * tile_outputs + g + i / 2 * 8] = sum[m][n][i];
            }
        }
    }
}

/// Grid: groups of NT * 8 rows; groups of MT tiles of outputs; subtrees of slices. Block: one warp per slice of a
/// subtree.
template <int MT, int NT, int stages, int max_warps>
__global__ void __launch_bounds__(max_warps * 32) stream_matmul(MatmulJob job) {
    using Shape = StreamShape<MT, NT, stages>;
    std::byte* const shared = shared_memory<std::byte>();
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * MT;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * Shape::rows;
    const SliceQueue<MT, NT, stages> queue(job, shared + warp * Shape::queue_bytes, first_tile, first_row,
                                           static_cast<int>(blockIdx.z) * warps + warp);
    const int steps = static_cast<int>(job.layout.steps);
    float sum[MT][NT][4] = {};
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) queue.fetch_weights(step, step * Shape::stage_bytes);
    }
    wait_for_previous();
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) queue.fetch_inputs(step, step * Shape::stage_bytes);
        commit_copies();
    }
    int place = 0, free = (stages - 1) * Shape::stage_bytes;  // slot of the previous step
    for (int step = 0; step < steps; ++step) {
        wait_copies<stages - 2>();
        __syncwarp();  // the other lanes' copies are complete, and they no longer read the slot that is filled next
        if (step + stages - 1 < steps) {
            queue.fetch_weights(step + stages - 1, free);
            queue.fetch_inputs(step + stages - 1, free);
        }
        commit_copies();
        queue.multiply_add(place, sum);
        free = place;
        place = place_after<Shape>(place);
    }
    let_next_start();
    wait_copies<0>();
    __syncthreads();  // all queues are drained, their memory can be reused
    auto* const sums = reinterpret_cast<float*>(shared);
    put_sums(sum, sums + warp * (Shape::rows * Shape::row_floats), Shape::row_floats);
    __syncthreads();
    const BlockTile tile{first_tile * tile_outputs, first_row, Shape::outputs, Shape::rows,
                         static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)};
    add_slices(job, tile, sums, warps, Shape::row_floats);
}

}  // namespace longhaul::kernels::cuda
