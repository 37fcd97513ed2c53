// Attention on tensor cores for many queries that see the same pages: 128 queries per block, and products of whole
// warpgroups (wgmma in code for sm_90a). The same order of sums as in attention_tensor.cuh, so the same bits.
//
// Work of a block. Two warpgroups have 64 queries each. The products of a step are those of p with the values of a
// page, and those of the queries with the keys of the next one; a chunk that has ended is merged while the latter run.
// The warpgroups walk in step. Taking turns at a barrier, one computing p while the other one has products computed,
// took as long when 2^x was a polynomial: then only one warp of a scheduler computes.
//
// The warpgroups share what the block loads, because L2 does not deliver 32 KB in 512 clocks. A stage of the queue has
// the keys of a page and the values of the page before; each warpgroup loads its part of a stage while its own products
// run. All that is kept per query is in registers, even the output of the span: shared memory is busy with what the
// products read.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace longhaul::kernels::cuda {

template <int DIM>
class WarpgroupUnit : TensorRows<WarpgroupTile<DIM>> {
    using T = WarpgroupTile<DIM>;
    using Rows = TensorRows<T>;

  public:
    __device__ WarpgroupUnit(const AttentionArgs& args, const PlanUnit& unit, int kv_head)
        : Rows(args, unit, kv_head), pages_(end_page(unit) - unit.first_page) {}

    __device__ void run() {
        find_queries();
        find_pages();
        __syncthreads();
#pragma unroll 1
        for (int stage = 0; stage < T::stages; ++stage) load(stage);
        load_queries();
        begin_sums();
        for (int n = 0; n < T::output_tiles; ++n) span_.put(n, {});
        wait_copies<T::stages - 1>();
        publish_panel();
        __syncthreads();
        multiply_first();
#pragma unroll 1
        for (int step = 0;; ++step) {
            take_scores(step);
            begin_stage(step + 1);
            if (step + 1 >= pages_) break;
            multiply(step + 1);
        }
        multiply_last();
        end_chunk();
        store();
    }

  private:
    using Rows::all_see;
    using Rows::any_merged_;
    using Rows::any_nonfinite;
    using Rows::apply_nonfinite;
    using Rows::args_;
    using Rows::before;
    using Rows::begin_sums;
    using Rows::clear_output;
    using Rows::convert_p;
    using Rows::find_pages;
    using Rows::find_queries;
    using Rows::found;
    using Rows::load_queries;
    using Rows::mask_scores;
    using Rows::maximum_of;
    using Rows::merge_chunk;
    using Rows::output_;
    using Rows::p_;
    using Rows::page_of;
    using Rows::pages;
    using Rows::q_;
    using Rows::rescale_output;
    using Rows::scores_;
    using Rows::shared_;
    using Rows::span_;
    using Rows::store;
    using Rows::take_row;
    using Rows::unit_;

    static __device__ int end_page(const PlanUnit& unit) {
        const int end = unit.chunk_end * tensor_chunk_pages;
        return unit.common_end < end ? unit.common_end : end;
    }
    /// The page whose scores are computed in a step.
    [[nodiscard]] __device__ Tile page(int step) const {
        return {unit_.first_page + step, -1, true};
    }
    [[nodiscard]] __device__ std::byte* keys(int stage) const {
        return shared_ + stage % T::stages * T::stage_bytes;
    }
    [[nodiscard]] __device__ std::byte* values(int stage) const {
        return keys(stage) + T::matrix_bytes;
    }

    /// Starts loading this thread's part of a stage as one copy group. Without branches, even for what is not there:
    /// the compiler would have products end before a branch.
    __device__ void load(int stage) {
        load(stage, false, keys(stage));
        load(stage - 1, true, values(stage));
        commit_copies();
    }
    /// The keys or values of the page of a step; zeros for dimensions that it does not have, and for positions that no
    /// query sees.
    __device__ void load(int step, bool values, std::byte* to) {
        constexpr int slots = T::threads / T::pieces;  // at a time
        static_assert(slots % T::places == 0);
        const int first = static_cast<int>(threadIdx.x) / T::pieces;
        const int piece = static_cast<int>(threadIdx.x) % T::pieces;
        const int row_bytes = args_.shape.row_bytes;
        const bool is_there = step >= 0 && step < pages_ && piece * 16 < row_bytes;
        const Tile tile = page(is_there ? step : 0);
        const int end = is_there ? unit_.seen_by_one - before(tile) - first : 0;
        const std::byte* from =
            pages()[page_of(tile)] + (values ? args_.shape.block_bytes : 0) + first * row_bytes + piece * 16;
        to += T::place(first, piece);
#pragma unroll
        for (int slot = 0; slot < tile_tokens; slot += slots) {
            copy_async_16(to + slot * T::stride, from, slot < end);
            from += slots * row_bytes;
        }
    }

    /// Waits for a stage. No thread reads the slot that is filled next any more.
    __device__ void begin_stage(int stage) {
        wait_copies<T::stages - 2>();
        publish_panel();
        __syncthreads();
        if (!all_see(page(stage - 1))) hide_nonfinite(stage);
    }
    /// Of the values of a stage. The output has been rescaled for their page.
    __device__ void hide_nonfinite(int stage) {
        find_nonfinite<T>(values(stage), found());
        __syncthreads();
        if (!any_nonfinite()) return;
        if (starts_chunk_) clear_output();
        starts_chunk_ = false;
        apply_nonfinite(page(stage - 1), values(stage));
        __syncthreads();
        clear_nonfinite<T>(values(stage));
        publish_panel();
        __syncthreads();
    }

    /// The products with stage 0, with a stage between, and with the last one.
    __device__ void multiply_first() {
        settle(q_);
        begin_products();
        add_row_products(scores_, q_, keys(0));
        commit_products();
        finish_products(scores_);
    }
    __device__ void multiply(int step) {
        settle(output_);
        settle(p_);
        begin_products();
        add_column_products(output_, p_, values(step), !starts_chunk_);
        commit_products();
        add_row_products(scores_, q_, keys(step));
        commit_products();
        load(step + T::stages - 1);
        finish_products<1>(output_);  // those of the keys pend
        settle(output_);
        settle(p_);
        starts_chunk_ = false;
        if (page(step).page % tensor_chunk_pages == 0) end_chunk();
        finish_products(scores_);
    }
    __device__ void multiply_last() {
        settle(output_);
        settle(p_);
        begin_products();
        add_column_products(output_, p_, values(pages_), !starts_chunk_);
        commit_products();
        finish_products(output_);
        settle(p_);
    }

    /// Converts the scores of a step to p, and rescales the output, to which the values of the page before have been
    /// added.
    __device__ void take_scores(int step) {
        const Tile tile = page(step);
        if (!all_see(tile)) mask_scores(tile);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float shrink = take_row(r, maximum_of(r));
            if (!starts_chunk_) rescale_output(r, shrink);
        }
        convert_p();
    }
    /// Merges the finished chunk into those before it.
    __device__ void end_chunk() {
        merge_chunk();
        any_merged_ = true;
        begin_sums();
        starts_chunk_ = true;
    }

    int pages_;                 ///< of the unit
    bool starts_chunk_ = true;  ///< output_ is undefined: the next products begin it
};

/// Grid [units, kv_heads].
template <int DIM>
__global__ void __launch_bounds__(WarpgroupTile<DIM>::threads, 1) warpgroup_kernel(AttentionArgs args) {
    const PlanUnit unit = args.units[blockIdx.x];
    WarpgroupUnit<DIM>(args, unit, static_cast<int>(blockIdx.y)).run();
}

}  // namespace longhaul::kernels::cuda
