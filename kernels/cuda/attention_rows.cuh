// What the kernels of attention on tensor cores share (attention_tensor.cuh, attention_warpgroup.cuh), whose warps
// each have 16 queries: which positions the queries see, and what happens to scores and outputs between the products.
// The order of sums is described in attention_tensor.cuh.
#pragma once

#include "kernels/cuda/attention_nonfinite.cuh"
#include "kernels/cuda/attention_tensor_shape.cuh"
#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {

/// One thread's part of a tile of queries; T: a TensorTile or WarpgroupTile.
template <class T>
class TensorRows {
  protected:
    __device__ TensorRows(const AttentionArgs& args, const PlanUnit& unit, int kv_head)
        : args_(args),
          unit_(unit),
          kv_head_(kv_head),
          shared_(shared_memory<std::byte>()),
          lane_(static_cast<int>(threadIdx.x) % 32),
          row_warp_(static_cast<int>(threadIdx.x) / 32 / T::column_warps),
          column_warp_(static_cast<int>(threadIdx.x) / 32 % T::column_warps),
          span_(shared_ + T::span_at) {}

    [[nodiscard]] __device__ int lane() const { return T::registers_are_full ? reread_thread() % 32 : lane_; }
    [[nodiscard]] __device__ TileQuery* queries() const {
        return reinterpret_cast<TileQuery*>(shared_ + T::queries_at);
    }
    /// The keys of this KV head, per page of the unit; only of common pages.
    [[nodiscard]] __device__ const std::byte** pages() const {
        return reinterpret_cast<const std::byte**>(shared_ + T::pages_at);
    }

    __device__ void find_queries() {
        const int index = static_cast<int>(threadIdx.x);
        if (index >= T::queries) return;
        const Query query = query_of(args_, unit_, index, kv_head_);
        TileQuery mine{.entry = 0, .query = 0, .plan_row = query.plan_row, .seen = 0, .hidden = 0, .padding = 0};
        if (query.plan_row >= 0) {
            const PlanRow& row = args_.rows[query.plan_row];
            mine.entry = (row.first_entry + unit_.entry) * args_.q_heads + query.head;
            mine.query = row.row * args_.q_heads + query.head;
            mine.seen = seen_of(row);
            mine.hidden = hidden_from(row);
        }
        queries()[index] = mine;
    }
    /// Done by the last warp, while the first ones find the queries.
    __device__ void find_pages() {
        const int i = static_cast<int>(threadIdx.x) - (T::threads - tensor_unit_pages);
        const int page = unit_.chunk_begin * tensor_chunk_pages + i;
        if (i < 0 || page < unit_.first_page || page >= unit_.common_end) return;
        if (page >= unit_.chunk_end * tensor_chunk_pages) return;
        pages()[i] = args_.page(unit_.pages + i) + args_.block(kv_head_, false);
    }
    /// Index of row r of the lane among the queries of the tile.
    [[nodiscard]] __device__ int index_of(int r) const { return row_warp_ * 16 + lane() / 4 + 8 * r; }
    [[nodiscard]] __device__ const TileQuery& query(int r) const { return queries()[index_of(r)]; }
    /// Whether the tile has any query in the lanes' rows r of this warp.
    [[nodiscard]] __device__ bool has_row(int r) const { return row_warp_ * 16 + 8 * r < unit_.num_queries; }

    /// Number of positions in the unit's chunks that a row sees, counted from their start.
    [[nodiscard]] __device__ int seen_of(const PlanRow& row) const {
        const std::int64_t seen = row.position + 1 - std::int64_t{unit_.chunk_begin} * tensor_chunk_tokens;
        const int all = (unit_.chunk_end - unit_.chunk_begin) * tensor_chunk_tokens;
        return seen < 0 ? 0 : seen < all ? static_cast<int>(seen) : all;
    }
    /// Number of positions in the unit's chunks before the row's window.
    [[nodiscard]] __device__ int hidden_from(const PlanRow& row) const {
        const std::int64_t hidden = row.first_visible - std::int64_t{unit_.chunk_begin} * tensor_chunk_tokens;
        return hidden < 0 ? 0 : static_cast<int>(hidden);
    }
    /// Index of the tile's page among those of the unit.
    [[nodiscard]] __device__ int page_of(const Tile& tile) const {
        return tile.page - unit_.chunk_begin * tensor_chunk_pages;
    }
    /// Number of positions in the unit before the tile.
    [[nodiscard]] __device__ int before(const Tile& tile) const { return page_of(tile) * tile_tokens; }

    /// Loads the warp's queries as fragments, directly from global memory. Those of int8 keys are f32, and are rounded.
    __device__ void load_queries() {
        constexpr int element_bytes = T::kv == DType::int8 ? 4 : 2;
        const std::byte* from[2];
        bool is_there[2];
        for (int r = 0; r < 2; ++r) {
            is_there[r] = query(r).plan_row >= 0;
            from[r] = args_.q + std::int64_t{query(r).query} * args_.shape.head_dim * element_bytes;
        }
#pragma unroll
        for (int step = 0; step < T::steps; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int dim = step * 16 + first_dim(i / 2);
                const std::byte* const at = from[i % 2] + dim * element_bytes;
                q_[step][i] = is_there[i % 2] && dim < args_.shape.head_dim ? load_pair(at) : 0;
            }
        }
    }
    /// The first dimension of a pair that the lane multiplies, within a step: of bytes, a lane has four in a row.
    [[nodiscard]] __device__ int first_dim(int pair) const {
        return T::kv == DType::int8 ? lane() % 4 * 4 + pair * 2 : lane() % 4 * 2 + pair * 8;
    }
    static __device__ std::uint32_t load_pair(const std::byte* from) {
        if constexpr (T::kv == DType::int8) {
            const float2 pair = *reinterpret_cast<const float2*>(from);
            return round_to_bf16(pair.x, pair.y);
        } else {
            return *reinterpret_cast<const std::uint32_t*>(from);
        }
    }

    __device__ void mask_scores(const Tile& tile) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int from = hidden(tile, r), to = visible(tile, r);
#pragma unroll
            for (int n = 0; n < T::score_tiles; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int position = first_position() + 8 * n + lane() % 4 * 2 + i;
                    if (position < from || position >= to) scores_[n][2 * r + i] = minus_infinity();
                }
            }
        }
    }
    /// The first position of the page whose scores the warp computes.
    [[nodiscard]] __device__ int first_position() const {
        return column_warp_ * T::score_tiles * 8;
    }
    /// Number of positions of this page that row r of the lane sees, counted from its start; 64 or more: all.
    __device__ int visible(const Tile& tile, int r) const {
        if (T::is_narrow && tile.row >= 0 && tile.row != query(r).plan_row) return 0;
        return query(r).seen - before(tile);
    }

    /// Number of positions of this page before the window of row r of the lane.
    __device__ int hidden(const Tile& tile, int r) const {
        const int hidden = query(r).hidden - before(tile);
        return hidden < 0 ? 0 : hidden;
    }

    /// Whether all queries of the unit see all positions of the tile.
    __device__ bool all_see(const Tile& tile) const {
        return tile.row < 0 && before(tile) + tile_tokens <= unit_.seen_by_all && before(tile) >= unit_.hidden_from_one;
    }

    /// The greatest score of row r of the lane on the warp's positions.
    [[nodiscard]] __device__ float maximum_of(int r) const {
        float maximum = scores_[0][2 * r];
#pragma unroll
        for (int n = 0; n < T::score_tiles; ++n) {
            maximum = fmaxf(maximum, fmaxf(scores_[n][2 * r], scores_[n][2 * r + 1]));
        }
        for (int step = 1; step <= 2; step *= 2) {
            maximum = fmaxf(maximum, __shfl_xor_sync(full_warp, maximum, step));
        }
        return maximum;
    }
    /// Converts the scores of row r of the lane to p, given the greatest of the page; returns the factor that rescales
    /// its output.
    __device__ float take_row(int r, float greatest) {
        const float maximum = fmaxf(row_maximum_[r], __fmul_rn(greatest, args_.log2_scale));
        const float base = maximum == minus_infinity() ? 0.0F : maximum;  // no position seen so far: all p are 0
        const float shrink = exp2_of(__fsub_rn(row_maximum_[r], base));
        row_maximum_[r] = maximum;
#pragma unroll
        for (int group = 0; group < T::groups; ++group) {
            float sum = 0.0F;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& score = scores_[2 * group + i / 2][2 * r + i % 2];
                score = exp2_of(__fmaf_rn(score, args_.log2_scale, -base));
                sum = i == 0 ? score : __fadd_rn(sum, score);
            }
            row_sums_[r][group] = __fmaf_rn(row_sums_[r][group], shrink, sum);
        }
        return shrink;
    }
    __device__ void rescale_output(int r, float shrink) {
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            output_[n][2 * r] = __fmul_rn(output_[n][2 * r], shrink);
            output_[n][2 * r + 1] = __fmul_rn(output_[n][2 * r + 1], shrink);
        }
    }
    /// p_: those of the scores of 64 positions.
    __device__ void convert_p() {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &scores_[2 * step + i / 2][i % 2 * 2];
                p_[step][i] = round_to_bf16(pair[0], pair[1]);
            }
        }
    }

    [[nodiscard]] __device__ int* found() const {
        return reinterpret_cast<int*>(shared_ + T::found_at);
    }
    /// After find_nonfinite() and a barrier.
    [[nodiscard]] __device__ bool any_nonfinite() const {
        int any = 0;
#pragma unroll
        for (int i = 0; i < T::warps / 4; ++i) {
            const int4 warps = reinterpret_cast<const int4*>(found())[i];
            any |= warps.x | warps.y | warps.z | warps.w;
        }
        return any != 0;
    }
    /// A sum with a non-finite term ends as NaN whatever its factor (the merge kernel), so NaN is stored directly.
    __device__ void apply_nonfinite(const Tile& tile, const std::byte* values) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll 1
            for (int slot = hidden(tile, r); slot < visible(tile, r) && slot < tile_tokens; ++slot) {
#pragma unroll
                for (int n = 0; n < T::output_tiles; ++n) {
                    const int place = T::place(slot, column_warp_ * T::output_tiles + n) + lane() % 4 * 4;
                    const std::uint32_t found = nonfinite(*reinterpret_cast<const std::uint32_t*>(values + place));
                    if ((found & 0xffffU) != 0) output_[n][2 * r] = quiet_nan();
                    if (found >> 16 != 0) output_[n][2 * r + 1] = quiet_nan();
                }
            }
        }
    }

    __device__ void begin_chunk() {
        begin_sums();
        clear_output();
    }
    __device__ void begin_sums() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            row_maximum_[r] = minus_infinity();
            for (float& sum : row_sums_[r]) sum = 0.0F;
        }
    }
    __device__ void clear_output() {
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            for (float& value : output_[n]) value = 0.0F;
        }
    }

    __device__ void merge_chunk() {
        float left[2], right[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) merge_row(r, left[r], right[r]);
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            float merged[4];
            for (int i = 0; i < 4; ++i) merged[i] = output_[n][i];
            if (T::span_begins_at_0 || any_merged_) {
                const float4 before = span_.get(n);
                const float kept[4] = {before.x, before.y, before.z, before.w};
                for (int i = 0; i < 4; ++i) {
                    merged[i] = __fmaf_rn(merged[i], right[i / 2], __fmul_rn(kept[i], left[i / 2]));
                }
            }
            span_.put(n, merged);
        }
    }

    /// Merges maximum and sum of row r; sets the factors of the outputs before and of this chunk.
    __device__ void merge_row(int r, float& left, float& right) {
        const float sum = sum_of_lanes(r);
        if (!any_merged_) {
            merged_maximum_[r] = row_maximum_[r];
            merged_sum_[r] = sum;
            if constexpr (T::span_begins_at_0) {
                left = 0.0F;
                right = 1.0F;
            }
            return;
        }
        const float maximum = fmaxf(merged_maximum_[r], row_maximum_[r]);
        left = exp2_of(__fsub_rn(merged_maximum_[r], maximum));
        right = exp2_of(__fsub_rn(row_maximum_[r], maximum));
        merged_maximum_[r] = maximum;
        merged_sum_[r] = __fmaf_rn(sum, right, __fmul_rn(merged_sum_[r], left));
    }

    /// The sum of row r over the chunk, in all lanes of the row.
    __device__ float sum_of_lanes(int r) const {
        float4 of;
        if constexpr (T::is_narrow) {
            of = reinterpret_cast<const float4*>(shared_sums())[index_of(r) * 4 + lane() % 4];
        } else {
            of = make_float4(row_sums_[r][0], row_sums_[r][1], row_sums_[r][2], row_sums_[r][3]);
        }
        float sum = __fadd_rn(__fadd_rn(of.x, of.y), __fadd_rn(of.z, of.w));
        for (int step = 1; step <= 2; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(full_warp, sum, step));
        return sum;
    }

    __device__ void store() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (query(r).seen == 0) continue;
            const std::int64_t at = query(r).entry;
            float* to = args_.outputs + at * args_.shape.head_dim;
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                const int d = column_warp_ * T::output_tiles * 8 + output_dim(n);
                if (d < args_.shape.head_dim) *reinterpret_cast<float2*>(to + d) = output_pair(n, r);
            }
            if (column_warp_ == 0 && lane() % 4 == 0) {
                args_.softmax[at] = make_float2(merged_maximum_[r], merged_sum_[r]);
            }
        }
    }
    /// The first dimension of the lane's n-th pair of outputs, of those of the warp. If bytes are converted in
    /// registers, two tiles share 16 dimensions: one has the even ones, the other one the odd ones.
    [[nodiscard]] __device__ int output_dim(int n) const {
        return T::converts_in_registers ? n / 2 * 16 + lane_ % 4 * 4 + n % 2 * 2 : n * 8 + lane_ % 4 * 2;
    }
    [[nodiscard]] __device__ float2 output_pair(int n, int r) const {
        if constexpr (T::converts_in_registers) {
            const float4 even = span_.get(n / 2 * 2), odd = span_.get(n / 2 * 2 + 1);
            if (r == 0) return n % 2 == 0 ? make_float2(even.x, odd.x) : make_float2(even.y, odd.y);
            return n % 2 == 0 ? make_float2(even.z, odd.z) : make_float2(even.w, odd.w);
        } else {
            const float4 kept = span_.get(n);
            return r == 0 ? make_float2(kept.x, kept.y) : make_float2(kept.z, kept.w);
        }
    }

    /// Narrow tiles only: [queries, 4 lanes, 4 column warps].
    [[nodiscard]] __device__ float* shared_sums() const {
        return reinterpret_cast<float*>(shared_ + T::sums_at);
    }
    const AttentionArgs& args_;
    const PlanUnit& unit_;
    int kv_head_;
    std::byte* shared_;
    int lane_;
    int row_warp_;
    int column_warp_;
    std::uint32_t q_[T::steps][4];
    float scores_[T::score_tiles][4];  ///< [n]: at the warp's n-th 8 positions; take_row() makes them p
    std::uint32_t p_[4][4];
    // Of the lane's two rows, g and g + 8 of the warp's queries.
    float row_maximum_[2];          ///< of the chunk so far
    float row_sums_[2][T::groups];  ///< over this lane's positions in each group
    float output_[T::output_tiles][4];
    float merged_maximum_[2];
    float merged_sum_[2];
    SpanOutput<T::output_tiles, T::span_in_registers> span_;
    bool any_merged_ = false;
};

}  // namespace longhaul::kernels::cuda
