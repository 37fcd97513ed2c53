// Attention over bf16 or int8 keys and values on tensor cores: one block computes one unit of the plan for one KV head.
// (attention_warpgroup.cuh does the same for many queries and bf16.)
//
// Order of sums (numerics different from the CPU's). Chunks of 128 absolute positions are processed page by page, 64
// positions each. q·k is a chain of mma over ascending steps of 16 dimensions, starting at 0. Scores are in units of
// log2: score = q·k * (scale * log2 e). Each chunk keeps a running maximum m, sums l and output o. For each page, with
// m the greatest q·k * (scale * log2 e) so far, a = 2^(m before - m) and p = 2^fma(q·k, scale * log2 e, -m), where 2^x
// is the GPU's instruction, exp2_of():
//   lane t of four has a sum for each group of 16 positions: l = fma(l, a, the p of its positions, which are 2t, 2t + 1
//   of each 8, ascending)
//   o = o * a, then a chain of mma over ascending steps of 16 positions adds bf16(p) * v
// At the end of the chunk, the sums of a lane are added, (l0 + l1) + (l2 + l3), then those of the lanes likewise.
// Chunks are merged as in numerics.hpp (with 2^x, and an fma), but in spans of 8 that start at multiples of 8; spans
// are merged likewise. An output of -0 becomes 0, and one that is not finite NaN, when all is merged: until then they
// may depend on the tile.
//
// int8: q is rounded to bf16, and the integers are exact in bf16. A step of dimensions has them in another order:
// columns 2t, 2t + 1 of an mma are dimensions 4t, 4t + 1, and columns 2t + 8, 2t + 9 dimensions 4t + 2, 4t + 3. q·k is
// multiplied by the key's scale, and p by the value's scale, after p has been added to l; the product is 0 unless it is
// above 0, so that a value that was not finite when it was quantized adds nothing, as on the CPU.
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
// Bytes of int8 become bf16 where they are multiplied: in registers by the one warp of a narrow tile that needs them,
// in shared memory for the four of a wide one.
//
// Keys are loaded up to two pages ahead, values one (both one, if they are converted in shared memory), and nothing but
// the addresses of its pages keeps a block from starting the first loads.
#pragma once

#include "kernels/cuda/attention_rows.cuh"

namespace longhaul::kernels::cuda {

template <int DIM, int ROW_WARPS, DType KV>
class TensorUnit : TensorRows<TensorTile<DIM, ROW_WARPS, KV>> {
    using T = TensorTile<DIM, ROW_WARPS, KV>;
    using Rows = TensorRows<T>;
    static constexpr bool is_int8 = KV == DType::int8;

  public:
    __device__ TensorUnit(const AttentionArgs& args, const PlanUnit& unit, int kv_head) : Rows(args, unit, kv_head) {}

    __device__ void run() {
        find_queries();
        find_pages();
        if constexpr (!is_int8) clear_padding();  // bytes are finite whatever they are
        __syncthreads();
        begin_chunk();
        if constexpr (T::converts_in_shared) {
            attend_to_converted();
        } else {
            attend();
        }
        store();
    }

  private:
    using Rows::all_see;
    using Rows::any_merged_;
    using Rows::any_nonfinite;
    using Rows::apply_nonfinite;
    using Rows::args_;
    using Rows::before;
    using Rows::begin_chunk;
    using Rows::column_warp_;
    using Rows::convert_p;
    using Rows::find_pages;
    using Rows::find_queries;
    using Rows::first_position;
    using Rows::found;
    using Rows::has_row;
    using Rows::index_of;
    using Rows::kv_head_;
    using Rows::lane_;
    using Rows::load_queries;
    using Rows::mask_scores;
    using Rows::maximum_of;
    using Rows::merge_chunk;
    using Rows::output_;
    using Rows::p_;
    using Rows::page_of;
    using Rows::pages;
    using Rows::q_;
    using Rows::queries;
    using Rows::query;
    using Rows::rescale_output;
    using Rows::row_sums_;
    using Rows::scores_;
    using Rows::seen_of;
    using Rows::shared_;
    using Rows::shared_sums;
    using Rows::store;
    using Rows::take_row;
    using Rows::unit_;

    __device__ void attend() {
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
                if (!all && !is_int8) find_nonfinite<T>(values(turn), found());
                take_scores(turn);
                if (!all && !is_int8) {
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
    }

    /// Loads a page ahead, and converts each page for all warps.
    __device__ void attend_to_converted() {
        TileWalk walk(args_, unit_, tensor_chunk_pages, false);
        Tile tile = walk.tile();
        load_both(tile, 0);
        load_queries();
#pragma unroll 1
        for (int turn = 0; tile.is_there; ++turn) {
            walk.advance();
            const Tile next = walk.tile();
            load_both(next, turn + 1);  // no thread converts the page before any more
            wait_copies<2>();
            __syncthreads();  // this page is there, and no thread multiplies the one before any more
            convert(turn);
            __syncthreads();
            clear_scores();
            compute_scores(tile, turn, all_see(tile));
            take_scores(turn);
            if (has_row(0)) add_values(turn);
            if (!next.is_there || next.page / tensor_chunk_pages != tile.page / tensor_chunk_pages) end_chunk();
            tile = next;
        }
    }
    __device__ void load_both(const Tile& tile, int turn) {
        load(tile, false, keys(turn));
        load(tile, true, values(turn));
    }

    __device__ std::byte* keys(int turn) const {
        return shared_ + (turn & 1) * T::stage_bytes;
    }
    __device__ std::byte* values(int turn) const {
        return keys(turn) + T::matrix_bytes;
    }

    /// The scales of a page's keys or values as they were loaded, f32 [64]; int8 only.
    static __device__ float* scales(std::byte* matrix) {
        return reinterpret_cast<float*>(matrix + T::scales_at);
    }

    /// What is multiplied: bf16, or int8 that is converted in registers.
    static constexpr int factor_stride = T::converts_in_shared ? T::converted_stride : T::stride;
    [[nodiscard]] __device__ std::byte* converted(bool values) const {
        return shared_ + T::converted_at + (values ? T::converted_bytes : 0);
    }
    [[nodiscard]] __device__ const std::byte* key_factors(int turn) const {
        return T::converts_in_shared ? converted(false) : keys(turn);
    }
    [[nodiscard]] __device__ const std::byte* value_factors(int turn) const {
        return T::converts_in_shared ? converted(true) : values(turn);
    }
    [[nodiscard]] __device__ const float* scales_of(const std::byte* factors) const {
        return reinterpret_cast<const float*>(factors + tile_tokens * factor_stride);
    }

    /// Each thread converts its share of a page, 16 dimensions of a position at a time, and copies its scales.
    __device__ void convert(int turn) {
        convert(keys(turn), converted(false), [](std::uint32_t(&low)[4], std::uint32_t(&high)[4], uint4* to) {
            to[0] = make_uint4(low[0], low[1], low[2], low[3]);  // the order in which load_queries() has them
            to[1] = make_uint4(high[0], high[1], high[2], high[3]);
        });
        convert(values(turn), converted(true), [](std::uint32_t(&low)[4], std::uint32_t(&high)[4], uint4* to) {
            to[0] = make_uint4(low[0], high[0], low[1], high[1]);
            to[1] = make_uint4(low[2], high[2], low[3], high[3]);
        });
    }
    /// put(low, high, to): pairs i of dimensions 4i, 4i + 1 and of 4i + 2, 4i + 3.
    template <class Put>
    __device__ void convert(std::byte* from, std::byte* to, Put put) {
        constexpr int slots = T::threads / T::pieces;  // at a time
        const int first = static_cast<int>(threadIdx.x) / T::pieces;
        const int piece = static_cast<int>(threadIdx.x) % T::pieces;
        if (threadIdx.x < tile_tokens) {
            reinterpret_cast<float*>(to + tile_tokens * T::converted_stride)[threadIdx.x] = scales(from)[threadIdx.x];
        }
#pragma unroll
        for (int slot = first; slot < first + tile_tokens; slot += slots) {
            const uint4 four = *reinterpret_cast<const uint4*>(from + T::place(slot, piece));
            const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
            std::uint32_t low[4], high[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                low[i] = bf16_of_bytes<0, 1>(words[i], upper_byte_);
                high[i] = bf16_of_bytes<2, 3>(words[i], upper_byte_);
            }
            put(low, high, reinterpret_cast<uint4*>(to + slot * T::converted_stride + piece * 32));
        }
    }

    /// Zeroes dimensions that pages do not have, once: no load overwrites them.
    __device__ void clear_padding() {
        const int pieces = args_.shape.row_bytes / 16;
        if (pieces == T::pieces) return;
        for (int i = static_cast<int>(threadIdx.x); i < 4 * tile_tokens; i += T::threads) {
            for (int piece = pieces; piece < T::pieces; ++piece) {
                *reinterpret_cast<uint4*>(shared_ + T::place(i, piece)) = make_uint4(0, 0, 0, 0);
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

    /// From an address that find_pages() found. bf16 values that no query sees are zeroed.
    __device__ void load_common(const Tile& tile, bool values, std::byte* to) {
        constexpr int slots = T::threads / T::pieces;  // at a time
        const int first = static_cast<int>(threadIdx.x) / T::pieces;
        const int piece = static_cast<int>(threadIdx.x) % T::pieces;
        const int row_bytes = args_.shape.row_bytes;
        const std::byte* from = pages()[page_of(tile)] + (values ? args_.shape.block_bytes : 0);
        if constexpr (is_int8) {
            const int i = static_cast<int>(threadIdx.x) * 16;
            if (i < tile_tokens * 4) copy_async_16(to + T::scales_at + i, from + args_.shape.scales() + i);
        }
        if (piece * 16 >= row_bytes) return;
        from += first * row_bytes + piece * 16;
        to += T::place(first, piece);
        const int end = unit_.seen_by_one - before(tile) - first;
        if (row_bytes == T::row_bytes && end >= tile_tokens - first) {  // almost always: all offsets are constants
#pragma unroll
            for (int slot = 0; slot < tile_tokens; slot += slots) {
                copy_async_16(to + slot * T::stride, from + slot * T::row_bytes);
            }
            return;
        }
#pragma unroll 1
        for (int slot = 0; slot < tile_tokens; slot += slots) {
            if (slot < end) {
                copy_async_16(to, from);
            } else if (values && !is_int8) {
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
        const std::int64_t within = args_.block(kv_head_, values);
#pragma unroll 1
        for (int begin = static_cast<int>(threadIdx.x) / T::pieces; begin < tile_tokens; begin += at_once * slots) {
            const std::byte* block[at_once];
            int at[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const int slot = begin + i * slots < end ? begin + i * slots : end - 1;
                const int on_path = path[slot > in_page ? slot - in_page : 0];
                const bool in_pages = slot < in_page;
                block[i] = args_.page(in_pages ? page : scratch + on_path / tile_tokens) + within;
                at[i] = in_pages ? slot : on_path % tile_tokens;
            }
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const int slot = begin + i * slots;
                if (slot < end) {
                    copy_async_16(to + T::place(slot, piece), block[i] + at[i] * row_bytes + piece * 16);
                    if (is_int8 && piece == 0) {
                        copy_async_4(scales(to) + slot, block[i] + args_.shape.scales() + at[i] * 4);
                    }
                } else if (values && !is_int8) {
                    *reinterpret_cast<uint4*>(to + T::place(slot, piece)) = make_uint4(0, 0, 0, 0);
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
            const float maximum = maximum_of(r);
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
        if constexpr (T::converts_in_registers) {
            multiply_int8_keys(turn);
        } else {
            multiply_bf16_keys(turn);
        }
        if constexpr (is_int8) {
            for_each_scale(key_factors(turn), [](float& score, float scale) { score = __fmul_rn(score, scale); });
        }
    }
    /// Calls apply(score, scale) for the scores of this lane, with the scales of their positions.
    template <class Apply>
    __device__ void for_each_scale(const std::byte* factors, Apply apply) {
        const float* const of = scales_of(factors) + first_position() + lane_ % 4 * 2;
#pragma unroll
        for (int n = 0; n < T::score_tiles; ++n) {
            const float2 scale = *reinterpret_cast<const float2*>(of + n * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) apply(scores_[n][i], i % 2 == 0 ? scale.x : scale.y);
        }
    }
    __device__ void multiply_bf16_keys(int turn) {
        const int in_matrix = lane_ % 8;
        // The ldmatrix loads positions n.. with dimensions k.. and k + 8.., then the next 8 positions.
        const std::byte* row =
            key_factors(turn) + (first_position() + lane_ / 16 * 8 + in_matrix) * factor_stride + lane_ / 8 % 2 * 16;
#pragma unroll
        for (int step = 0; step < T::steps; ++step) {
#pragma unroll
            for (int n = 0; n < T::score_tiles; n += 2) {
                std::uint32_t k[4];
                load_matrix_x4(k, row + n * 8 * factor_stride + step * 32);
                mma_bf16(scores_[n], q_[step], {k[0], k[1]});
                mma_bf16(scores_[n + 1], q_[step], {k[2], k[3]});
            }
        }
    }
    __device__ void multiply_int8_keys(int turn) {
        // The ldmatrix loads the bytes of positions n.. with dimensions k.. and k + 16.., then the next 8 positions.
        const std::byte* row =
            keys(turn) + (first_position() + lane_ / 16 * 8 + lane_ % 8) * T::stride + lane_ / 8 % 2 * 16;
#pragma unroll
        for (int step = 0; step < T::steps; step += 2) {
#pragma unroll
            for (int n = 0; n < T::score_tiles; n += 2) {
                std::uint32_t k[4];
                load_matrix_x4(k, row + n * 8 * T::stride + step * 16);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    mma_bf16(scores_[n + i / 2], q_[step + i % 2],
                             {bf16_of_bytes<0, 1>(k[i], upper_byte_), bf16_of_bytes<2, 3>(k[i], upper_byte_)});
                }
            }
        }
    }
    /// Narrow tiles only: [queries, 4 column warps].
    [[nodiscard]] __device__ float* shared_maxima() const {
        return reinterpret_cast<float*>(shared_ + T::maxima_at);
    }

    /// Converts scores to probabilities (p_) and rescales sums and outputs to the new maxima.
    __device__ void take_scores(int turn) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!has_row(r)) continue;
            if constexpr (T::is_narrow) {
                const float4 all = reinterpret_cast<const float4*>(shared_maxima())[index_of(r)];
                maxima_[r] = fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
            }
            rescale_output(r, take_row(r, maxima_[r]));
        }
        if constexpr (is_int8) {  // fmaxf ignores NaN: a scale that is NaN, or stale where p is 0
            for_each_scale(value_factors(turn), [](float& p, float scale) { p = fmaxf(__fmul_rn(p, scale), 0.0F); });
        }
        if constexpr (T::is_narrow) {
            exchange_p();
        } else {
            convert_p();
        }
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
        if constexpr (T::converts_in_registers) {
            add_int8_values(turn);
        } else {
            add_bf16_values(turn);
        }
    }
    __device__ void add_bf16_values(int turn) {
        // The ldmatrix loads 32 positions of 8 dimensions.
        const std::byte* row = value_factors(turn) + lane_ * factor_stride + column_warp_ * T::output_tiles * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < T::output_tiles; ++n) {
                std::uint32_t v[4];
                load_matrix_x4_transposed(v, row + half * 32 * factor_stride + n * 16);
                mma_bf16(output_[n], p_[2 * half], {v[0], v[1]});
                mma_bf16(output_[n], p_[2 * half + 1], {v[2], v[3]});
            }
        }
    }

    __device__ void add_int8_values(int turn) {
        // The ldmatrix loads the bytes of 32 positions and 16 dimensions: transposed, a lane has two dimensions of two
        // positions.
        const std::byte* row = values(turn) + lane_ * T::stride + column_warp_ * T::output_tiles * 8;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < T::output_tiles; n += 2) {
                std::uint32_t v[4];
                load_matrix_x4_transposed(v, row + half * 32 * T::stride + n * 8);
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const std::uint32_t(&p)[4] = p_[2 * half + i / 2];
                    mma_bf16(output_[n], p,
                             {bf16_of_bytes<0, 2>(v[i], upper_byte_), bf16_of_bytes<0, 2>(v[i + 1], upper_byte_)});
                    mma_bf16(output_[n + 1], p,
                             {bf16_of_bytes<1, 3>(v[i], upper_byte_), bf16_of_bytes<1, 3>(v[i + 1], upper_byte_)});
                }
            }
        }
    }

    /// After find_nonfinite() and a barrier.
    __device__ void hide_nonfinite(const Tile& tile, int turn) {
        if (!any_nonfinite()) return;
        apply_nonfinite(tile, values(turn));
        __syncthreads();
        clear_nonfinite<T>(values(turn));
        __syncthreads();
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

    /// Of bf16_of_bytes(). Grids have no z, but for the compiler this is no constant.
    std::uint32_t upper_byte_ = 0x43 + blockIdx.z;
    float maxima_[2];  ///< of the page, unscaled
};

/// Grid [units, kv_heads].
template <int DIM, int ROW_WARPS, DType KV>
__global__ void __launch_bounds__(attention_threads, (TensorTile<DIM, ROW_WARPS, KV>::blocks))
    tensor_kernel(AttentionArgs args) {
    const PlanUnit unit = args.units[blockIdx.x];
    TensorUnit<DIM, ROW_WARPS, KV>(args, unit, static_cast<int>(blockIdx.y)).run();
}

}  // namespace longhaul::kernels::cuda
