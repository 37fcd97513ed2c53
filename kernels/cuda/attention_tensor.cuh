// Attention over bf16 keys and values on tensor cores: one block computes one unit of the plan for one KV head.
//
// Order of sums (numerics different from the CPU's). Chunks of 128 absolute positions are processed page by page, 64
// positions each. q·k is a chain of mma over ascending steps of 16 dimensions, starting at 0. Scores are in units of
// log2: score = q·k * (scale * log2 e). Each chunk keeps a running maximum m, sums l and output o. For each page, with
// m the greatest q·k * (scale * log2 e) so far, a = 2^(m before - m) and p = 2^fma(q·k, scale * log2 e, -m), where 2^x
// is exp2_of():
//   lane t of four has a sum for each group of 16 positions: l = fma(l, a, the p of its positions, which are 2t, 2t + 1
//   of each 8, ascending)
//   o = o * a, then a chain of mma over ascending steps of 16 positions adds bf16(p) * v
// At the end of the chunk, the sums of a lane are added, (l0 + l1) + (l2 + l3), then those of the lanes likewise.
// Chunks are merged as in numerics.hpp (with 2^x, and an fma), but in spans of 8 that start at multiples of 8; spans
// are merged likewise. An output of -0 becomes 0, and one that is not finite NaN, when all is merged: until then they
// may depend on the tile.
//
// The order depends only on absolute positions: an element of an mma depends only on its row of one operand and its
// column of the other, and positions that a row does not see have p = 0, and their values are treated as finite. So the
// result does not depend on the tile, unit or block that computes it, nor on where the keys are stored.
//
// Work of a block. Four warps are arranged as ROW_WARPS x column_warps; each warp takes 16 of the ROW_WARPS * 16
// queries of a tile. A narrow tile (one row of warps) is for few queries, where latency and memory bandwidth are the
// limit: its warps split the positions of a page for scores and p, and the dimensions for the output; they exchange
// maxima and p through shared memory. In a wide tile each warp has its own queries and all columns. The arithmetic is
// identical by construction. Rows of 8 queries that the tile does not have are skipped.
//
// Keys are loaded up to two pages ahead, values one, and nothing but the addresses of its pages keeps a block from
// starting the first loads.
#pragma once

#include "kernels/cuda/attention_nonfinite.cuh"
#include "kernels/cuda/attention_tensor_shape.cuh"
#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {

template <int DIM, int ROW_WARPS>
class TensorUnit {
    using T = TensorTile<DIM, ROW_WARPS>;

  public:
    __device__ TensorUnit(const AttentionArgs& args, const PlanUnit& unit, int kv_head)
        : args_(args),
          unit_(unit),
          kv_head_(kv_head),
          shared_(shared_memory<std::byte>()),
          lane_(static_cast<int>(threadIdx.x) % 32),
          row_warp_(static_cast<int>(threadIdx.x) / 32 / T::column_warps),
          column_warp_(static_cast<int>(threadIdx.x) / 32 % T::column_warps),
          span_(shared_ + 2 * T::stage_bytes) {}

    __device__ void run() {
        find_queries();
        find_pages();
        clear_padding();
        __syncthreads();
        begin_chunk();
        TileWalk walk(args_, unit_, tensor_chunk_pages, T::is_narrow);
        Tile tile{}, next{};
        // The first two turns only load, so that the code that loads is there once.
#pragma unroll 1
        for (int turn = -2; turn < 0 || tile.is_there; ++turn) {
            const bool computes = turn >= 0;
            const bool all = all_see(tile);
            clear_scores();
            if (computes) {
                wait_copies<2>();  // the keys of this page; its values and the next keys may still be in flight
                __syncthreads();   // and no thread reads the other page's values any more
            }
            load(next, true, values(turn + 1));
            if (computes) {
                compute_scores(tile, turn, all);
                wait_copies<2>();
                __syncthreads();  // values are there, maxima exchanged, and no thread reads this page's keys any more
            }
            load(walk.tile(), false, keys(turn));
            if (turn == -2) load_queries();  // behind the first keys: it takes hundreds of instructions
            if (computes) {
                if (!all) find_nonfinite<T>(values(turn), found());
                take_scores();
                if (!all) {
                    if constexpr (!T::is_narrow) __syncthreads();  // a narrow tile had its barrier when it exchanged p
                    hide_nonfinite(tile, turn);
                }
                if (has_row(0)) add_values(turn);
                if (!next.is_there || next.page / tensor_chunk_pages != tile.page / tensor_chunk_pages) end_chunk();
            }
            tile = next;
            next = walk.tile();
            walk.advance();
        }
        store();
    }

  private:
    __device__ std::byte* keys(int turn) const {
        return shared_ + (turn & 1) * T::stage_bytes;
    }
    __device__ std::byte* values(int turn) const {
        return keys(turn) + T::matrix_bytes;
    }
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
        const int i = static_cast<int>(threadIdx.x) - (attention_threads - tensor_unit_pages);
        const int page = unit_.chunk_begin * tensor_chunk_pages + i;
        if (i < 0 || page < unit_.first_page || page >= unit_.common_end) return;
        if (page >= unit_.chunk_end * tensor_chunk_pages) return;
        pages()[i] = args_.page(unit_.pages + i) + args_.block(kv_head_, false);
    }
    /// Index of row r of the lane among the queries of the tile.
    [[nodiscard]] __device__ int index_of(int r) const {
        return row_warp_ * 16 + lane_ / 4 + 8 * r;
    }
    [[nodiscard]] __device__ const TileQuery& query(int r) const {
        return queries()[index_of(r)];
    }
    /// Whether the tile has any query in the lanes' rows r of this warp.
    [[nodiscard]] __device__ bool has_row(int r) const {
        return row_warp_ * 16 + 8 * r < unit_.num_queries;
    }

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
    [[nodiscard]] __device__ int before(const Tile& tile) const {
        return page_of(tile) * tile_tokens;
    }

    /// Loads the warp's queries as fragments, directly from global memory.
    __device__ void load_queries() {
        const std::uint32_t* from[2];
        bool is_there[2];
        for (int r = 0; r < 2; ++r) {
            is_there[r] = query(r).plan_row >= 0;
            from[r] = reinterpret_cast<const std::uint32_t*>(args_.q +
                                                             std::int64_t{query(r).query} * args_.shape.head_dim * 2);
        }
        const int words = args_.shape.head_dim / 2;
#pragma unroll
        for (int step = 0; step < T::steps; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int word = step * 8 + lane_ % 4 + i / 2 * 4;
                q_[step][i] = is_there[i % 2] && word < words ? from[i % 2][word] : 0;
            }
        }
    }

    /// Zeroes dimensions that pages do not have, once: no load overwrites them.
    __device__ void clear_padding() {
        const int pieces = args_.shape.row_bytes / 16;
        if (pieces == T::pieces) return;
        for (int i = static_cast<int>(threadIdx.x); i < 4 * tile_tokens; i += attention_threads) {
            for (int piece = pieces; piece < T::pieces; ++piece) {
                *reinterpret_cast<uint4*>(shared_ + i * T::stride + piece * 16) = make_uint4(0, 0, 0, 0);
            }
        }
    }

    /// Starts loading the keys or values of a tile as one copy group, which is empty if there is no tile.
    __device__ void load(const Tile& tile, bool values, std::byte* to) {
        if (tile.is_there && tile.row < 0) load_common(tile, values, to);
        if constexpr (T::is_narrow) {  // wide tiles have common pages only
            if (tile.is_there && tile.row >= 0) load_own(tile, values, to);
        }
        commit_copies();
    }
    /// From an address that find_pages() found. Values that no query sees are zeroed.
    __device__ void load_common(const Tile& tile, bool values, std::byte* to) {
        constexpr int slots = attention_threads / T::pieces;  // at a time
        const int first = static_cast<int>(threadIdx.x) / T::pieces;
        const int piece = static_cast<int>(threadIdx.x) % T::pieces;
        const int row_bytes = args_.shape.row_bytes;
        if (piece * 16 >= row_bytes) return;
        const std::byte* from =
            pages()[page_of(tile)] + (values ? args_.shape.block_bytes : 0) + first * row_bytes + piece * 16;
        to += first * T::stride + piece * 16;
        const int end = unit_.seen_by_one - before(tile) - first;
        if (row_bytes == DIM * 2 && end >= tile_tokens - first) {  // almost always: all offsets are constants
#pragma unroll
            for (int slot = 0; slot < tile_tokens; slot += slots) {
                copy_async_16(to + slot * T::stride, from + slot * DIM * 2);
            }
            return;
        }
#pragma unroll 1
        for (int slot = 0; slot < tile_tokens; slot += slots) {
            if (slot < end) {
                copy_async_16(to, from);
            } else if (values) {
                *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            }
            to += slots * T::stride;
            from += slots * row_bytes;
        }
    }

    /// Gathers the positions of a row's own path. Addresses are looked up several at a time, without branches: each
    /// takes loads that depend on each other. A slot that the row does not see is looked up as the last one that it
    /// does.
    __device__ void load_own(const Tile& tile, bool values, std::byte* to) {
        constexpr int slots = attention_threads / T::pieces;
        constexpr int at_once = tile_tokens / slots < 4 ? tile_tokens / slots : 4;
        const int piece = static_cast<int>(threadIdx.x) % T::pieces;
        const int row_bytes = args_.shape.row_bytes;
        if (piece * 16 >= row_bytes) return;
        const PlanRow& row = args_.rows[tile.row];
        const int end = seen_of(row) - before(tile);
        const auto in_page = static_cast<int>(row.in_pages - std::int64_t{tile.page} * tile_tokens);  // may be negative
        const std::int32_t* const path = args_.paths + row.first_path;
        const std::int64_t page = row.pages + tile.page, scratch = row.scratch;
        const std::int64_t within = args_.block(kv_head_, values) + piece * 16;
        to += piece * 16;
#pragma unroll 1
        for (int begin = static_cast<int>(threadIdx.x) / T::pieces; begin < tile_tokens; begin += at_once * slots) {
            const std::byte* from[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const int slot = begin + i * slots < end ? begin + i * slots : end - 1;
                const int on_path = path[slot > in_page ? slot - in_page : 0];
                const bool in_pages = slot < in_page;
                const std::byte* start = args_.page(in_pages ? page : scratch + on_path / tile_tokens);
                from[i] = start + within + (in_pages ? slot : on_path % tile_tokens) * row_bytes;
            }
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const int slot = begin + i * slots;
                if (slot < end) {
                    copy_async_16(to + slot * T::stride, from[i]);
                } else if (values) {
                    *reinterpret_cast<uint4*>(to + slot * T::stride) = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }

    /// scores_[n]: q·k at the warp's n-th 8 positions, -infinity where a row does not see them; maxima_: the greatest
    /// of each row, exchanged between the warps of a narrow tile.
    __device__ void compute_scores(const Tile& tile, int turn, bool all) {
        if (!has_row(0)) return;
        multiply_keys(turn);
        if (!all) mask_scores(tile);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!has_row(r)) continue;
            float maximum = scores_[0][2 * r];
#pragma unroll
            for (int n = 0; n < T::score_tiles; ++n) {
                maximum = fmaxf(maximum, fmaxf(scores_[n][2 * r], scores_[n][2 * r + 1]));
            }
            for (int step = 1; step <= 2; step *= 2) {
                maximum = fmaxf(maximum, __shfl_xor_sync(full_warp, maximum, step));
            }
            maxima_[r] = maximum;
            if (T::is_narrow && lane_ % 4 == 0) shared_maxima()[index_of(r) * 4 + column_warp_] = maximum;
        }
    }
    /// Done every turn, whatever it computes, so that no register keeps the scores of the last one.
    __device__ void clear_scores() {
#pragma unroll
        for (int n = 0; n < T::score_tiles; ++n) {
            for (float& score : scores_[n]) score = 0.0F;
        }
        for (float& maximum : maxima_) maximum = minus_infinity();
    }
    __device__ void multiply_keys(int turn) {
        const int in_matrix = lane_ % 8;
        // The ldmatrix loads positions n.. with dimensions k.. and k + 8.., then the next 8 positions.
        const std::byte* row =
            keys(turn) + (first_position() + lane_ / 16 * 8 + in_matrix) * T::stride + lane_ / 8 % 2 * 16;
#pragma unroll
        for (int step = 0; step < T::steps; ++step) {
#pragma unroll
            for (int n = 0; n < T::score_tiles; n += 2) {
                std::uint32_t k[4];
                load_matrix_x4(k, row + n * 8 * T::stride + step * 32);
                mma_bf16(scores_[n], q_[step], {k[0], k[1]});
                mma_bf16(scores_[n + 1], q_[step], {k[2], k[3]});
            }
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
                    const int position = first_position() + 8 * n + lane_ % 4 * 2 + i;
                    if (position < from || position >= to) scores_[n][2 * r + i] = minus_infinity();
                }
            }
        }
    }
    /// The first position of the page whose scores the warp computes.
    [[nodiscard]] __device__ int first_position() const {
        return column_warp_ * T::score_tiles * 8;
    }
    /// Narrow tiles only: [queries, 4 column warps].
    [[nodiscard]] __device__ float* shared_maxima() const {
        return reinterpret_cast<float*>(shared_ + T::maxima_at);
    }
    /// Narrow tiles only: [queries, 4 lanes, 4 column warps].
    [[nodiscard]] __device__ float* shared_sums() const {
        return reinterpret_cast<float*>(shared_ + T::sums_at);
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

    /// Converts scores to probabilities (p_) and rescales sums and outputs to the new maxima.
    __device__ void take_scores() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!has_row(r)) continue;
            if constexpr (T::is_narrow) {
                const float4 all = reinterpret_cast<const float4*>(shared_maxima())[index_of(r)];
                maxima_[r] = fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
            }
            const float shrink = take_row(r);
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                output_[n][2 * r] = __fmul_rn(output_[n][2 * r], shrink);
                output_[n][2 * r + 1] = __fmul_rn(output_[n][2 * r + 1], shrink);
            }
        }
        if constexpr (T::is_narrow) {
            exchange_p();
        } else {
            convert_p();
        }
    }
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

    /// Processes row r of the lane; returns the factor that rescales its output.
    __device__ float take_row(int r) {
        const float maximum = fmaxf(row_maximum_[r], __fmul_rn(maxima_[r], args_.log2_scale));
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

    /// Each warp of a narrow tile has the p of 16 positions; all receive those of 64.
    __device__ void exchange_p() {
        std::byte* const shared = shared_ + 2 * T::stage_bytes;
        std::byte* const to = shared + lane_ / 4 * T::p_stride + (first_position() + lane_ % 4 * 2) * 2;
#pragma unroll
        for (int n = 0; n < T::score_tiles; ++n) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                *reinterpret_cast<std::uint32_t*>(to + 8 * r * T::p_stride + n * 16) =
                    round_to_bf16(scores_[n][2 * r], scores_[n][2 * r + 1]);
            }
        }
        __syncthreads();
        const std::byte* from = shared + lane_ % 16 * T::p_stride + lane_ / 16 * 16;
#pragma unroll
        for (int step = 0; step < 4; ++step) load_matrix_x4(p_[step], from + step * 32);
    }

    __device__ void add_values(int turn) {
        // The ldmatrix loads 32 positions of 8 dimensions.
        const std::byte* row = values(turn) + lane_ * T::stride + column_warp_ * T::output_tiles * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                std::uint32_t v[4];
                load_matrix_x4_transposed(v, row + half * 32 * T::stride + n * 16);
                mma_bf16(output_[n], p_[2 * half], {v[0], v[1]});
                mma_bf16(output_[n], p_[2 * half + 1], {v[2], v[3]});
            }
        }
    }

    [[nodiscard]] __device__ int* found() const {
        return reinterpret_cast<int*>(shared_ + T::found_at);
    }
    /// After find_nonfinite() and a barrier.
    __device__ void hide_nonfinite(const Tile& tile, int turn) {
        const int4 warps = *reinterpret_cast<const int4*>(found());
        if ((warps.x | warps.y | warps.z | warps.w) == 0) return;
        apply_nonfinite(tile, turn);
        __syncthreads();
        clear_nonfinite<T>(values(turn));
        __syncthreads();
    }
    /// A sum with a non-finite term ends as NaN whatever its factor (the merge kernel), so NaN is stored directly.
    __device__ void apply_nonfinite(const Tile& tile, int turn) {
        const int first = (column_warp_ * T::output_tiles * 8 + lane_ % 4 * 2) * 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll 1
            for (int slot = hidden(tile, r); slot < visible(tile, r) && slot < tile_tokens; ++slot) {
                const std::byte* const row = values(turn) + slot * T::stride + first;
#pragma unroll
                for (int n = 0; n < T::output_tiles; ++n) {
                    const std::uint32_t found = nonfinite(*reinterpret_cast<const std::uint32_t*>(row + n * 16));
                    if ((found & 0xffffU) != 0) output_[n][2 * r] = quiet_nan();
                    if (found >> 16 != 0) output_[n][2 * r + 1] = quiet_nan();
                }
            }
        }
    }

    __device__ void begin_chunk() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            row_maximum_[r] = minus_infinity();
            for (float& sum : row_sums_[r]) sum = 0.0F;
        }
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            for (float& value : output_[n]) value = 0.0F;
        }
    }

    /// Merges the finished chunk into those before it.
    __device__ void end_chunk() {
        if constexpr (T::is_narrow) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                shared_sums()[(index_of(r) * 4 + lane_ % 4) * 4 + column_warp_] = row_sums_[r][0];
            }
            __syncthreads();
        }
        if (has_row(0)) merge_chunk();
        any_merged_ = true;
        begin_chunk();
    }

    __device__ void merge_chunk() {
        float left[2], right[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) merge_row(r, left[r], right[r]);
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            if (any_merged_) {
                const float4 before = span_.get(n);
                const float kept[4] = {before.x, before.y, before.z, before.w};
                for (int i = 0; i < 4; ++i) {
                    output_[n][i] = __fmaf_rn(output_[n][i], right[i / 2], __fmul_rn(kept[i], left[i / 2]));
                }
            }
            span_.put(n, output_[n]);
        }
    }

    /// Merges maximum and sum of row r; sets the factors of the outputs before and of this chunk.
    __device__ void merge_row(int r, float& left, float& right) {
        const float sum = sum_of_lanes(r);
        if (!any_merged_) {
            merged_maximum_[r] = row_maximum_[r];
            merged_sum_[r] = sum;
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
            of = reinterpret_cast<const float4*>(shared_sums())[index_of(r) * 4 + lane_ % 4];
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
            const int first = column_warp_ * T::output_tiles * 8 + lane_ % 4 * 2;
            float* to = args_.outputs + at * args_.shape.head_dim;
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                const int d = first + n * 8;
                if (d >= args_.shape.head_dim) continue;
                const float4 kept = span_.get(n);
                *reinterpret_cast<float2*>(to + d) = r == 0 ? make_float2(kept.x, kept.y) : make_float2(kept.z, kept.w);
            }
            if (column_warp_ == 0 && lane_ % 4 == 0) {
                args_.softmax[at] = make_float2(merged_maximum_[r], merged_sum_[r]);
            }
        }
    }

    const AttentionArgs& args_;
    const PlanUnit& unit_;
    int kv_head_;
    std::byte* shared_;
    int lane_;
    int row_warp_;
    int column_warp_;
    std::uint32_t q_[T::steps][4];
    float scores_[T::score_tiles][4];
    std::uint32_t p_[4][4];
    // Of the lane's two rows, g and g + 8 of the warp's queries.
    float maxima_[2];               ///< of the page, unscaled
    float row_maximum_[2];          ///< of the chunk so far
    float row_sums_[2][T::groups];  ///< over this lane's positions in each group
    float output_[T::output_tiles][4];
    float merged_maximum_[2];
    float merged_sum_[2];
    SpanOutput<T::output_tiles, T::is_narrow> span_;
    bool any_merged_ = false;
};

/// Grid [units, kv_heads].
template <int DIM, int ROW_WARPS>
__global__ void __launch_bounds__(attention_threads, (TensorTile<DIM, ROW_WARPS>::blocks))
    tensor_kernel(AttentionArgs args) {
    const PlanUnit unit = args.units[blockIdx.x];
    TensorUnit<DIM, ROW_WARPS>(args, unit, static_cast<int>(blockIdx.y)).run();
}

}  // namespace longhaul::kernels::cuda
