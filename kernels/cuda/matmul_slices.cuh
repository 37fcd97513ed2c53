// Matmul with bf16 weights on tensor cores for 17 to 64 rows (token trees, batches), on GPUs with clusters of blocks
// (sm_90), for matrices of at most as many tiles of 128 outputs as there are multiprocessors: more tiles occupy the GPU
// as they are (matmul_tile.cuh). Bit-identical to that.
//
// A block computes one slice of its outputs, a cluster all slices: so many small blocks load the multiprocessors
// evenly, and the sums of slices are added where they are, each block reading its share of outputs from the shared
// memory of the others, instead of by the last block of each tile from global memory.
#pragma once

#include "kernels/cuda/matmul_tile.cuh"

namespace longhaul::kernels::cuda {

/// 128 outputs x 8 * n_tiles rows. Three blocks per multiprocessor: one starts or ends while the others fetch.
template <int n_tiles>
using SliceTile = TileShape<2, n_tiles, 3>;

/// Sums of a block in shared memory, [rows][row_floats].
template <class Shape>
struct SliceSums {
    static constexpr int row_floats = Shape::outputs + 4;  ///< no bank conflicts when a warp writes its fragments
    static constexpr int bytes = Shape::rows * row_floats * 4;
    static constexpr std::size_t shared_bytes = Shape::queue_bytes > bytes ? Shape::queue_bytes : bytes;

    static __device__ void store(const typename Shape::Sums& sums) {
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        float* const to = shared_memory<float>() + lane % 4 * 2 * row_floats + warp * tile_outputs + lane / 4;
        for_each_sum<Shape>([&](int n, int i) { to[(n * 8 + i % 2) * row_floats + i / 2 * 8] = sums[n][i]; });
    }

    /// The sums over all slices for four outputs of a row, from `output` on.
    template <int slices>
    static __device__ __forceinline__ float4 total(int row, int output) {
        const float* const mine = shared_memory<float>() + row * row_floats + output;
        float4 of[slices];
#pragma unroll
        for (int s = 0; s < slices; ++s) of[s] = load_16_from_block(mine, s);
        return make_float4(tree_of_slices(slices, [&](int s) { return of[s < slices ? s : 0].x; }),
                           tree_of_slices(slices, [&](int s) { return of[s < slices ? s : 0].y; }),
                           tree_of_slices(slices, [&](int s) { return of[s < slices ? s : 0].z; }),
                           tree_of_slices(slices, [&](int s) { return of[s < slices ? s : 0].w; }));
    }
};

/// Adds the slices of this block's share of the outputs, four of a row at a time.
template <class Shape, int slices>
__device__ void add_share(const MatmulJob& job, std::int64_t first_output) {
    constexpr int groups = Shape::outputs / 4, threads = slices * Shape::threads;
    const int begin = static_cast<int>(block_of_cluster()) * Shape::threads + static_cast<int>(threadIdx.x);
    for (int i = begin; i < groups * Shape::rows; i += threads) {
        const int row = i / groups, output = i % groups * 4;
        if (row >= job.num_rows) return;
        if (first_output + output >= job.num_outputs) continue;
        const float4 sums = SliceSums<Shape>::template total<slices>(row, output);
        float* const to = job.y + row * job.num_outputs + first_output + output;
        const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (first_output + output + k < job.num_outputs) to[k] = values[k];
        }
    }
}

/// The same for gated outputs: tiles of 8 gates and their 8 ups.
template <class Shape, int slices>
__device__ void gate_share(const MatmulJob& job, std::int64_t first_output) {
    constexpr int groups = Shape::outputs / 8, threads = slices * Shape::threads;
    const int begin = static_cast<int>(block_of_cluster()) * Shape::threads + static_cast<int>(threadIdx.x);
    for (int i = begin; i < groups * Shape::rows; i += threads) {
        const int row = i / groups, group = i % groups, output = group / 2 * tile_outputs + group % 2 * 4;
        if (row >= job.num_rows) return;
        const std::int64_t column = gated_column(first_output + output);
        if (column >= job.gated_width) continue;
        const float4 gates = SliceSums<Shape>::template total<slices>(row, output);
        const float4 ups = SliceSums<Shape>::template total<slices>(row, output + 8);
        const float gate[4] = {gates.x, gates.y, gates.z, gates.w}, up[4] = {ups.x, ups.y, ups.z, ups.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (column + k < job.gated_width) store_gated(job, row, column + k, gate[k], up[k]);
        }
    }
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Grid: slices, which are a cluster; groups of outputs. Launched early().
template <class Shape, int slices, bool is_gated>
__global__ void LONGHAUL_CLUSTER_DIMS(slices, 1, 1) __launch_bounds__(Shape::threads, has_wgmma ? Shape::min_blocks : 1)
    slice_matmul(MatmulJob job) {
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * Shape::tiles;
    typename Shape::Sums sum = {};
    TileQueue<Shape> queue(job, first_tile, 0, static_cast<int>(blockIdx.x), 1);
    queue.template fetch_first<true>();
    let_next_start();
    const int steps = static_cast<int>(job.layout.steps);
    for (int step = 0; step < steps; step += Shape::stage_steps) {
        wait_copies<Shape::stages - 2>();
        publish_panel();
        __syncthreads();  // this stage is complete, and no thread still reads the slot that is filled next
        add_stage<Shape>(queue, sum);
    }
    wait_copies<0>();
    __syncthreads();  // the sums take the place of the queue
    SliceSums<Shape>::store(sum);
    cluster_barrier();
    if constexpr (is_gated) {
        gate_share<Shape, slices>(job, first_tile * tile_outputs);
    } else {
        add_share<Shape, slices>(job, first_tile * tile_outputs);
    }
    end_in_cluster();  // others read this block's sums until they have theirs
}
#else
template <class Shape, int slices, bool is_gated>
__global__ void __launch_bounds__(32) slice_matmul(MatmulJob) {}  // resident_clusters() finds that it is none
#endif

}  // namespace longhaul::kernels::cuda
