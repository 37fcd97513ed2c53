// Attention over bf16 keys and values on tensor cores: one block computes one unit of the plan for one KV head.
//
// Order of sums (numerics different from the CPU's). Chunks of 128 absolute positions are processed page by page, 64
// positions each. score = (q·k, a chain of mma over ascending steps of 16 dimensions, starting at 0) * scale. Each
// chunk keeps a running maximum m, sum l and output o. For each page, with a = exp(m before - m) and p = exp(score -
// m):
//   lane t of four updates l = l * a + the p of its positions (2t, 2t + 1 of each 8, ascending)
//   o = o * a, then a chain of mma over ascending steps of 16 positions adds bf16(p) * v
// At the end of the chunk, l = (l0 + l1) + (l2 + l3); o + 0 is kept, or NaN where it is not finite. Chunks are merged
// as in numerics.hpp, but in spans of 8 that start at multiples of 8; spans are merged likewise.
//
// The order depends only on absolute positions: an element of an mma depends only on its row of one operand and its
// column of the other, and positions that a row does not see have p = 0, and their values are treated as finite. So the
// result does not depend on the tile, unit or block that computes it, nor on where the keys are stored.
//
// Work of a block. Four warps are arranged as ROW_WARPS x column_warps; each warp takes 16 of the ROW_WARPS * 16
// queries of a tile. A narrow tile (one row of warps) is for few queries, where memory bandwidth is the limit: its
// warps split each matmul by columns (positions of the scores, dimensions of the output) and exchange scores through
// shared memory. In a wide tile each warp has its own queries and all columns. The arithmetic is identical by
// construction: every warp ends up with the scores of its 16 queries and all 64 positions in the same registers. Keys
// and values of the next page are loaded while the current page is computed.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {

constexpr int tensor_chunk_pages = 2;
constexpr int tensor_chunk_tokens = tensor_chunk_pages * tile_tokens;
constexpr int tensor_span_chunks = 8;

/// Sizes of a kernel for heads of up to DIM dimensions.
template <int DIM, int ROW_WARPS>
struct TensorTile {
    static constexpr int warps = attention_threads / 32;
    static constexpr int column_warps = warps / ROW_WARPS;
    static constexpr int queries = ROW_WARPS * 16;
    static constexpr int steps = DIM / 16;                       ///< mma steps per score
    static constexpr int score_tiles = 8 / column_warps;         ///< tiles of 8 positions per warp
    static constexpr int output_tiles = DIM / 8 / column_warps;  ///< tiles of 8 dimensions per warp
    static constexpr int pieces_log2 = DIM == 32 ? 2 : DIM == 64 ? 3 : DIM == 128 ? 4 : 5;
    static constexpr int stride = DIM * 2 + 16;                ///< bytes per row; odd multiple of 16: no bank conflicts
    static constexpr int matrix_bytes = tile_tokens * stride;  ///< keys (or values) of a page
    static constexpr int stage_bytes = 2 * matrix_bytes;
    static constexpr int score_stride = tile_tokens + 8;  ///< floats per row of exchanged scores
    static constexpr int exchange_bytes = column_warps > 1 ? queries* score_stride * 4 : 0;
    static constexpr int span_bytes = column_warps > 1 ? 0 : queries* DIM * 4;
    static constexpr int queries_at = 2 * stage_bytes + exchange_bytes + span_bytes;
    static constexpr int shared_bytes = queries_at + queries * 16;
    static constexpr int blocks = DIM > 128 ? 1 : column_warps == 1 ? 2 : 3;  ///< min blocks per multiprocessor
};

/// A query of a tile. In shared memory: registers are scarce, and a page needs it once or twice.
struct TileQuery {
    int plan_row;  ///< -1: none
    int head;
    int seen;    ///< number of the unit's positions that it sees, counted from their start
    int hidden;  ///< of these, positions before its window
};
static_assert(sizeof(TileQuery) == 16);

/// Running maxima and sums of a lane's two rows, g and g + 8 of the warp's queries, in a 16 x 64 tile of scores.
struct LaneRows {
    float maximum[2];
    float sum[2];  ///< over this lane's positions only
};

/// Merged output of the unit's chunks so far, for the 16 queries of a warp: in registers, or in shared memory, where
/// each thread has its own column.
template <int COUNT, bool in_registers>
struct SpanOutput {
    float kept[COUNT];
    __device__ explicit SpanOutput(float* /*shared*/) {}
    __device__ float& at(int i) { return kept[i]; }
};
template <int COUNT>
struct SpanOutput<COUNT, false> {
    float* shared;
    __device__ explicit SpanOutput(float* shared_floats) : shared(shared_floats + threadIdx.x) {}
    __device__ float& at(int i) { return shared[i * attention_threads]; }
};

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
          last_seen_(seen_of(args.rows[end_row_of(args, unit) - 1])),
          span_(reinterpret_cast<float*>(shared_ + 2 * T::stage_bytes)) {}

    __device__ void run() {
        find_queries();
        load_queries();
        clear_padding();
        TileWalk walk(args_, unit_, tensor_chunk_pages);
        Tile tile = walk.tile();
        load(tile, 0);
        begin_chunk();
        for (int turn = 0; tile.is_there; turn ^= 1) {
            wait_copies<1>();  // the keys of this page; its values may still be in flight
            __syncthreads();   // and no thread reads the other stage any more
            walk.advance();
            const Tile next = walk.tile();
            load(next, turn ^ 1);
            compute_scores(turn);
            wait_copies<2>();
            __syncthreads();
            take_scores(tile);
            add_values(tile, turn, all_see(tile));
            if (!next.is_there || next.page / tensor_chunk_pages != tile.page / tensor_chunk_pages) end_chunk();
            tile = next;
        }
        store();
    }

  private:
    __device__ std::byte* keys(int turn) const { return shared_ + turn * T::stage_bytes; }
    __device__ std::byte* values(int turn) const { return keys(turn) + T::matrix_bytes; }

    __device__ void find_queries() {
        const int index = static_cast<int>(threadIdx.x);
        if (index < T::queries) {
            const Query query = query_of(args_, unit_, index, kv_head_);
            TileQuery& to = reinterpret_cast<TileQuery*>(shared_ + T::queries_at)[index];
            to = {query.plan_row, query.head, 0, 0};
            if (query.plan_row >= 0) {
                to.seen = seen_of(args_.rows[query.plan_row]);
                to.hidden = hidden_from(args_.rows[query.plan_row]);
            }
        }
        __syncthreads();
    }
    /// Row r of the lane.
    [[nodiscard]] __device__ const TileQuery& query(int r) const {
        return reinterpret_cast<const TileQuery*>(shared_ + T::queries_at)[row_warp_ * 16 + lane_ / 4 + 8 * r];
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
    /// Number of positions in the unit before the tile.
    [[nodiscard]] __device__ int before(const Tile& tile) const {
        return (tile.page - unit_.chunk_begin * tensor_chunk_pages) * tile_tokens;
    }

    /// Loads the warp's queries as fragments, directly from global memory.
    __device__ void load_queries() {
        const std::uint32_t* from[2];
        bool is_there[2];
        for (int r = 0; r < 2; ++r) {
            is_there[r] = query(r).plan_row >= 0;
            const std::int64_t row = is_there[r] ? args_.rows[query(r).plan_row].row : 0;
            from[r] = reinterpret_cast<const std::uint32_t*>(args_.q + (row * args_.q_heads + query(r).head) *
                                                                           args_.shape.head_dim * 2);
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
        if (pieces == DIM / 8) return;
        for (int i = static_cast<int>(threadIdx.x); i < 4 * tile_tokens; i += attention_threads) {
            for (int piece = pieces; piece < DIM / 8; ++piece) {
                *reinterpret_cast<uint4*>(shared_ + i * T::stride + piece * 16) = make_uint4(0, 0, 0, 0);
            }
        }
    }

    /// Starts loading the keys and values of a tile, one copy group each; commits two empty groups if there is no tile.
    __device__ void load(const Tile& tile, int turn) {
        if (!tile.is_there) {
            commit_copies();
            commit_copies();
            return;
        }
        const int plan_row = tile.row < 0 ? first_row_of(args_, unit_) : tile.row;
        const PlanRow& row = args_.rows[plan_row];
        const int left = (tile.row < 0 ? last_seen_ : seen_of(row)) - before(tile);
        const int end_slot = left < tile_tokens ? left : tile_tokens;
        load_tile(args_, tile, row, args_.block(kv_head_, false), end_slot, false, T::pieces_log2, keys(turn),
                  T::stride);
        commit_copies();
        load_tile(args_, tile, row, args_.block(kv_head_, true), end_slot, true, T::pieces_log2, values(turn),
                  T::stride);
        commit_copies();
    }

    /// scores_[n]: queries times keys of positions 8n..; in a narrow tile each warp computes a part and all warps
    /// receive it.
    __device__ void compute_scores(int turn) {
        const int first = column_warp_ * T::score_tiles;
        const int in_matrix = lane_ % 8;
        // The ldmatrix loads positions n.. with dimensions k.. and k + 8.., then the next 8 positions.
        const std::byte* row = keys(turn) + (first * 8 + lane_ / 16 * 8 + in_matrix) * T::stride + lane_ / 8 % 2 * 16;
        float mine[T::score_tiles][4];
#pragma unroll
        for (int n = 0; n < T::score_tiles; ++n) {
            for (float& score : mine[n]) score = 0.0F;
        }
#pragma unroll
        for (int step = 0; step < T::steps; ++step) {
#pragma unroll
            for (int n = 0; n < T::score_tiles; n += 2) {
                std::uint32_t k[4];
                load_matrix_x4(k, row + n * 8 * T::stride + step * 32);
                mma_bf16(mine[n], q_[step], {k[0], k[1]});
                mma_bf16(mine[n + 1], q_[step], {k[2], k[3]});
            }
        }
        if constexpr (T::column_warps > 1) {
            float* to = exchanged() + lane_ / 4 * T::score_stride + first * 8 + lane_ % 4 * 2;
#pragma unroll
            for (int n = 0; n < T::score_tiles; ++n) {
                *reinterpret_cast<float2*>(to + n * 8) = make_float2(mine[n][0], mine[n][1]);
                *reinterpret_cast<float2*>(to + 8 * T::score_stride + n * 8) = make_float2(mine[n][2], mine[n][3]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < T::score_tiles; ++n) {
                for (int i = 0; i < 4; ++i) scores_[n][i] = mine[n][i];
            }
        }
    }

    __device__ float* exchanged() const {
        return reinterpret_cast<float*>(shared_ + 2 * T::stage_bytes) + row_warp_ * 16 * T::score_stride;
    }

    /// Number of positions of this page that row r of the lane sees, counted from its start; 64 or more: all.
    __device__ int visible(const Tile& tile, int r) const {
        if (tile.row >= 0 && tile.row != query(r).plan_row) return 0;
        return query(r).seen - before(tile);
    }

    /// Number of positions of this page before the window of row r of the lane.
    __device__ int hidden(const Tile& tile, int r) const {
        const int hidden = query(r).hidden - before(tile);
        return hidden < 0 ? 0 : hidden;
    }

    /// Whether all queries of the warp see all positions of the tile.
    __device__ bool all_see(const Tile& tile) const {
        bool misses = false;
        for (int r = 0; r < 2; ++r)
            misses |= query(r).plan_row >= 0 && (visible(tile, r) < tile_tokens || hidden(tile, r) > 0);
        return __any_sync(full_warp, misses ? 1 : 0) == 0;
    }

    /// Converts scores to probabilities and rescales sums and outputs to the new maxima.
    __device__ void take_scores(const Tile& tile) {
        if constexpr (T::column_warps > 1) {
            const float* from = exchanged() + lane_ / 4 * T::score_stride + lane_ % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float2 low = *reinterpret_cast<const float2*>(from + n * 8);
                const float2 high = *reinterpret_cast<const float2*>(from + 8 * T::score_stride + n * 8);
                scores_[n][0] = low.x;
                scores_[n][1] = low.y;
                scores_[n][2] = high.x;
                scores_[n][3] = high.y;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float shrink = take_row(hidden(tile, r), visible(tile, r), r);
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                output_[n][2 * r] = __fmul_rn(output_[n][2 * r], shrink);
                output_[n][2 * r + 1] = __fmul_rn(output_[n][2 * r + 1], shrink);
            }
        }
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
    __device__ float take_row(int hidden, int seen, int r) {
        const int first = lane_ % 4 * 2;
        float maximum = rows_.maximum[r];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores_[n][2 * r + i];
                const int position = 8 * n + first + i;
                const bool sees = position >= hidden && position < seen;
                score = sees ? __fmul_rn(score, args_.scale) : minus_infinity();
                maximum = score > maximum ? score : maximum;
            }
        }
        for (int step = 1; step <= 2; step *= 2) {
            const float other = __shfl_xor_sync(full_warp, maximum, step);
            maximum = other > maximum ? other : maximum;
        }
        const float base = maximum == minus_infinity() ? 0.0F : maximum;  // no position seen so far: all p are 0
        const float shrink = exp_of(__fsub_rn(rows_.maximum[r], base));
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores_[n][2 * r + i];
                score = exp_of(__fsub_rn(score, base));
                sum = __fadd_rn(sum, score);
            }
        }
        rows_.maximum[r] = maximum;
        rows_.sum[r] = __fadd_rn(__fmul_rn(rows_.sum[r], shrink), sum);
        return shrink;
    }

    /// If some queries do not see the whole tile (`all` is false), their p are 0, but 0 times a non-finite value would
    /// be NaN. Such values are replaced by 0, and restore_nonfinite() applies them to the queries that see them.
    __device__ void add_values(const Tile& tile, int turn, bool all) {
        std::uint32_t cleared = 0;
        // The ldmatrix loads 32 positions of 8 dimensions.
        const std::byte* row = values(turn) + lane_ * T::stride + column_warp_ * T::output_tiles * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                std::uint32_t v[4];
                load_matrix_x4_transposed(v, row + half * 32 * T::stride + n * 16);
                if (!all) {
                    for (std::uint32_t& pair : v) cleared |= clear_nonfinite(pair);
                }
                mma_bf16(output_[n], p_[2 * half], {v[0], v[1]});
                mma_bf16(output_[n], p_[2 * half + 1], {v[2], v[3]});
            }
        }
        if (!all && __any_sync(full_warp, cleared != 0 ? 1 : 0) != 0) restore_nonfinite(tile, turn);
    }

    /// Replaces infinite and NaN elements of a bf16 pair by 0; returns nonzero if there was one.
    __device__ static std::uint32_t clear_nonfinite(std::uint32_t& pair) {
        constexpr std::uint32_t exponents = 0x7f807f80U, lowest = 0x00800080U, carries = 0x80008000U;
        const std::uint32_t found = ((pair & exponents) + lowest) & carries;
        pair &= ~((found >> 15) * 0xffffU);
        return found;
    }

    /// A sum with a non-finite term ends as NaN whatever its factor (end_chunk), so NaN is stored directly.
    __device__ void restore_nonfinite(const Tile& tile, int turn) {
        const int first = (column_warp_ * T::output_tiles * 8 + lane_ % 4 * 2) * 2;
        for (int r = 0; r < 2; ++r) {
            for (int slot = hidden(tile, r); slot < visible(tile, r) && slot < tile_tokens; ++slot) {
                const std::byte* const row = values(turn) + slot * T::stride + first;
#pragma unroll
                for (int n = 0; n < T::output_tiles; ++n) {
                    std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(row + n * 16);
                    const std::uint32_t found = clear_nonfinite(pair);
                    if ((found & 0xffffU) != 0) output_[n][2 * r] = quiet_nan();
                    if (found >> 16 != 0) output_[n][2 * r + 1] = quiet_nan();
                }
            }
        }
    }

    __device__ void begin_chunk() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            rows_.maximum[r] = minus_infinity();
            rows_.sum[r] = 0.0F;
        }
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
            for (float& value : output_[n]) value = 0.0F;
        }
    }

    /// Merges the finished chunk into those before it.
    __device__ void end_chunk() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = rows_.sum[r];
            for (int step = 1; step <= 2; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(full_warp, sum, step));
            merge_row(sum, r);
        }
        any_merged_ = true;
        begin_chunk();
    }

    /// Returns the sum + 0, or NaN for any sum that is not finite, because whether such a sum is infinite or NaN
    /// depends on the tile.
    __device__ static float finite_or_nan(float value) {
        return (__float_as_uint(value) & 0x7f800000U) == 0x7f800000U ? quiet_nan() : __fadd_rn(value, 0.0F);
    }

    __device__ void merge_row(float sum, int r) {
        float left = 0.0F;
        float right = 1.0F;
        float maximum = rows_.maximum[r];
        if (any_merged_) {
            maximum = merged_.maximum[r] > maximum ? merged_.maximum[r] : maximum;
            left = exp_of(__fsub_rn(merged_.maximum[r], maximum));
            right = exp_of(__fsub_rn(rows_.maximum[r], maximum));
        }
        const auto merge = [&](float before, float now) {
            return any_merged_ ? __fadd_rn(__fmul_rn(before, left), __fmul_rn(now, right)) : now;
        };
        merged_.maximum[r] = maximum;
        merged_.sum[r] = merge(merged_.sum[r], sum);
#pragma unroll
        for (int n = 0; n < T::output_tiles; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& kept = span_.at(n * 4 + 2 * r + i);
                kept = merge(kept, finite_or_nan(output_[n][2 * r + i]));
            }
        }
    }

    __device__ void store() {
        for (int r = 0; r < 2; ++r) {
            if (query(r).seen == 0) continue;
            const std::int64_t entry = args_.rows[query(r).plan_row].first_entry + unit_.entry;
            const std::int64_t at = entry * args_.q_heads + query(r).head;
            const int first = column_warp_ * T::output_tiles * 8 + lane_ % 4 * 2;
            float* to = args_.outputs + at * args_.shape.head_dim;
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                const int d = first + n * 8;
                if (d >= args_.shape.head_dim) continue;
                *reinterpret_cast<float2*>(to + d) = make_float2(span_.at(n * 4 + 2 * r), span_.at(n * 4 + 2 * r + 1));
            }
            if (column_warp_ == 0 && lane_ % 4 == 0) {
                args_.softmax[at] = make_float2(merged_.maximum[r], merged_.sum[r]);
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
    int last_seen_;  ///< number of the unit's positions that its last row sees
    std::uint32_t q_[T::steps][4];
    float scores_[8][4];
    std::uint32_t p_[4][4];
    LaneRows rows_;
    float output_[T::output_tiles][4];
    LaneRows merged_;
    SpanOutput<T::output_tiles * 4, (T::column_warps > 1)> span_;
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
