// Attention on tensor cores for many queries that see the same pages: 128 queries per block, and products of whole
// warpgroups (wgmma in code for sm_90a). The same order of sums as in attention_tensor.cuh, so the same bits.
//
// Work of a block. Two warpgroups have 64 queries each. The products of a step are those of p with the values of a
// page, and those of the queries with the keys of the next one; a chunk that has ended is merged while the latter run.
// Between scores and p, a warp issues about 560 instructions per page, which take longer than the products: a page
// takes 3550 clocks. Taking turns at a barrier, one warpgroup computing p while the other one has products computed,
// took as long, because then only one warp of a scheduler computes.
//
// The warpgroups share what the block loads, because L2 does not deliver 32 KB in 512 clocks. A stage of the queue has
// the keys of a page and the values of the page before; each warpgroup loads its part of a stage while its own products
// run. All that is kept per query is in registers, even the output of the span: shared memory is busy with what the
// products read.
//
// A block has a multiprocessor for itself, so nothing hides how it begins and ends. Units therefore cover several spans
// where there are enough of them, and the pages of a span follow those of the one before without a break. At the end of
// a span its partial result is stored, or, if the unit has all spans of its rows, merged with what is stored already:
// registers cannot hold both, and the merge kernel then reads one partial result instead of one of each span.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace longhaul::kernels::cuda {

template <int DIM>
class WarpgroupUnit : TensorRows<WarpgroupTile<DIM>> {
    using T = WarpgroupTile<DIM>;
    using Rows = TensorRows<T>;

  public:
    __device__ WarpgroupUnit(const AttentionArgs& args, const PlanUnit& unit, int kv_head)
        : Rows(args, unit, kv_head) {}

    __device__ void run() {
        find_pages();
        __syncthreads();
#pragma unroll 1
        for (int stage = 0; stage < T::stages; ++stage) load(first() + stage);
        find_queries();  // while the first pages are on their way
        __syncthreads();
        load_queries();
        begin_sums();
        clear_span();
        wait_copies<T::stages - 1>();
        publish_panel();
        __syncthreads();
        multiply_first();
#pragma unroll 1
        for (int step = first();; ++step) {
            take_scores(step);
            begin_stage(step + 1);
            if (step + 1 >= end()) break;
            multiply(step + 1);
        }
        multiply_last();
        end_chunk(end() - 1);
        store_span(end() - 1);
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
    using Rows::find_queries;
    using Rows::found;
    using Rows::kv_head_;
    using Rows::load_queries;
    using Rows::mask_scores;
    using Rows::maximum_of;
    using Rows::merge_chunk;
    using Rows::merged_maximum_;
    using Rows::merged_sum_;
    using Rows::output_;
    using Rows::p_;
    using Rows::pages;
    using Rows::q_;
    using Rows::queries;
    using Rows::query;
    using Rows::rescale_output;
    using Rows::scores_;
    using Rows::shared_;
    using Rows::span_;
    using Rows::store;
    using Rows::take_row;
    using Rows::unit_;

    /// Steps: those of the unit, from first() to end(), read from shared memory each time.
    [[nodiscard]] __device__ int first() const {
        return unit_.first_page - unit_.chunk_begin * tensor_chunk_pages;
    }
    [[nodiscard]] __device__ int end() const {
        const int end = unit_.chunk_end * tensor_chunk_pages;
        return (unit_.common_end < end ? unit_.common_end : end) - unit_.chunk_begin * tensor_chunk_pages;
    }
    __device__ void find_pages() {
        for (int step = first() + static_cast<int>(threadIdx.x); step < end(); step += T::threads)
            pages()[step] = args_.page(unit_.pages + step) + args_.block(kv_head_, false);
    }
    /// Steps are counted as the pages of the unit are. The page whose scores are computed in a step:
    [[nodiscard]] __device__ Tile page(int step) const {
        return {unit_.chunk_begin * tensor_chunk_pages + step, -1, true};
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
        const int thread = reread_thread();
        const int row = thread / T::pieces, piece = thread % T::pieces;
        const int row_bytes = args_.shape.row_bytes;
        const bool is_there = step >= first() && step < end() && piece * 16 < row_bytes;
        if (!is_there) step = first();
        const int left = is_there ? unit_.seen_by_one - before(page(step)) - row : 0;
        const std::byte* from = pages()[step] + (values ? args_.shape.block_bytes : 0) + row * row_bytes + piece * 16;
        to += T::place(row, piece);
#pragma unroll
        for (int slot = 0; slot < tile_tokens; slot += slots) {
            copy_async_16(to + slot * T::stride, from, slot < left);
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

    /// The products with the first stage, with a stage between, and with the last one.
    __device__ void multiply_first() {
        settle(q_);
        begin_products();
        add_row_products(scores_, q_, keys(first()));
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
        if (step % tensor_chunk_pages == 0) end_chunk(step - 1);
        if (step % tensor_span_pages == 0) end_span(step - 1);
        finish_products(scores_);
    }
    __device__ void multiply_last() {
        settle(output_);
        settle(p_);
        begin_products();
        add_column_products(output_, p_, values(end()), !starts_chunk_);
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
    /// Merges the chunk that a step has finished into those of its span before it.
    __device__ void end_chunk(int step) {
        any_merged_ = step / tensor_chunk_pages * tensor_chunk_pages > begin_of_span(step);
        merge_chunk();
        begin_sums();
        starts_chunk_ = true;
    }
    __device__ void end_span(int step) {
        store_span(step);
        clear_span();
    }
    __device__ void clear_span() {
        for (int n = 0; n < T::output_tiles; ++n) span_.put(n, {});
    }
    /// Stores the span that a step has finished. Rows of a unit begin in the same span and may end in different ones.
    __device__ void store_span(int step) {
        const int span = step / tensor_span_pages, begin = begin_of_span(step) * tile_tokens;
        if (span > 0 && queries()[0].next_entry == 0) merge_span(begin);
        store(span, begin);
    }
    /// Merges the finished span into those before it, which are in its entry: as attention_merge.cuh merges entries of
    /// whole spans. Each thread loads what it has stored.
    __device__ void merge_span(int begin) {
        float2 before[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (query(r).seen > begin) before[r] = load_merged(r);
        }
        __syncwarp();  // before one lane of a row stores its maximum and sum, which all four have loaded
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (query(r).seen > begin) merge_span_of(r, before[r]);
        }
    }
    /// Loads the merged outputs to output_, which is not in use between chunks; returns maximum and sum.
    __device__ float2 load_merged(int r) {
        const std::int64_t at = query(r).entry;
        const int first_dim = reread_thread() % 4 * 2;
        const float* from = args_.outputs + at * args_.shape.head_dim;
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            const int d = first_dim + n * 8;
            if (d >= args_.shape.head_dim) continue;
            const float2 merged = *reinterpret_cast<const float2*>(from + d);
            output_[n][2 * r] = merged.x;
            output_[n][2 * r + 1] = merged.y;
        }
        return args_.softmax[at];
    }
    __device__ void merge_span_of(int r, float2 before) {
        const float maximum = fmaxf(before.x, merged_maximum_[r]);
        // That of scores which are all -infinity is NaN, as in the merge kernel.
        const float left = before.x == minus_infinity() ? quiet_nan() : exp2_of(__fsub_rn(before.x, maximum));
        const float right = exp2_of(__fsub_rn(merged_maximum_[r], maximum));
        merged_maximum_[r] = maximum;
        merged_sum_[r] = __fmaf_rn(merged_sum_[r], right, __fmul_rn(before.y, left));
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            for (int i = 2 * r; i < 2 * r + 2; ++i)
                span_.kept[n][i] = __fmaf_rn(span_.kept[n][i], right, __fmul_rn(output_[n][i], left));
        }
    }
    /// The first step of a step's span.
    [[nodiscard]] __device__ int begin_of_span(int step) const {
        const int begin = step / tensor_span_pages * tensor_span_pages;
        return begin > first() ? begin : first();
    }

    bool starts_chunk_ = true;  ///< output_ is undefined: the next products begin it
};

/// The unit, with all that counts from its beginning counted from that of its first span.
__device__ __forceinline__ PlanUnit from_begin_of_span(PlanUnit unit) {
    const int chunks = unit.chunk_begin % tensor_span_chunks;
    unit.chunk_begin -= chunks;
    unit.pages -= chunks * tensor_chunk_pages;
    unit.seen_by_one += chunks * tensor_chunk_tokens;
    unit.seen_by_all += chunks * tensor_chunk_tokens;
    unit.hidden_from_one += chunks * tensor_chunk_tokens;
    return unit;
}

/// Grid [units, kv_heads].
template <int DIM>
__global__ void __launch_bounds__(WarpgroupTile<DIM>::threads, 1) warpgroup_kernel(AttentionArgs args) {
    // In shared memory: a page needs it once or twice, and registers are scarce.
    static_assert(sizeof(PlanUnit) <= 128);
    auto* const unit = reinterpret_cast<PlanUnit*>(shared_memory<std::byte>() + WarpgroupTile<DIM>::unit_at);
    if (threadIdx.x == 0) *unit = from_begin_of_span(args.units[blockIdx.x]);
    __syncthreads();
    WarpgroupUnit<DIM>(args, *unit, static_cast<int>(blockIdx.y)).run();
}

}  // namespace longhaul::kernels::cuda
