// The inner loop of every product: NB blocks of 16 outputs times R rows, accumulators in registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

struct TileJob {
    const std::byte* weights;    ///< first group of the first block
    std::int64_t block_stride;   ///< bytes from block to block
    const std::uint32_t* words;  ///< [group][step][R]
    std::int64_t num_groups;
    const std::byte* ahead;  ///< what will be read next, as much as this: prefetched group by group
    bool ahead_in_order;     ///< prefetch by ascending address; else block by block as `weights`
    float* out;              ///< out[r * out_stride + 16 * block + output]
    std::int64_t out_stride;
    bool accumulate;  ///< go on from the sums in `out` instead of +0
};

/// How far ahead of its use a weight is asked for: 2 KB of each block hide DRAM's 100 ns at one core's bandwidth.
constexpr std::int64_t prefetch_bytes = 2048;

template <class Isa, class Dot, int NB, int R>
void tile(const TileJob& job) {
    using Floats = typename Isa::Floats;
    constexpr int regs = lanes / Isa::width;  // registers of a block
    constexpr int W = NB * regs;
    constexpr std::int64_t reg_bytes = group_bytes / regs;
    Floats sum[W][R];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            float* from = job.out + r * job.out_stride + i * Isa::width;
            sum[i][r] = job.accumulate ? Isa::load(from) : Isa::zero();
        }
    }
    const std::byte* w = job.weights;
    const std::uint32_t* x = job.words;
    const std::byte* ahead = job.ahead;
    const std::int64_t ahead_block = job.ahead_in_order ? group_bytes : job.block_stride;
    const std::int64_t ahead_group = job.ahead_in_order ? NB * group_bytes : group_bytes;
    for (std::int64_t g = 0; g < job.num_groups; ++g) {
#pragma GCC unroll 16
        for (int b = 0; b < NB; ++b) {
            __builtin_prefetch(ahead + b * ahead_block, 0, 3);
        }
        if constexpr (Dot::steps * R <= 4) {
            // Few rows: inputs wait in registers, each weight register is used up at once.
            Floats in[Dot::steps][R];
#pragma GCC unroll 16
            for (int s = 0; s < Dot::steps; ++s) {
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) in[s][r] = Dot::input(x + s * R + r);
            }
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                const std::byte* from = w + (i / regs) * job.block_stride + (i % regs) * reg_bytes;
#pragma GCC unroll 16
                for (int s = 0; s < Dot::steps; ++s) {
                    const Floats weight = Dot::weights(from, s);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) sum[i][r] = Dot::multiply_add(weight, in[s][r], sum[i][r]);
                }
            }
        } else {
            // Many rows: of the step's weights and inputs the fewer wait in registers, the others pass by one by one.
#pragma GCC unroll 16
            for (int step = 0; step < Dot::steps; ++step) {
                if constexpr (R < W) {
                    // Loads the weights anew in each step: held across steps they push sums out of the registers.
                    asm("" : "+r"(w));
                    Floats in[R];
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) in[r] = Dot::input(x + step * R + r);
#pragma GCC unroll 16
                    for (int i = 0; i < W; ++i) {
                        const std::byte* from = w + (i / regs) * job.block_stride + (i % regs) * reg_bytes;
                        const Floats weight = Dot::weights(from, step);
#pragma GCC unroll 16
                        for (int r = 0; r < R; ++r) sum[i][r] = Dot::multiply_add(weight, in[r], sum[i][r]);
                    }
                } else {
                    Floats weight[W];
#pragma GCC unroll 16
                    for (int i = 0; i < W; ++i) {
                        const std::byte* from = w + (i / regs) * job.block_stride + (i % regs) * reg_bytes;
                        weight[i] = Dot::weights(from, step);
                    }
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        const Floats in = Dot::input(x + step * R + r);
#pragma GCC unroll 16
                        for (int i = 0; i < W; ++i) sum[i][r] = Dot::multiply_add(weight[i], in, sum[i][r]);
                    }
                }
            }
        }
        w += group_bytes;
        ahead += ahead_group;
        x += Dot::steps * R;
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) Isa::store(job.out + r * job.out_stride + i * Isa::width, sum[i][r]);
    }
}

/// Blocks of outputs of a tile of R rows: enough accumulators to hide the latency of the multiply-add (8 with AVX2's
/// two pipes of 4 cycles; more with AVX-512), never more than the registers hold.
template <class Isa, int R>
constexpr int blocks_of_tile() {
    if (Isa::width == 16) return R <= 4 ? 4 : 2;
    return R == 1 ? 4 : R <= 3 ? 2 : 1;
}

/// `num_blocks` blocks for R rows: whole tiles first, single blocks for the rest.
template <class Isa, class Dot, int R>
void tile_blocks(TileJob job, std::int64_t num_blocks) {
    constexpr int NB = blocks_of_tile<Isa, R>();
    std::int64_t b = 0;
    for (; b + NB <= num_blocks; b += NB) {
        tile<Isa, Dot, NB, R>(job);
        job.weights += NB * job.block_stride;
        job.ahead += NB * job.block_stride;
        job.out += NB * lanes;
    }
    if constexpr (NB > 1) {
        for (; b < num_blocks; ++b) {
            tile<Isa, Dot, 1, R>(job);
            job.weights += job.block_stride;
            job.ahead += job.block_stride;
            job.out += lanes;
        }
    }
}

template <class Isa, class Dot>
void run_tile(const TileJob& job, std::int64_t num_rows, std::int64_t num_blocks) {
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
}

/// Tiles of `num_rows` rows under `Dot`.
template <class Dot>
RowTiles tiles_of(std::int64_t num_rows) {
    return RowTiles{num_rows, (num_rows + Dot::max_rows - 1) / Dot::max_rows};
}

}  // namespace longhaul::kernels::cpu
