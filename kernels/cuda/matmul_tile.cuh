// Matmul with bf16 weights on tensor cores for many rows (token trees of more than 16 nodes, batches, prompts): the
// warps of a block share what they read. GPUs with clusters of blocks have kernels of their own for small matrices and
// few rows (matmul_slices.cuh), and for prompts that occupy the GPU (matmul_cluster.cuh). Bit-identical to
// matmul_stream.cuh: the same chains, computed slice by slice and added as the same tree.
//
// Weights and inputs of a stage go through a queue that the block shares. A complete slice is added to the tree at
// once: a sum that waits for its first partner stays in registers, the sum of two slices in shared memory, the sum of
// four in y itself.
//
// What reaches a multiprocessor from L2 is the limit: for trees mostly weights, of which a block reads 128 outputs for
// a few rows of inputs, with two blocks per multiprocessor; for prompts as many inputs as weights.
#pragma once

#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace longhaul::kernels::cuda {

/// A block of `warpgroups`, each of which computes 64 outputs for n_tiles times 8 rows: 16 outputs per warp.
template <int warpgroups, int n_tiles, int blocks>
struct TileShape {
    static constexpr int threads = warpgroups * 128;
    static constexpr int NT = n_tiles;
    static constexpr int tiles = warpgroups * 4;  ///< of 16 outputs
    static constexpr int outputs = tiles * tile_outputs;
    static constexpr int rows = NT * 8;
    static constexpr int min_blocks = blocks;  ///< per multiprocessor, with wgmma; else one, which needs more registers
    static constexpr int stages = 3;
    static constexpr int stage_steps = 2;  ///< a panel of inputs
    static constexpr int panel_bytes = rows * panel_row_bytes;
    static constexpr int stage_bytes = panel_bytes + tiles * stage_steps * 1024;
    static constexpr int queue_bytes = stages * stage_bytes;
    static constexpr std::size_t pair_bytes = sizeof(float) * outputs * rows;  ///< sums of two slices
    static constexpr std::size_t shared_bytes = queue_bytes + pair_bytes;
    using Sums = float[NT][4];
    static_assert(panel_bytes % 1024 == 0 && stage_bytes % 1024 == 0);
};
using PromptTile = TileShape<2, 16, 1>;  ///< 128 outputs x 128 rows
template <int n_tiles>
using TreeTile = TileShape<2, n_tiles, 2>;  ///< 128 outputs x 8 * n_tiles rows

/// Fetches the stages of a block's slices in order: the pieces of 16 bytes that one thread fetches for each.
template <class Shape>
class TileQueue {
    static constexpr int tile_pieces = 64 * Shape::stage_steps, row_pieces = 4 * Shape::stage_steps;
    static constexpr int num_weights = Shape::tiles * tile_pieces / Shape::threads;
    static constexpr int num_inputs = Shape::rows * row_pieces / Shape::threads;
    static_assert(Shape::threads % tile_pieces == 0 && num_weights * Shape::threads == Shape::tiles * tile_pieces);
    static_assert(num_inputs * Shape::threads == Shape::rows * row_pieces);

  public:
    __device__ TileQueue(const MatmulJob& job, std::int64_t first_tile, std::int64_t first_row, int first_slice,
                         int slices)
        : job_(job), slices_left_(slices) {
        const WeightLayout& layout = job.layout;
        const int thread = static_cast<int>(threadIdx.x), piece = thread % row_pieces;
        weights_ = job.weights + (first_tile * layout.num_slices + first_slice) * layout.steps * 1024 +
                   thread % tile_pieces * 16;
        x_ = job.x + (first_row * job.x_stride + first_slice * job.x_slice) * 2 + piece * 16;
        tiles_left_ = static_cast<int>(layout.num_tiles - first_tile) - thread / tile_pieces;
        rows_left_ = static_cast<int>(job.num_rows - first_row) - thread / row_pieces;
        weights_ += thread / tile_pieces * tile_bytes();
        x_ += thread / row_pieces * row_bytes();
        input_place_ = place_in_panel(thread / row_pieces, piece);
    }

    /// The stage to compute before the next one is fetched.
    [[nodiscard]] __device__ __forceinline__ const std::byte* oldest() const {
        return shared_memory<std::byte>() + slot_after(place_);
    }
    /// Starts fetching the next stage, if there is one, and closes its group of copies.
    __device__ __forceinline__ void fetch() {
        start_stage<true, true>();
        commit_copies();
    }
    /// Fetches the first stages. is_early: their weights while the call before still runs; they belong to the group of
    /// the first inputs.
    template <bool is_early>
    __device__ __forceinline__ void fetch_first() {
        constexpr int count = Shape::stages - 1;
        if constexpr (is_early) {
            TileQueue weights = *this;
#pragma unroll
            for (int i = 0; i < count; ++i) weights.template start_stage<true, false>();
            wait_for_previous();
        }
#pragma unroll
        for (int i = 0; i < count; ++i) {
            start_stage<!is_early, true>();
            commit_copies();
        }
    }

  private:
    template <bool of_weights, bool of_inputs>
    __device__ __forceinline__ void start_stage() {
        if (slices_left_ > 0) {
            const int steps = static_cast<int>(job_.layout.steps);
            if constexpr (of_weights) fetch_weights(steps);
            if constexpr (of_inputs) fetch_inputs();
            advance(steps);
        }
        place_ = slot_after(place_);
    }
    [[nodiscard]] static __device__ __forceinline__ int slot_after(int place) {
        return place + Shape::stage_bytes == Shape::queue_bytes ? 0 : place + Shape::stage_bytes;
    }
    [[nodiscard]] __device__ __forceinline__ std::int64_t tile_bytes() const {
        return job_.layout.num_slices * job_.layout.steps * 1024;
    }
    [[nodiscard]] __device__ __forceinline__ std::int64_t row_bytes() const {
        return job_.x_stride * 2;
    }

    __device__ __forceinline__ void fetch_weights(int steps) const {
        constexpr int next = Shape::threads / tile_pieces;  // tiles from one piece to the next
        const int thread = static_cast<int>(threadIdx.x);
        const bool inside = step_ + thread % tile_pieces / 64 < steps;  // a missing step is zeros, which change no sum
        std::byte* const to = shared_memory<std::byte>() + place_ + Shape::panel_bytes + thread * 16;
#pragma unroll
        for (int i = 0; i < num_weights; ++i) {
            copy_async_16(to + i * (Shape::threads * 16), weights_ + i * next * static_cast<int>(tile_bytes()),
                          inside && i * next < tiles_left_);
        }
    }
    __device__ __forceinline__ void fetch_inputs() const {
        constexpr int next = Shape::threads / row_pieces;  // rows from one piece to the next
        const int first = step_ * 32 + static_cast<int>(threadIdx.x) % row_pieces * 8;
        const bool inside = first < static_cast<int>(job_.layout.slice_length);
        std::byte* const to = shared_memory<std::byte>() + place_ + input_place_;
#pragma unroll
        for (int i = 0; i < num_inputs; ++i)
            copy_async_16(to + i * next * panel_row_bytes, x_ + i * next * static_cast<int>(row_bytes()),
                          inside && i * next < rows_left_);
    }
    __device__ __forceinline__ void advance(int steps) {
        x_ += Shape::stage_steps * 64;
        step_ += Shape::stage_steps;
        weights_ += (step_ > steps ? Shape::stage_steps - (step_ - steps) : Shape::stage_steps) * 1024;
        if (step_ < steps) return;
        x_ += job_.x_slice * 2 - step_ * 64;
        step_ = 0;
        --slices_left_;
    }

    const MatmulJob& job_;
    const std::byte* weights_;    ///< this thread's first piece of the next stage
    const std::byte* x_;          ///< the same
    int tiles_left_, rows_left_;  ///< of the matrix from those pieces on; the others are zeros
    int input_place_;             ///< of the first input in a slot, in bytes
    int place_ = 0;               ///< of the slot, in bytes
    int slices_left_, step_ = 0;  ///< the next stage's slice, counted from the end, and first step
};

/// Adds the products of the oldest stage, and fetches the next one.
template <class Shape>
__device__ __forceinline__ void add_stage(TileQueue<Shape>& queue, typename Shape::Sums& sum) {
    const std::byte* const stage = queue.oldest();
    const int warp = reread_thread() / 32, lane = reread_thread() % 32;
    const std::byte* const outputs = stage + Shape::panel_bytes + warp * (Shape::stage_steps * 1024) + lane * 16;
    uint4 a[panel_fragments];
#pragma unroll
    for (int f = 0; f < panel_fragments; ++f) a[f] = load_16(outputs + f * 512);
    start_products(sum, a, stage);
    queue.fetch();
    finish_products(sum);
}

/// Calls visit(n, i) for each sum of a thread.
template <class Shape, class Visit>
__device__ __forceinline__ void for_each_sum(Visit visit) {
#pragma unroll
    for (int n = 0; n < Shape::NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(n, i);
    }
}

/// Where a warp stores its 8 gated columns of a block's rows. A thread has the outputs of rows 2t and 2t + 1 of each 8,
/// in column g of the warp's.
class GatedRows {
  public:
    __device__ GatedRows(const MatmulJob& job, std::int64_t first_row, std::int64_t first_column, int lane)
        : job_(job), rows_left_(static_cast<int>(job.num_rows - first_row)), lane_(lane) {
        const int bytes = job.active_bf16 ? 2 : 4;
        row_bytes_ = job.active_stride * bytes;
        columns_left_ = job.gated_width - first_column;
        first_ = job.active + first_row * row_bytes_ + first_column * bytes;
        in_pairs_ = job.active_bf16 && columns_left_ >= 8 && row_bytes_ % 4 == 0 &&
                    reinterpret_cast<std::uintptr_t>(first_) % 4 == 0;
    }

    /// `active`: for 8 rows each, from this row of the block on. Called by all threads of the warp.
    template <int count>
    __device__ __forceinline__ void store(int row, const float (&active)[count]) const {
        if (in_pairs_) {
            store_pairs(row, active);
        } else {
            store_each(row, active);
        }
    }

  private:
    /// Two columns of a row at a time: the matrix of 8 rows and 8 columns is transposed.
    template <int count>
    __device__ __forceinline__ void store_pairs(int row, const float (&active)[count]) const {
        std::uint32_t pairs[count / 2];
#pragma unroll
        for (int i = 0; i < count / 2; ++i)
            pairs[i] = transpose_matrix(round_to_bf16(active[2 * i], active[2 * i + 1]));
        row += lane_ / 4;
        std::byte* to = first_ + row * row_bytes_ + lane_ % 4 * 4;
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            if (row + 8 * i < rows_left_) *reinterpret_cast<std::uint32_t*>(to) = pairs[i];
            to += 8 * row_bytes_;
        }
    }
    template <int count>
    __device__ __forceinline__ void store_each(int row, const float (&active)[count]) const {
        if (lane_ / 4 >= columns_left_) return;
        row += lane_ % 4 * 2;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int at = row + i / 2 * 8 + i % 2;
            const float value[1] = {active[i]};
            if (at < rows_left_) store_act(first_ + at * row_bytes_, job_.active_bf16, lane_ / 4, value);
        }
    }

    const MatmulJob& job_;
    std::byte* first_;
    std::int64_t row_bytes_, columns_left_;
    int rows_left_, lane_;
    bool in_pairs_;
};

/// A thread's sums in shared memory, behind the queue.
template <class Shape>
struct KeptSums {
    /// Those with the first 8 rows; the next ones follow with stride Shape::threads.
    [[nodiscard]] static __device__ __forceinline__ float4* first() {
        return reinterpret_cast<float4*>(shared_memory<std::byte>() + Shape::queue_bytes) + reread_thread();
    }
    static __device__ __forceinline__ void keep(const typename Shape::Sums& sums) {
        float4* const to = first();
#pragma unroll
        for (int n = 0; n < Shape::NT; ++n)
            to[n * Shape::threads] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    }
    /// sums = kept + sums
    static __device__ __forceinline__ void add_to(typename Shape::Sums& sums) {
        const float4* const from = first();
#pragma unroll
        for (int n = 0; n < Shape::NT; ++n) {
            const float4 kept = from[n * Shape::threads];
            sums[n][0] = __fadd_rn(kept.x, sums[n][0]);
            sums[n][1] = __fadd_rn(kept.y, sums[n][1]);
            sums[n][2] = __fadd_rn(kept.z, sums[n][2]);
            sums[n][3] = __fadd_rn(kept.w, sums[n][3]);
        }
    }
};

/// One thread's part of the tree of slices. Registers are scarce: gated matrices have a kernel of their own, and what a
/// slice needs only at its end is computed there.
template <class Shape, bool is_gated>
struct TileTree {
    const MatmulJob& job;
    int rows_at = static_cast<int>(blockIdx.x);                    ///< the block's group of rows
    int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;  ///< and its first tile of outputs
    typename Shape::Sums sum = {};                                 ///< of the most recent slices

    /// Output and row of the thread's first sum.
    [[nodiscard]] __device__ __forceinline__ std::int64_t output() const {
        const int warp = reread_thread() / 32, lane = reread_thread() % 32;
        return std::int64_t{first_tile} * tile_outputs + warp * tile_outputs + lane / 4;
    }
    [[nodiscard]] __device__ __forceinline__ std::int64_t row() const {
        return std::int64_t{rows_at} * Shape::rows + reread_thread() % 4 * 2;
    }
    /// y, or the block's part: sums of four slices, finally of all.
    [[nodiscard]] __device__ __forceinline__ float* to() const {
        return job.split == 1 ? job.y : job.parts + blockIdx.z * job.num_rows * job.num_outputs;
    }

    [[nodiscard]] __device__ __forceinline__ std::int64_t column(std::int64_t n) const {
        if constexpr (is_gated) return column_of(job, n);
        return n < job.num_outputs ? n : -1;
    }
    /// Calls visit(sum, its address in `to`) for each sum within the matrix. Few blocks are not wholly within it, and
    /// without checks the accesses follow each other.
    template <class Visit>
    __device__ __forceinline__ void for_each_output(Visit visit) {
        const std::int64_t first_output = output(), first_row = row(), stride = job.num_outputs;
        const std::int64_t columns[2] = {column(first_output), column(first_output + 8)};
        const auto rows_left = static_cast<int>(job.num_rows - first_row);
        float* const first = to() + first_row * stride;
        if (columns[0] >= 0 && columns[1] >= 0 && rows_left > Shape::rows - 7) {
            visit_outputs(visit, first, columns, [](int, int) { return true; });
        } else {
            visit_outputs(visit, first, columns,
                          [&](int at_row, int half) { return at_row < rows_left && columns[half] >= 0; });
        }
    }
    template <class Visit, class Inside>
    __device__ __forceinline__ void visit_outputs(Visit visit, float* first, const std::int64_t (&columns)[2],
                                                  Inside inside) {
        float* at[2] = {first + columns[0], first + columns[1]};
        const std::int64_t stride = job.num_outputs;
#pragma unroll
        for (int n = 0; n < Shape::NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (inside(n * 8 + i % 2, i / 2)) visit(sum[n][i], at[i / 2] + i % 2 * stride);
            }
            at[0] += 8 * stride;
            at[1] += 8 * stride;
        }
    }

    /// Stores the gated outputs: a thread has the gates and their ups. In a loop over shared memory: activations are
    /// long, and their code would have to be fetched anew for each sum.
    template <class Function>
    __device__ __forceinline__ void store_active() {
        constexpr int at_once = 4;  // of NT
        static_assert(Shape::NT % at_once == 0);
        KeptSums<Shape>::keep(sum);
        const int lane = reread_thread() % 32;
        const std::int64_t first_column = gated_column(output() - lane / 4);  // of the warp
        if (first_column >= job.gated_width) return;
        const GatedRows rows(job, std::int64_t{rows_at} * Shape::rows, first_column, lane);
        const float4* kept = KeptSums<Shape>::first();
#pragma unroll 1
        for (int n = 0; n < Shape::NT; n += at_once) {
            float gates[2 * at_once], ups[2 * at_once], active[2 * at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const float4 sums = kept[i * Shape::threads];
                gates[2 * i] = sums.x;
                gates[2 * i + 1] = sums.y;
                ups[2 * i] = sums.z;
                ups[2 * i + 1] = sums.w;
            }
            gate_together<Function>(gates, ups, active);
            rows.store(n * 8, active);
            kept += at_once * Shape::threads;
        }
    }

    /// Adds slice `slice` of the block's 1, 2, 4 or 8 slices, in ascending order. The last one leaves the total in
    /// `to`, or gates it.
    __device__ __forceinline__ void join(int slice, int slices, const typename Shape::Sums& newest) {
        const bool odd = slice % 2 == 1;
        for_each_sum<Shape>([&](int n, int i) { sum[n][i] = odd ? __fadd_rn(sum[n][i], newest[n][i]) : newest[n][i]; });
        if (slice + 1 < slices && slice % 4 == 1) {
            KeptSums<Shape>::keep(sum);
        }
        if (slice % 4 == 3) {
            KeptSums<Shape>::add_to(sum);
        }
        const bool is_last = slice + 1 == slices;
        if (slice == 7) for_each_output([](float& s, const float* four) { s = __fadd_rn(__ldcg(four), s); });
        if (is_last && job.split == 1) return store();
        if (slice == 3 || is_last) for_each_output([](float s, float* at) { *at = s; });
    }
    /// Stores the total of all slices, or gates it.
    __device__ __forceinline__ void store() {
        if constexpr (is_gated) {
            if (job.gate == Gate::silu) return store_active<SiluMul>();
            return job.gate == Gate::gelu ? store_active<GeluMul>() : store_active<SwigluOaiMul>();
        }
        for_each_output([](float s, float* at) { *at = s; });
    }
};

/// Grid: groups of rows; groups of outputs; subtrees of slices. is_early: launched early().
template <class Shape, bool is_gated, bool is_early>
__global__ void __launch_bounds__(Shape::threads, has_wgmma ? Shape::min_blocks : 1) tile_matmul(MatmulJob job) {
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * Shape::tiles;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * Shape::rows;
    const int slices = job.layout.num_slices / job.split, steps = static_cast<int>(job.layout.steps);
    TileQueue<Shape> queue(job, first_tile, first_row, static_cast<int>(blockIdx.z) * slices, slices);
    TileTree<Shape, is_gated> tree{job};
    queue.template fetch_first<is_early>();
    if constexpr (is_early) let_next_start();  // a block of the next call takes the place of each that ends
    for (int slice = 0; slice < slices; ++slice) {
        typename Shape::Sums sum = {};
        for (int step = 0; step < steps; step += Shape::stage_steps) {
            wait_copies<Shape::stages - 2>();
            publish_panel();
            __syncthreads();  // this stage is complete, and no thread still reads the slot that is filled next
            add_stage<Shape>(queue, sum);
        }
        tree.join(slice, slices, sum);
    }
    if (job.split == 1) return;
    const BlockTile tile{first_tile * tile_outputs, first_row, Shape::outputs, Shape::rows,
                         static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)};
    if (last_of_tile(job, tile.index)) add_parts<16>(job, tile);
}

}  // namespace longhaul::kernels::cuda
