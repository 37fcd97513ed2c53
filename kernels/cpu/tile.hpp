// The inner loop of every CPU matmul (called by matmul.hpp): a tile of W registers of outputs times R rows, with the
// accumulators in registers (except those of spilled_sums.hpp).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/dot.hpp"
#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/spilled_sums.hpp"

namespace longhaul::kernels::cpu {

/// Consecutive slices of the inputs, first..end of `all` (a power of two).
struct SliceRange {
    std::int64_t first, end, all;
};

/// What a tile prefetches: the weights that are read next, which have the same size and layout as its own.
struct TilePrefetch {
    const std::byte* from;  ///< address for the first group of the range
    std::int64_t bytes;     ///< advance per group: less than the size of a group if several tiles share the work
    std::int64_t beside;    ///< distance between the blocks of a bundle; 0 if tiles share the work
    std::int64_t skip;      ///< bytes added to the address from slice `skips_from` on
    std::int64_t skips_from;

    [[gnu::always_inline]] const std::byte* of_slice(const SliceRange& slices, std::int64_t s,
                                                     std::int64_t groups_per_slice) const {
        return from + (s - slices.first) * groups_per_slice * bytes + (s >= skips_from ? skip : 0);
    }
};

/// Destination of the sums of a tile. The balanced tree over slices is built from left to right: level l holds a sum of
/// 2^l slices until its neighbour is complete. The sum of slice `s` is merged with as many levels as `s` has trailing
/// one bits.
struct SliceSums {
    static constexpr std::int64_t max_levels = 4;  // 8 slices, and the total if it cannot be written to y directly

    float* spilled;             ///< [level][tile][row of tile][output of tile]
    std::int64_t level_stride;  ///< floats from level to level
    float* out;                 ///< [row][output], sum over all slices
    std::int64_t out_stride;

    [[gnu::always_inline]] static std::int64_t levels_before(std::int64_t s) {
        return __builtin_ctzll(static_cast<unsigned long long>(s) + 1);
    }
    /// Advances by `outputs` outputs of a tile of `rows` rows.
    [[gnu::always_inline]] void advance(std::int64_t rows, std::int64_t outputs) {
        spilled += rows * outputs;
        out += outputs;
    }
};

struct TileJob {
    const std::byte* weights;    ///< first group of the first slice of the first block
    std::int64_t block_stride;   ///< bytes from block to block, as if they were not interleaved
    const std::uint32_t* words;  ///< [group][step][R], from the first slice on
    SliceRange slices;
    std::int64_t groups_per_slice;
    TilePrefetch ahead;
    SliceSums sums;
};

template <class Isa, int R, int W>
[[gnu::always_inline]] inline void clear_sums(typename Isa::Floats (&sum)[R][W]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) sum[r][i] = Isa::zero();
    }
}

template <class Isa, int R, int W>
[[gnu::always_inline]] inline void load_sums(typename Isa::Floats (&sum)[R][W], const float* from,
                                             std::int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) sum[r][i] = Isa::load(from + r * stride + i * Isa::width);
    }
}

/// Stores to[r * stride + output] = last(sum, register, r).
template <class Isa, int R, int W, class Last>
[[gnu::always_inline]] inline void store_sums(const typename Isa::Floats (&sum)[R][W], float* to, std::int64_t stride,
                                              const Last& last) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) Isa::store(to + r * stride + i * Isa::width, last(sum[r][i], i, r));
    }
}

/// Ends slice `s`: adds the spilled sums of the lower levels, then stores the result in its level or in `out`. (Spilled
/// sums are stored tile by tile, so that their offsets are constants; with computed row offsets, a matmul of 13 rows
/// took 2 % longer.)
template <class Isa, int R, int W>
[[gnu::always_inline]] inline void add_and_store(typename Isa::Floats (&sum)[R][W], const SliceSums& sums,
                                                 const SliceRange& slices, std::int64_t s) {
    const std::int64_t levels = SliceSums::levels_before(s);
    for (std::int64_t level = 0; level < levels; ++level) {
        const float* from = sums.spilled + level * sums.level_stride;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                sum[r][i] = Isa::add(Isa::load(from + (r * W + i) * Isa::width), sum[r][i]);
            }
        }
    }
    const auto as_it_is = [](typename Isa::Floats x, int, int) __attribute__((always_inline)) {
        return x;
    };
    if (s + 1 == slices.all) return store_sums<Isa>(sum, sums.out, sums.out_stride, as_it_is);
    store_sums<Isa>(sum, sums.spilled + levels * sums.level_stride, W * Isa::width, as_it_is);
}

/// Packs one word of a row into the words of the steps of `Dot`.
template <class Dot>
[[gnu::always_inline]] inline void pack_word(std::uint32_t word, std::int64_t num_rows, std::uint32_t* to) {
    if constexpr (Dot::steps == 2) {
        to[0] = word & 0xffff0000U;
        to[num_rows] = word << 16;
    } else {
        to[0] = word;
    }
}

/// Packs four groups from `g` on of four rows, transposed in registers, to row `r` and the next three.
template <class Dot>
[[gnu::always_inline]] inline void pack_square(const std::uint32_t* const* rows, std::int64_t r, std::int64_t g,
                                               std::int64_t num_rows, std::uint32_t* to) {
    const auto load = [&](std::int64_t i) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows[i] + g)); };
    __m128 words[4] = {load(0), load(1), load(2), load(3)};
    _MM_TRANSPOSE4_PS(words[0], words[1], words[2], words[3]);
    for (std::int64_t i = 0; i < 4; ++i) {
        std::uint32_t* at = to + (g + i) * Dot::steps * num_rows + r;
        const __m128i four = _mm_castps_si128(words[i]);
        if constexpr (Dot::steps == 2) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                             _mm_and_si128(four, _mm_set1_epi32(static_cast<int>(0xffff0000U))));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at + num_rows), _mm_slli_epi32(four, 16));
        } else {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at), four);
        }
    }
}

/// Maximum rows of a matmul that are computed in one tile, if the registers suffice or almost do. Measured with weights
/// in the caches, fraction of peak in two tiles / in one tile: 13 and 14 rows 0.84 to 0.86 / 0.95, 15 rows 0.94 / 0.96,
/// 16 rows 0.955 / 0.955. With weights in memory, time of a layer in one tile relative to two, on Zen 5 cores without /
/// with a shared L3: 15 rows 0.97 / 0.92, 16 rows 1.00 / 0.96, 18 rows with a shared L3 1.03. Matmuls of more rows use
/// the usual tile sizes (26 rows 0.96 and 0.945).
template <class Dot>
constexpr int max_matmul_rows = [] {
    if constexpr (requires { Dot::max_matmul_rows; }) return Dot::max_matmul_rows;
    return Dot::max_rows;
}();

/// pack_tile for fewer than four rows.
template <class Dot, class RowAt>
void pack_few_rows(const RowAt& row, std::int64_t num_rows, std::int64_t num_groups, std::uint32_t* to) {
    const std::int64_t group_words = Dot::steps * num_rows;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const std::uint32_t* from = row(r);
        for (std::int64_t g = 0; g < num_groups; ++g) pack_word<Dot>(from[g], num_rows, to + g * group_words + r);
    }
}

/// Packs the words of a tile's rows, [group][step][row], from row(r)[group]. Packing word by word costs a core with
/// vdpbf16ps 3 % of a small matmul (12 rows, Zen 5); transposing 4 x 4 squares costs a third of that. If the number of
/// rows is not a multiple of four, the last square writes some rows a second time.
template <class Dot, class RowAt>
void pack_tile(const RowAt& row, std::int64_t num_rows, std::int64_t num_groups, std::uint32_t* to) {
    if (num_rows < 4) return pack_few_rows<Dot>(row, num_rows, num_groups, to);
    const std::int64_t square_groups = num_groups / 4 * 4;
    const std::uint32_t* rows[max_matmul_rows<Dot>];
    for (std::int64_t r = 0; r < num_rows; ++r) rows[r] = row(r);
    for (std::int64_t g = 0; g < square_groups; g += 4) {
        for (std::int64_t r = 0; r < num_rows; r += 4) {
            const std::int64_t first = r + 4 <= num_rows ? r : num_rows - 4;
            pack_square<Dot>(rows + first, first, g, num_rows, to);
        }
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t g = square_groups; g < num_groups; ++g) {
            pack_word<Dot>(rows[r][g], num_rows, to + g * Dot::steps * num_rows + r);
        }
    }
}

/// Prefetch distance of the weights, in each of the blocks that are read side by side: 2 KB of each hide DRAM's 100 ns
/// at one core's bandwidth.
constexpr std::int64_t near_prefetch_bytes = 2048;

/// Prefetch distance for a tile of `rows` rows. If only two blocks are read and arithmetic takes almost as long as
/// reading, more must be in flight, or each waits for the other (Zen 5, 66 GB/s on 2 cores, time relative to 2 KB: 8
/// rows 0.88 with 4 KB, 0.91 with 8 KB; 12 rows 0.95 with 8 KB relative to 4 KB; four blocks, 4 rows, 1.06 with 4 KB).
template <class Isa>
constexpr std::int64_t prefetch_bytes(std::int64_t rows) {
    if (Isa::width != 16 || rows <= 4) return near_prefetch_bytes;
    return rows <= 8 ? 2 * near_prefetch_bytes : 4 * near_prefetch_bytes;
}

/// One group of a tile: sum[r][i] += weights at place(i) times input r, in each step.
template <class Isa, class Dot, int W, int R, class Places>
[[gnu::always_inline]] inline void multiply_group(typename Isa::Floats (&sum)[R][W], const Places& place,
                                                  const std::uint32_t* x) {
    using Floats = typename Isa::Floats;
    if constexpr (Dot::steps * R <= 2) {
        // One row: inputs stay in registers, each weight register is used up at once.
        Floats in[Dot::steps][R];
#pragma GCC unroll 16
        for (int s = 0; s < Dot::steps; ++s) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) in[s][r] = Dot::input(x + s * R + r);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) {
#pragma GCC unroll 16
            for (int s = 0; s < Dot::steps; ++s) {
                const Floats weight = Dot::weights(place(i), s);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) Dot::multiply_add(sum[r][i], weight, in[s][r]);
            }
        }
    } else {
        // Several rows: in each step, the fewer of weights and inputs stay in registers; the others are loaded one by
        // one.
#pragma GCC unroll 16
        for (int step = 0; step < Dot::steps; ++step) {
            if constexpr (R < W) {
                Floats in[R];
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) in[r] = Dot::input(x + step * R + r);
#pragma GCC unroll 16
                for (int i = 0; i < W; ++i) {
                    const Floats weight = Dot::weights(place(i), step);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) Dot::multiply_add(sum[r][i], weight, in[r]);
                }
            } else {
                Floats weight[W];
                weights_of_step<Dot>(weight, place, step);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) Dot::multiply_add_row(sum[r], weight, x + step * R + r);
            }
        }
    }
}

/// Blocks of 16 outputs that are interleaved (BlockPlaces), so that memory is read in one stream, or in two for up to 4
/// rows (Zen 5, time of a matmul relative to separate blocks, on cores that share an L3 and cores that do not: 1 row
/// 0.96 and 0.94, 4 rows 0.97 and 0.94, 8 rows 0.97 and 0.93, 16 rows 0.98 and 0.98). AVX2's tiles cover one block or
/// three.
template <class Isa>
constexpr std::int64_t blocks_together = Isa::width == 16 ? 2 : 1;

/// Offset of block `b` of a tile from its first block: `stride` bytes from block to block, `beside` within a bundle.
template <class Isa>
[[gnu::always_inline]] constexpr std::int64_t place_of_block(std::int64_t b, std::int64_t stride, std::int64_t beside) {
    constexpr std::int64_t together = blocks_together<Isa>;
    return b / together * together * stride + b % together * beside;
}

/// Prefetches a cache line, or a part of it, of each block of a tile per group. If two tiles share a block (W is odd),
/// each prefetches half of it and one whole block. With the shared block prefetched by the first tile alone, two thirds
/// of the bytes would arrive in half of the time, and memory and arithmetic would wait for each other (4 rows: a sixth
/// of the time).
template <class Isa, int W, int First>
class TilePrefetcher {
  public:
    [[gnu::always_inline]] TilePrefetcher(const TileJob& job, std::int64_t slice)
        : stride_(job.block_stride), beside_(job.ahead.beside), bytes_(job.ahead.bytes) {
        const std::byte* from = job.ahead.of_slice(job.slices, slice, job.groups_per_slice);
        whole_ = from + (First == 0 ? 0 : stride_);
        shared_ = from + (First == 0 ? stride_ : job.groups_per_slice * bytes_ / 2);
    }

    /// Called once per group.
    [[gnu::always_inline]] void prefetch() {
#pragma GCC unroll 16
        for (int b = 0; b < W / regs; ++b) __builtin_prefetch(whole_ + place_of_block<Isa>(b, stride_, beside_), 0, 3);
        whole_ += bytes_;
        if constexpr (W % regs != 0) {
            __builtin_prefetch(shared_, 0, 3);
            shared_ += bytes_ / 2;
        }
    }

  private:
    static constexpr int regs = lanes / Isa::width;
    const std::byte* whole_;
    const std::byte* shared_;
    std::int64_t stride_, beside_, bytes_;
};

/// Runs one slice after another. Compared with one call per slice, in the same process, a matmul from the caches takes
/// 2 to 10 % less time (8 to 24 rows, 128 groups per slice, Zen 5; the reason is unknown). `First`: index of the tile's
/// first register in its block; if W is odd, every second tile begins in the middle of a block of two registers.
template <class Isa, class Dot, int W, int R, int First>
void tile(const TileJob& job) {
    constexpr int regs = lanes / Isa::width;  // registers per block
    constexpr std::int64_t reg_bytes = group_bytes / regs;
    // A tile of a single block reads only blocks that are not interleaved.
    constexpr std::int64_t group_stride = (W / regs < blocks_together<Isa> ? 1 : blocks_together<Isa>)*group_bytes;
    constexpr int num_spilled = spilled_rows<Isa, R, W>;
    const std::byte* w = job.weights;
    const std::uint32_t* x = job.words;
    for (std::int64_t s = job.slices.first; s < job.slices.end; ++s) {
        typename Isa::Floats sum[R][W];
        clear_sums<Isa>(sum);
        TilePrefetcher<Isa, W, First> ahead(job, s);
        const auto next_group = [&]() __attribute__((always_inline)) {
            ahead.prefetch();
            const auto place = [&](int i) {
                return w + place_of_block<Isa>((First + i) / regs, job.block_stride, group_bytes) +
                       (First + i) % regs * reg_bytes;
            };
            multiply_group<Isa, Dot>(sum, place, x);
            w += group_stride;
            x += Dot::steps * R;
        };
        if constexpr (num_spilled > 0) {
            // (Not for all tiles: nested closures would keep AVX2's accumulators in memory.)
            const auto with_next_group = [&](const auto& multiply) __attribute__((always_inline)) {
                ahead.prefetch();
                multiply([&](int i) { return w + i * group_bytes; }, x);
                w += group_stride;
                x += R;
            };
            multiply_slice_spilled<Isa, Dot>(sum, job.groups_per_slice, with_next_group);
        } else if constexpr (R < 4) {  // memory is the bottleneck
            for (std::int64_t g = 0; g < job.groups_per_slice; ++g) next_group();
        } else {  // loop overhead matters, see Avx2::load_odds
#pragma GCC unroll 2
            for (std::int64_t g = 0; g < job.groups_per_slice; ++g) next_group();
        }
        add_and_store<Isa>(sum, job.sums, job.slices, s);
    }
}

/// Registers of outputs per tile of R rows. AVX2's 16 registers: 12 accumulators if possible (8 would keep two pipes of
/// 4 cycles busy only if nothing were ever late: tiles of 8 reached 51 % of the peak, tiles of 12 two thirds).
/// AVX-512's 32 registers: up to 28 accumulators, or 32 of which a few are spilled.
template <class Isa, int R>
constexpr int registers_of_tile() {
    if (Isa::width == 16) return R <= 4 ? 4 : 2;
    return R == 1 ? 8 : R == 2 ? 6 : R == 3 ? 4 : R == 4 ? 3 : 2;
}

/// Number of blocks that whole tiles of `rows` rows cover.
template <class Isa>
constexpr std::int64_t blocks_of_tiles(std::int64_t rows) {
    if (Isa::width == 16) return rows <= 4 ? 4 : 2;
    return rows == 1 ? 4 : rows == 2 ? 3 : rows == 3 ? 2 : rows == 4 ? 3 : 1;
}

/// Runs one tile and advances the job past it.
template <class Isa, class Dot, int W, int R, int First>
void tile_and_advance(TileJob& job) {
    constexpr int regs = lanes / Isa::width;
    tile<Isa, Dot, W, R, First>(job);
    job.weights += (First + W) / regs * job.block_stride;
    job.ahead.from += (First + W) / regs * job.block_stride;
    job.sums.advance(R, W * Isa::width);
}

/// Runs `num_blocks` blocks for R rows: whole tiles first, then two blocks at a time, then single ones (a page of keys
/// has four blocks, a head of values often two).
template <class Isa, class Dot, int R>
void tile_blocks(TileJob& job, std::int64_t num_blocks) {
    constexpr int W = registers_of_tile<Isa, R>();
    constexpr int regs = lanes / Isa::width;
    std::int64_t left = num_blocks * regs;
    if constexpr (W % regs == 0) {
        for (; left >= W; left -= W) tile_and_advance<Isa, Dot, W, R, 0>(job);
    } else {
        for (; left >= 2 * W; left -= 2 * W) {
            tile_and_advance<Isa, Dot, W, R, 0>(job);
            tile_and_advance<Isa, Dot, W, R, 1>(job);
        }
    }
    if constexpr (W > 2 * regs) {
        for (; left >= 2 * regs; left -= 2 * regs) tile_and_advance<Isa, Dot, 2 * regs, R, 0>(job);
    }
    if constexpr (W > regs) {
        for (; left > 0; left -= regs) tile_and_advance<Isa, Dot, regs, R, 0>(job);
    }
}

/// tile_blocks for `num_rows` rows; leaves `job` advanced. (By reference: a copy through wide registers would wait for
/// the stores that were just made to it; 16 rows from the caches, Zen 5: 1.5 % of a matmul.)
template <class Isa, class Dot>
void run_tile(TileJob& job, std::int64_t num_rows, std::int64_t num_blocks) {
    switch (num_rows) {
        case 1:
            return tile_blocks<Isa, Dot, 1>(job, num_blocks);
        case 2:
            return tile_blocks<Isa, Dot, 2>(job, num_blocks);
        case 3:
            return tile_blocks<Isa, Dot, 3>(job, num_blocks);
        case 4:
            return tile_blocks<Isa, Dot, 4>(job, num_blocks);
        case 5:
            return tile_blocks<Isa, Dot, 5>(job, num_blocks);
        case 6:
            return tile_blocks<Isa, Dot, 6>(job, num_blocks);
        default:
            break;
    }
    if constexpr (Dot::max_rows > 6) {
        switch (num_rows) {
            case 7:
                return tile_blocks<Isa, Dot, 7>(job, num_blocks);
            case 8:
                return tile_blocks<Isa, Dot, 8>(job, num_blocks);
            case 9:
                return tile_blocks<Isa, Dot, 9>(job, num_blocks);
            case 10:
                return tile_blocks<Isa, Dot, 10>(job, num_blocks);
            case 11:
                return tile_blocks<Isa, Dot, 11>(job, num_blocks);
            case 12:
                return tile_blocks<Isa, Dot, 12>(job, num_blocks);
            default:
                break;
        }
    }
    if constexpr (12 < max_matmul_rows<Dot>) {
        if (num_rows == 13) return tile_blocks<Isa, Dot, 13>(job, num_blocks);
        if (num_rows == 14) return tile_blocks<Isa, Dot, 14>(job, num_blocks);
        if (num_rows == 15) return tile_blocks<Isa, Dot, 15>(job, num_blocks);
        if (num_rows == 16) return tile_blocks<Isa, Dot, 16>(job, num_blocks);
    }
}

/// Tiles for `num_rows` rows with `Dot`.
template <class Dot>
RowTiles tiles_of(std::int64_t num_rows) {
    return RowTiles{num_rows, (num_rows + Dot::max_rows - 1) / Dot::max_rows};
}

/// tiles_of for many rows: 6 or 4 rows at a time keep the most accumulators in AVX2's registers (measured: 16, 20 and
/// 32 rows are 5 % faster than in as few tiles as possible).
template <class Dot>
[[gnu::always_inline]] inline RowTiles tiles_of_many(std::int64_t num_rows) {
    if (Dot::max_rows != 6 || num_rows <= 6 || num_rows % 6 == 0) return tiles_of<Dot>(num_rows);
    return RowTiles{num_rows, (num_rows + 3) / 4};
}

/// Row tiles of a matmul.
template <class Dot>
[[gnu::always_inline]] inline RowTiles matmul_tiles(std::int64_t num_rows) {
    return num_rows <= max_matmul_rows<Dot> ? RowTiles{num_rows, 1} : tiles_of_many<Dot>(num_rows);
}

}  // namespace longhaul::kernels::cpu
