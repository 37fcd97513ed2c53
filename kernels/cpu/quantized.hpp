// Matmul y = W x with int8 and int4 weights, in the order of numerics.hpp. Called by cpu_quantized.cpp through the
// kernel table.
#pragma once

#include "kernels/cpu/dot_quantized.hpp"
#include "kernels/cpu/matmul.hpp"

namespace longhaul::kernels::cpu {

/// Quantizes one row's inputs of one block: integers to `q` (zeros beyond the last input); returns their scale.
template <class Dot>
float quantize_inputs(const std::uint16_t* from, std::int64_t count, std::int8_t* q) {
    constexpr float to_nearest = 12582912.0F;  // 1.5 * 2^23
    constexpr std::uint32_t infinity = 0x7f800000U, smallest = (127U - 100U) << 23;
    alignas(64) std::uint32_t bits[Dot::block];
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < Dot::block; ++i) {
        bits[i] = i < count ? static_cast<std::uint32_t>(from[i]) << 16 : 0U;
    }
    for (std::int64_t i = 0; i < Dot::block; ++i) {
        const std::uint32_t magnitude = bits[i] & 0x7fffffffU;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= infinity || largest < smallest) {
        for (std::int64_t i = 0; i < Dot::block; ++i) q[i] = 0;
        return largest >= infinity ? __builtin_nanf("") : 0.0F;
    }
    const float max_magnitude = __builtin_bit_cast(float, largest);
    const float inverse = 127.0F / max_magnitude;
    for (std::int64_t i = 0; i < Dot::block; ++i) {
        const float shifted = __builtin_fmaf(__builtin_bit_cast(float, bits[i]), inverse, to_nearest);
        q[i] = static_cast<std::int8_t>(__builtin_bit_cast(std::int32_t, shifted) -
                                        __builtin_bit_cast(std::int32_t, to_nearest));
    }
    return max_magnitude / 127.0F;
}

/// A row of a tile, and a block of its inputs.
struct InputPlace {
    std::int64_t first_row, rows, row;  ///< of the tile, and in the tile
    std::int64_t block;
    std::int64_t first_group, num_groups;  ///< of the block

    /// Index in an array [tile][block][row of tile].
    [[gnu::always_inline]] std::int64_t of_block(std::int64_t num_blocks) const {
        return first_row * num_blocks + block * rows + row;
    }
};

/// Inputs as words: [tile][group][step][row of tile], and their corrections.
template <class Dot>
struct InputWords {
    static RowTiles tiles(std::int64_t num_rows) { return tiles_of<Dot>(num_rows); }

    static void store(const std::int8_t* q, const QuantizeJob& job, const InputPlace& place) {
        std::int32_t sum = 0;
        for (std::int64_t i = 0; i < Dot::block; ++i) sum += q[i];
        job.corrections[place.of_block(job.num_blocks)] = -Dot::offset * sum;
        std::uint32_t* to =
            job.words + (place.first_row * job.num_groups + place.first_group * place.rows) * Dot::steps + place.row;
        for (std::int64_t w = 0; w < place.num_groups * Dot::steps; ++w)
            __builtin_memcpy(to + w * place.rows, q + 4 * w, 4);
    }
};

/// Block numbers run over all slices. `Layout`: InputWords or AmxInputs.
template <class Dot, class Layout>
void quantize_blocks(const QuantizeJob& job, std::int64_t part, std::int64_t num_parts) {
    constexpr std::int64_t group = 4 * Dot::steps, groups_per_block = Dot::block / group;
    const std::int64_t blocks_per_slice = (job.slice_length + Dot::block - 1) / Dot::block;
    const std::int64_t groups_per_slice = (job.slice_length + group - 1) / group;
    const auto quantize = [&](std::int64_t first_row, std::int64_t rows, std::int64_t b) {
        const std::int64_t slice = b / blocks_per_slice, in_slice = b % blocks_per_slice;
        const std::int64_t begin = slice * job.slice_length + in_slice * Dot::block;
        const std::int64_t left = job.slice_length - in_slice * Dot::block;
        const std::int64_t count = left < Dot::block ? left : Dot::block;
        InputPlace place{.first_row = first_row,
                         .rows = rows,
                         .row = 0,
                         .block = b,
                         .first_group = slice * groups_per_slice + in_slice * groups_per_block,
                         .num_groups = (count + group - 1) / group};
        for (std::int64_t r = 0; r < rows; ++r) {
            alignas(64) std::int8_t q[Dot::block];
            const auto* row = reinterpret_cast<const std::uint16_t*>(job.rows) + (first_row + r) * job.row_stride;
            place.row = r;
            job.scales[place.of_block(job.num_blocks)] = quantize_inputs<Dot>(row + begin, count, q);
            Layout::store(q, job, place);
        }
    };
    const RowTiles tiles = Layout::tiles(job.num_rows);
    const std::int64_t first = part * job.num_blocks / num_parts, end = (part + 1) * job.num_blocks / num_parts;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        for (std::int64_t b = first; b < end; ++b) quantize(tiles.first(t), tiles.first(t + 1) - tiles.first(t), b);
    }
}

struct QuantizedTile {
    const std::byte* weights;         ///< first group of the first slice, of the first block of outputs
    const std::byte* scales;          ///< bf16 [block][16], of the first slice, of the first block of outputs
    const std::byte* next_scales;     ///< scales that are read next, with the same layout
    std::int64_t block_bytes;         ///< from one block of outputs to the next, for weights and scales
    const std::uint32_t* words;       ///< [group][step][R]
    const float* input_scales;        ///< [block][R]
    const std::int32_t* corrections;  ///< [block][R]
    SliceRange slices;
    std::int64_t groups_per_slice;
    std::int64_t blocks_per_slice;  ///< of inputs
    TilePrefetch ahead;
    SliceSums sums;
};

/// A tile of B x 16 outputs and R rows, slice after slice.
template <class Isa, class Dot, int B, int R>
void quantized_tile(const QuantizedTile& job) {
    using Floats = typename Isa::Floats;
    using Ints = typename Isa::Ints;
    constexpr int regs = lanes / Isa::width;
    constexpr int W = B * regs;
    constexpr std::int64_t reg_bytes = group_bytes / regs;
    constexpr std::int64_t groups_per_block = Dot::block / (4 * Dot::steps);
    constexpr bool corrects_first = Dot::offset != 0 && Dot::sums_words;
    constexpr int wanted = (Dot::latency + W * R - 1) / (W * R);
    constexpr int chains = wanted >= 4 ? 4 : wanted >= 2 ? 2 : 1;  // of the 16 or 4 groups of a block
    const std::byte* w = job.weights;
    const std::uint32_t* x = job.words;
    const std::byte* ahead = nullptr;
    const auto add_group = [&](Ints(&ints)[W][R]) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int b = 0; b < B; ++b) __builtin_prefetch(ahead + b * job.block_bytes, 0, 3);
        const auto weights_of = [&](int i) {
            return Dot::weights(w + i / regs * job.block_bytes + i % regs * reg_bytes);
        };
        if constexpr (Dot::rows_outside) {
            typename Dot::Weights weights[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) weights[i] = weights_of(i);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
                for (int i = 0; i < W; ++i) Dot::multiply_add(ints[i][r], weights[i], x + r, R);
            }
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                const auto weights = weights_of(i);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) Dot::multiply_add(ints[i][r], weights, x + r, R);
            }
        }
        w += group_bytes;
        ahead += job.ahead.bytes;
        x += Dot::steps * R;
    };
    for (std::int64_t s = job.slices.first; s < job.slices.end; ++s) {
        const std::int64_t first_block = (s - job.slices.first) * job.blocks_per_slice;
        ahead = job.ahead.of_slice(job.slices, s, job.groups_per_slice);
        Floats sum[R][W];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) sum[r][i] = Isa::zero();
        }
        for (std::int64_t b = 0; b < job.blocks_per_slice; ++b) {
            const std::int64_t left = job.groups_per_slice - b * groups_per_block;
            const std::int64_t groups = left < groups_per_block ? left : groups_per_block;
            // Scales may arrive late (int4, Zen 5: 2 % of a layer of 8 rows). Not with one row (int4: 4 % slower).
            constexpr bool prefetches_scales = Isa::width == 16 && R > 1;
#pragma GCC unroll 16
            for (int i = 0; i < (prefetches_scales ? B : 0); ++i)
                __builtin_prefetch(job.next_scales + (first_block + b) * lanes * 2 + i * job.block_bytes, 0, 3);
            const auto correction = [&](int r) {
                return Isa::all_ints(static_cast<std::uint32_t>(job.corrections[(first_block + b) * R + r]));
            };
            const auto start = [&](int r) {
                if constexpr (corrects_first) return correction(r);
                return Isa::no_ints();
            };
            Ints ints[chains][W][R];
#pragma GCC unroll 4
            for (int c = 0; c < chains; ++c) {
#pragma GCC unroll 16
                for (int i = 0; i < W; ++i) {
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) ints[c][i][r] = c == 0 ? start(r) : Isa::no_ints();
                }
            }
            std::int64_t g = 0;
            // Full blocks: unrolled, with an iteration count known at compile time.
            if (Dot::rows_outside && groups == groups_per_block) {
#pragma GCC unroll 4
                for (; g < groups_per_block; g += chains) {
#pragma GCC unroll 4
                    for (int c = 0; c < chains; ++c) add_group(ints[c]);
                }
            }
            for (; g + chains <= groups; g += chains) {
#pragma GCC unroll 4
                for (int c = 0; c < chains; ++c) add_group(ints[c]);
            }
            for (; g < groups; ++g) add_group(ints[0]);
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                const std::byte* scales = job.scales + i / regs * job.block_bytes + i % regs * Isa::width * 2;
                const Floats scale = Isa::load_bf16(scales + (first_block + b) * lanes * 2);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    Ints total = ints[0][i][r];
#pragma GCC unroll 4
                    for (int c = 1; c < chains; ++c) total = Isa::add_ints(total, ints[c][i][r]);
                    total = Dot::total(total);
                    if constexpr (Dot::offset != 0 && !corrects_first) total = Isa::add_ints(total, correction(r));
                    const Floats both = Isa::mul(scale, Isa::all(job.input_scales[(first_block + b) * R + r]));
                    sum[r][i] = Isa::fma(Isa::to_floats(total), both, sum[r][i]);
                }
            }
        }
        add_and_store<Isa>(sum, job.sums, job.slices, s);
    }
}

/// Blocks of outputs side by side. With few rows memory is the bottleneck, and several streams read it faster than one
/// (one row on Zen 5: int8 with two blocks is 0.5 to 4 % faster than with four; int4, whose blocks are half as long, is
/// with four 5 % faster if the cores share no cache, 1 to 3 % slower if they do). If weights stay in registers, a
/// broadcast input is multiplied with as many of them as 12 integer sums and 12 float sums leave registers for.
template <class Dot>
constexpr std::int64_t quantized_blocks_at_once(std::int64_t rows) {
    constexpr bool long_blocks = Dot::block == 64;
    if (Dot::rows_outside) return rows == 4 ? 3 : rows < 4 && !long_blocks ? 4 : 2;
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

template <class Isa, class Dot, int R = 1>
void run_quantized_tile(QuantizedTile& job, std::int64_t num_rows, std::int64_t num_blocks) {
    if (num_rows == R) {
        constexpr int at_once = quantized_blocks_at_once<Dot>(R);
        const auto advance = [&](std::int64_t blocks) {
            job.weights += blocks * job.block_bytes;
            job.scales += blocks * job.block_bytes;
            job.next_scales += blocks * job.block_bytes;
            job.ahead.from += blocks * job.block_bytes;
            job.sums.advance(R, blocks * lanes);
        };
        std::int64_t left = num_blocks;
        for (; left >= at_once; left -= at_once, advance(at_once)) quantized_tile<Isa, Dot, at_once, R>(job);
        if constexpr (at_once > 2) {
            for (; left >= 2; left -= 2, advance(2)) quantized_tile<Isa, Dot, 2, R>(job);
        }
        if constexpr (at_once > 1) {
            for (; left > 0; --left, advance(1)) quantized_tile<Isa, Dot, 1, R>(job);
        }
        return;
    }
    if constexpr (R < Dot::max_rows) return run_quantized_tile<Isa, Dot, R + 1>(job, num_rows, num_blocks);
}

template <class Isa, class Dot>
void quantized_matmul_blocks(const QuantizedJob& job, BlockRange range) {
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    const std::int64_t num_blocks = job.num_slices * job.blocks_per_slice;
    const RowTiles tiles = tiles_of<Dot>(job.num_rows);
    const std::int64_t largest = (job.num_rows + tiles.num_tiles - 1) / tiles.num_tiles;
    const WeightGeometry geometry{job.weights, job.block_bytes, job.groups_per_slice * group_bytes, 1};
    const std::int64_t blocks_at_once = quantized_blocks_at_once<Dot>(largest);
    const TileRows rows_of(tiles);
    const auto run = [&](const SlicePlace& place) {
        const auto scales_of = [&](std::int64_t block, std::int64_t slice) {
            return job.weights + block * job.block_bytes + num_groups * group_bytes +
                   slice * job.blocks_per_slice * lanes * 2;
        };
        const std::byte* scales = scales_of(place.block, place.slices.first);
        const std::byte* next_scales = WeightGeometry::is_last(place, range.part_end) ? scales
                                       : place.slices.end < place.slices.all
                                           ? scales_of(place.block, place.slices.end)
                                           : scales_of(place.block + place.num_blocks, 0);
        const std::int64_t first_group = place.slices.first * job.groups_per_slice;
        const std::int64_t first_block_in = place.slices.first * job.blocks_per_slice;
        TilePrefetch ahead = geometry.ahead(place, near_prefetch_bytes, tiles.num_tiles, range.part_end);
        const std::int64_t share = geometry.share_of_tile(place, tiles.num_tiles);
        for (std::int64_t t = 0; t < tiles.num_tiles; ++t, ahead.from += share) {
            const std::int64_t row = rows_of.first[t];
            const std::int64_t rows = rows_of.first[t + 1] - row;
            QuantizedTile tile{.weights = geometry.at(place),
                               .scales = scales,
                               .next_scales = next_scales,
                               .block_bytes = job.block_bytes,
                               .words = job.words + (row * num_groups + first_group * rows) * Dot::steps,
                               .input_scales = job.scales + row * num_blocks + first_block_in * rows,
                               .corrections = job.corrections + row * num_blocks + first_block_in * rows,
                               .slices = place.slices,
                               .groups_per_slice = job.groups_per_slice,
                               .blocks_per_slice = job.blocks_per_slice,
                               .ahead = ahead,
                               .sums = place.sums_of(row)};
            run_quantized_tile<Isa, Dot>(tile, rows, place.num_blocks);
        }
    };
    constexpr std::int64_t many_rows = Dot::block == 32 ? ManyRows<Isa>::int4 : ManyRows<Isa>::int8;
    const std::int64_t slices = geometry.slices_at_once(job.num_slices, blocks_at_once, tiles, many_rows);
    for_each_place(job, blocks_at_once, slices, range, run);
}

}  // namespace longhaul::kernels::cpu
