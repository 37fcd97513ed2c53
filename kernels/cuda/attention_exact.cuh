// Attention with the summation order of the contract (numerics.hpp), bit-identical to the CPU. One block computes one
// unit of one chunk: up to 8 queries of one KV head. Three steps: scores of all positions (one thread per position of a
// page and half of the queries), probabilities (16 threads per query, one per lane of the sum), outputs (one thread per
// dimension, positions in order). The next page is loaded while the current one is computed.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/kv_int8.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels::cuda {

constexpr int exact_queries = 8;
constexpr int chunk_tokens = static_cast<int>(attention_chunk);
constexpr int chunk_pages = chunk_tokens / tile_tokens;
constexpr int max_exact_dims = 640;

/// Shared memory layout of a block.
struct ExactShape {
    explicit ExactShape(const KvShape& shape, DType dtype)
        : pieces(shape.row_bytes / 16),
          stride((pieces % 2 == 0 ? pieces + 1 : pieces) * 16),
          query_elements(pieces * (dtype == DType::f32    ? 4
                                   : dtype == DType::bf16 ? 8
                                                          : 16)) {
        while (1 << pieces_log2 < pieces) ++pieces_log2;
        if (shared_bytes() > block_shared_bytes) num_stages = 1;
    }
    int pieces;  ///< 16-byte pieces per row
    int stride;  ///< bytes per row; an odd multiple of 16, so that rows do not share a bank
    int query_elements;
    int pieces_log2 = 0;
    int num_stages = 2;  ///< 1: rows are so wide that a page is loaded only after the one before it was computed

    [[nodiscard]] LONGHAUL_HOST_DEVICE int stage_bytes() const { return tile_tokens * stride; }
    /// The stages with two sets of key scales, the queries, probabilities [512, 8], three floats per query.
    [[nodiscard]] std::size_t shared_bytes() const {
        const int bytes = num_stages * stage_bytes() + 2 * tile_tokens * 4 + exact_queries * query_elements * 4 +
                          chunk_tokens * exact_queries * 4 + 3 * exact_queries * 4;
        return static_cast<std::size_t>(bytes);
    }
};

/// Arithmetic for keys and values of type KV: dot product of a 16-byte piece of a key with a query, access to values.
template <DType KV>
struct ExactKeys {
    using Query = float;
    using Sum = float;

    static __device__ Sum add_piece(uint4 piece, const Query* q, Sum sum) {
        const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (KV == DType::f32) {
                sum = __fmaf_rn(q[i], __uint_as_float(words[i]), sum);
            } else {
                sum = __fmaf_rn(q[2 * i + 1], bf16_high(words[i]), sum);
                sum = __fmaf_rn(q[2 * i], bf16_low(words[i]), sum);
            }
        }
        return sum;
    }
    static constexpr int elements = KV == DType::f32 ? 4 : 8;  ///< per piece
    static __device__ float value(const std::byte* row, int d) {
        if constexpr (KV == DType::f32) return reinterpret_cast<const float*>(row)[d];
        return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(row)[d]);
    }
};

/// Integers: 16 bits of a query (or probability) times 8 bits of a key (or value), two products per instruction.
template <>
struct ExactKeys<DType::int8> {
    using Query = std::int16_t;
    using Sum = std::int32_t;

    static __device__ Sum add_piece(uint4 piece, const Query* q, Sum sum) {
        const std::uint32_t keys[4] = {piece.x, piece.y, piece.z, piece.w};
        const auto* pairs = reinterpret_cast<const uint2*>(q);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = add_four(pairs[i].x, pairs[i].y, keys[i], sum);
        return sum;
    }
    /// Adds four products: the 16-bit pairs `first` and `second` times the four bytes of `bytes`.
    static __device__ Sum add_four(std::uint32_t first, std::uint32_t second, std::uint32_t bytes, Sum sum) {
        sum = __dp2a_lo(static_cast<int>(first), static_cast<int>(bytes), sum);
        return __dp2a_hi(static_cast<int>(second), static_cast<int>(bytes), sum);
    }
    static constexpr int elements = 16;
    /// Dimension d of the values at four consecutive positions, one byte each.
    static __device__ std::uint32_t values(const std::byte* row, int stride, int d) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(row) + d;
        const std::uint32_t low = __byte_perm(bytes[0], bytes[stride], 0x0040);
        const std::uint32_t high = __byte_perm(bytes[2 * stride], bytes[3 * stride], 0x0040);
        return __byte_perm(low, high, 0x5410);
    }
};

/// DIMS: dimensions per thread; head_dim <= DIMS * 128.
template <DType KV, int DIMS>
class ExactUnit {
    using Keys = ExactKeys<KV>;
    using Number = typename Keys::Query;  ///< type of a query element
    static constexpr int half_queries = exact_queries / 2;

  public:
    __device__ ExactUnit(const AttentionArgs& args, const ExactShape& shape, const PlanUnit& unit, int kv_head)
        : args_(args),
          shape_(shape),
          unit_(unit),
          kv_head_(kv_head),
          thread_(static_cast<int>(threadIdx.x)),
          first_position_(std::int64_t{unit.chunk_begin} * chunk_tokens),
          last_position_(args.rows[end_row_of(args, unit) - 1].position),
          stages_(shared_memory<std::byte>()),
          key_scales_(reinterpret_cast<float*>(stages_ + shape.num_stages * shape.stage_bytes())),
          q_(reinterpret_cast<Number*>(key_scales_ + 2 * tile_tokens)),
          p_(reinterpret_cast<float*>(q_) + exact_queries * shape.query_elements),
          maximum_(p_ + chunk_tokens * exact_queries),
          sum_(maximum_ + exact_queries),
          scale_(sum_ + exact_queries) {}

    __device__ void run() {
        load_queries();
        for_each_tile(false, [&](const Tile& tile, int turn) { compute_scores(tile, turn); });
        __syncthreads();
        take_probabilities();
        for (int i = 0; i < DIMS; ++i) {
            for (typename Keys::Sum& value : output_[i]) value = 0;
        }
        const int all_see = seen_by_all(), none_hidden = hidden_from_one();
        for_each_tile(true, [&](const Tile& tile, int turn) {
            const int first = tile.page % chunk_pages * tile_tokens;
            if (tile.row < 0 && first + tile_tokens <= all_see && first >= none_hidden) {
                add_values<true>(tile, turn);
            } else {
                add_values<false>(tile, turn);
            }
        });
        store();
    }

  private:
    [[nodiscard]] __device__ std::byte* stage(int turn) const { return stages_ + turn * shape_.stage_bytes(); }
    [[nodiscard]] __device__ const float* query_row(int i) const {
        const Query query = query_of(args_, unit_, i, kv_head_);
        if (query.plan_row < 0) return nullptr;
        return reinterpret_cast<const float*>(
            args_.q + ((std::int64_t{args_.rows[query.plan_row].row} * args_.q_heads + query.head) *
                       args_.shape.head_dim * (KV == DType::bf16 ? 2 : 4)));
    }

    /// Warp w loads queries w and w + 4, padded with zeros.
    __device__ void load_queries() {
        const int lane = thread_ % 32;
        for (int i = thread_ / 32; i < exact_queries; i += attention_threads / 32) {
            const float* from = query_row(i);
            QuantizationScale whole;
            if constexpr (KV == DType::int8) {
                whole = QuantizationScale::of(largest_of(from, lane), max_quantized_query);
                if (lane == 0) scale_[i] = __fmul_rn(whole.scale, args_.scale);
            }
            for (int d = lane; d < shape_.query_elements; d += 32) {
                const bool is_there = from != nullptr && d < args_.shape.head_dim;
                Number value = 0;
                if constexpr (KV == DType::int8) {
                    if (is_there) value = static_cast<Number>(whole.whole(from[d]));
                } else if constexpr (KV == DType::f32) {
                    if (is_there) value = from[d];
                } else {
                    if (is_there) value = bf16_to_f32(reinterpret_cast<const std::uint16_t*>(from)[d]);
                }
                q_[i * shape_.query_elements + d] = value;
            }
        }
    }
    /// The largest magnitude in a query, computed by one warp; infinity if an element is not finite.
    __device__ float largest_of(const float* from, int lane) const {
        float largest = 0.0F;
        for (int d = lane; from != nullptr && d < args_.shape.head_dim; d += 32) {
            const float magnitude = __builtin_fabsf(from[d]);
            if (!(magnitude <= largest)) largest = magnitude < __builtin_inff() ? magnitude : __builtin_inff();
        }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(full_warp, largest, step);
            largest = other > largest ? other : largest;
        }
        return largest;
    }

    /// Calls `compute(tile, turn)` for each tile, with its keys (or values) in stage(turn).
    template <typename Compute>
    __device__ void for_each_tile(bool values, Compute compute) {
        TileWalk walk(args_, unit_, chunk_pages);
        Tile tile = walk.tile();
        load(tile, values, 0);
        const bool ahead = shape_.num_stages == 2;
        for (int turn = 0; tile.is_there; turn ^= ahead ? 1 : 0) {
            wait_copies<0>();
            __syncthreads();
            walk.advance();
            const Tile next = walk.tile();
            if (ahead) load(next, values, turn ^ 1);
            compute(tile, turn);
            if (!ahead) {
                __syncthreads();
                load(next, values, turn);
            }
            tile = next;
        }
        __syncthreads();
    }
    __device__ void load(const Tile& tile, bool values, int turn) {
        if (!tile.is_there) return;
        // A common page is located through the unit's last row, which sees every slot that is loaded.
        const PlanRow& row = args_.rows[tile.row < 0 ? end_row_of(args_, unit_) - 1 : tile.row];
        const std::int64_t end = (tile.row < 0 ? last_position_ : row.position) + 1;
        const std::int64_t first = std::int64_t{tile.page} * tile_tokens;
        const int end_slot = end - first < tile_tokens ? static_cast<int>(end - first) : tile_tokens;
        const std::int64_t block = args_.block(kv_head_, values);
        load_tile(args_, tile, row, block, end_slot, values, shape_.pieces_log2, stage(turn), shape_.stride);
        commit_copies();
        if (KV != DType::int8 || values || thread_ >= end_slot) return;
        key_scales_[turn * tile_tokens + thread_] = token_scale(row, first + thread_, block);
    }
    [[nodiscard]] __device__ float token_scale(const PlanRow& row, std::int64_t position, std::int64_t block) const {
        const TokenPlace place = place_of(args_, row, position);
        return reinterpret_cast<const float*>(place.page + block + args_.shape.scales())[place.slot];
    }

    /// Whether query i attends to the tile.
    [[nodiscard]] __device__ bool concerns(const Tile& tile, int i) const {
        return tile.row < 0 || query_of(args_, unit_, i, kv_head_).plan_row == tile.row;
    }
    /// Number of positions of the chunk that query i sees, counted from its start.
    [[nodiscard]] __device__ int visible(int i) const {
        const Query query = query_of(args_, unit_, i, kv_head_);
        if (query.plan_row < 0) return 0;
        const std::int64_t seen = args_.rows[query.plan_row].position + 1 - first_position_;
        return seen < 0 ? 0 : seen < chunk_tokens ? static_cast<int>(seen) : chunk_tokens;
    }

    /// Number of positions of the chunk before the window of query i.
    [[nodiscard]] __device__ int hidden(int i) const {
        const Query query = query_of(args_, unit_, i, kv_head_);
        if (query.plan_row < 0) return 0;
        const std::int64_t before = args_.rows[query.plan_row].first_visible - first_position_;
        return before < 0 ? 0 : before < chunk_tokens ? static_cast<int>(before) : chunk_tokens;
    }
    /// The most that is hidden from a query of the unit.
    [[nodiscard]] __device__ int hidden_from_one() const {
        int most = 0;
        for (int i = 0; i < unit_.num_queries; ++i) most = hidden(i) > most ? hidden(i) : most;
        return most;
    }
    /// Number of positions of the chunk that every query of the unit sees, counted from its start.
    [[nodiscard]] __device__ int seen_by_all() const {
        int least = chunk_tokens;
        for (int i = 0; i < unit_.num_queries; ++i) {
            const int seen = visible(i);
            least = seen < least ? seen : least;
        }
        return least;
    }
    /// Number of positions of the tile that query i sees, counted from its start (may be negative or above 64).
    [[nodiscard]] __device__ int visible(const Tile& tile, int i) const {
        return concerns(tile, i) ? visible(i) - tile.page % chunk_pages * tile_tokens : 0;
    }

    __device__ void compute_scores(const Tile& tile, int turn) {
        const int slot = thread_ % tile_tokens;
        const int first = thread_ / tile_tokens * half_queries;
        const auto* key = reinterpret_cast<const uint4*>(stage(turn) + slot * shape_.stride);
        typename Keys::Sum sums[half_queries] = {};
        for (int piece = 0; piece < shape_.pieces; ++piece) {
            const uint4 elements = key[piece];
#pragma unroll
            for (int i = 0; i < half_queries; ++i) {
                sums[i] = Keys::add_piece(elements, q_ + (first + i) * shape_.query_elements + piece * Keys::elements,
                                          sums[i]);
            }
        }
        float* to = p_ + (tile.page % chunk_pages * tile_tokens + slot) * exact_queries + first;
        for (int i = 0; i < half_queries; ++i) {
            if (!concerns(tile, first + i)) continue;
            if constexpr (KV == DType::int8) {
                to[i] = __fmul_rn(__fmul_rn(__int2float_rn(sums[i]), scale_[first + i]),
                                  key_scales_[turn * tile_tokens + slot]);
            } else {
                to[i] = __fmul_rn(sums[i], args_.scale);
            }
        }
    }

    /// Turns scores into weights of the values; 16 threads per query, one per lane of the sum.
    __device__ void take_probabilities() {
        const int i = thread_ / 16;
        const int lane = thread_ % 16;
        const int seen = visible(i), before = hidden(i);
        const auto at = [&](int position) -> float& { return p_[position * exact_queries + i]; };
        float maximum = minus_infinity();
        for (int position = lane; position < seen; position += 16) {
            if (position < before) continue;
            if (args_.score_cap > 0.0F) at(position) = soft_capped(at(position), args_.score_cap);
            if (at(position) > maximum) maximum = at(position);
        }
        maximum = largest_of_lanes(maximum);
        float sum = 0.0F;
        for (int position = lane; position < chunk_tokens; position += 16) {
            float p = 0.0F;
            if (position >= before && position < seen) {
                p = exp_of(__fsub_rn(at(position), maximum));
                sum = __fadd_rn(sum, p);
                if constexpr (KV == DType::bf16) p = bf16_to_f32(f32_to_bf16(p));
            }
            at(position) = p;
        }
        for (int step = 8; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(full_warp, sum, step));
        if constexpr (KV == DType::int8) weigh(i, lane, seen);
        if (lane == 0) {
            maximum_[i] = maximum;
            sum_[i] = sum;
        }
    }
    __device__ static float largest_of_lanes(float value) {
        for (int step = 8; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(full_warp, value, step);
            value = other > value ? other : value;
        }
        return value;
    }
    /// int8: multiplies probabilities by the scales of the values and quantizes the result to integers.
    __device__ void weigh(int i, int lane, int seen) {
        float largest = 0.0F;
        for (int position = lane; position < seen; position += 16) {
            const PlanRow& row = args_.rows[query_of(args_, unit_, i, kv_head_).plan_row];
            float& p = p_[position * exact_queries + i];
            const float weight =
                __fmul_rn(p, token_scale(row, first_position_ + position, args_.block(kv_head_, true)));
            p = weight > 0.0F ? weight : 0.0F;
            if (p > largest) largest = p;
        }
        const QuantizationScale whole = QuantizationScale::of(largest_of_lanes(largest), max_quantized_query);
        for (int position = lane; position < chunk_tokens; position += 16) {
            float& p = p_[position * exact_queries + i];
            const auto mine = static_cast<std::uint32_t>(whole.whole(p));
            const std::uint32_t next = __shfl_xor_sync(full_warp, mine, 1);
            if (lane % 2 == 0) p = __uint_as_float((mine & 0xffffU) | next << 16);
        }
        if (lane == 0) scale_[i] = whole.scale;
    }

    /// `all`: every query sees the whole tile.
    template <bool all>
    __device__ void add_values(const Tile& tile, int turn) {
        int seen[exact_queries], before[exact_queries];
        for (int i = 0; i < exact_queries; ++i) {
            seen[i] = all ? tile_tokens : visible(tile, i);
            before[i] = all ? 0 : hidden(i) - tile.page % chunk_pages * tile_tokens;
        }
        const float* p = p_ + tile.page % chunk_pages * tile_tokens * exact_queries;
        if constexpr (KV == DType::int8) {
            add_quantized_values<all>(p, stage(turn), seen);
        } else {
            add_values<all>(p, stage(turn), before, seen);
        }
    }
    /// Skips positions that a query does not see: their p is 0, but 0 times a non-finite value is NaN.
    template <bool all>
    __device__ void add_values(const float* p, const std::byte* rows, const int (&before)[exact_queries],
                               const int (&seen)[exact_queries]) {
#pragma unroll 4
        for (int s = 0; s < tile_tokens; ++s) {
            const int slot = KV == DType::bf16 ? s ^ 1 : s;
            const std::byte* row = rows + slot * shape_.stride;
            float weights[exact_queries];
            load_weights(p + slot * exact_queries, weights);
#pragma unroll
            for (int k = 0; k < DIMS; ++k) {
                const int d = thread_ + k * attention_threads;
                if (d >= args_.shape.head_dim) continue;
                const float v = Keys::value(row, d);
#pragma unroll
                for (int i = 0; i < exact_queries; ++i) {
                    if (all || (slot >= before[i] && slot < seen[i]))
                        output_[k][i] = __fmaf_rn(weights[i], v, output_[k][i]);
                }
            }
        }
    }
    /// Four positions at a time; integer sums do not depend on the order, and all terms are finite.
    template <bool all>
    __device__ void add_quantized_values(const float* p, const std::byte* rows, const int (&seen)[exact_queries]) {
#pragma unroll 2
        for (int slot = 0; slot < tile_tokens; slot += 4) {
            float first[exact_queries];
            float second[exact_queries];
            load_weights(p + slot * exact_queries, first);
            load_weights(p + (slot + 2) * exact_queries, second);
#pragma unroll
            for (int k = 0; k < DIMS; ++k) {
                const int d = thread_ + k * attention_threads;
                if (d >= args_.shape.head_dim) continue;
                const std::uint32_t v = Keys::values(rows + slot * shape_.stride, shape_.stride, d);
#pragma unroll
                for (int i = 0; i < exact_queries; ++i) {
                    if (!all && seen[i] <= 0) continue;
                    output_[k][i] =
                        Keys::add_four(__float_as_uint(first[i]), __float_as_uint(second[i]), v, output_[k][i]);
                }
            }
        }
    }
    __device__ static void load_weights(const float* from, float (&weights)[exact_queries]) {
        const float4 low = reinterpret_cast<const float4*>(from)[0];
        const float4 high = reinterpret_cast<const float4*>(from)[1];
        const float all[exact_queries] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < exact_queries; ++i) weights[i] = all[i];
    }

    __device__ void store() {
        for (int i = 0; i < exact_queries; ++i) {
            if (visible(i) == 0) continue;
            const Query query = query_of(args_, unit_, i, kv_head_);
            const std::int64_t at = (args_.rows[query.plan_row].first_entry + unit_.entry) * args_.q_heads + query.head;
            store_output(i, args_.outputs + at * args_.shape.head_dim);
            if (thread_ == 0) args_.softmax[at] = make_float2(maximum_[i], sum_[i]);
        }
    }
    /// `i` is a runtime value and outputs are in registers, so an unrolled loop selects them.
    __device__ void store_output(int i, float* to) const {
#pragma unroll
        for (int k = 0; k < DIMS; ++k) {
#pragma unroll
            for (int j = 0; j < exact_queries; ++j) {
                const int d = thread_ + k * attention_threads;
                if (j != i || d >= args_.shape.head_dim) continue;
                if constexpr (KV == DType::int8) {
                    to[d] = __fmul_rn(__int2float_rn(output_[k][j]), scale_[j]);
                } else {
                    to[d] = __fadd_rn(output_[k][j], 0.0F);
                }
            }
        }
    }

    const AttentionArgs& args_;
    const ExactShape& shape_;
    const PlanUnit& unit_;
    int kv_head_;
    int thread_;
    std::int64_t first_position_;
    std::int64_t last_position_;
    std::byte* stages_;
    float* key_scales_;  ///< [2, 64]
    Number* q_;          ///< [8, query_elements]
    float* p_;           ///< [512, 8]: scores, then probabilities; int8: integers, two per word in every other row
    float* maximum_;     ///< [8], as are the next two
    float* sum_;
    float* scale_;  ///< int8: of the scores, then of the outputs
    typename Keys::Sum output_[DIMS][exact_queries];
};

/// Grid [units, kv_heads].
template <DType KV, int DIMS>
__global__ void __launch_bounds__(attention_threads) exact_kernel(AttentionArgs args, ExactShape shape) {
    const PlanUnit unit = args.units[blockIdx.x];
    ExactUnit<KV, DIMS>(args, shape, unit, static_cast<int>(blockIdx.y)).run();
}

}  // namespace longhaul::kernels::cuda
