// Products y = W x over the packed layout.
#pragma once

#include "kernels/cpu/tile.hpp"

namespace longhaul::kernels::cpu {

template <class Dot>
void pack_words(const PackJob& job, std::int64_t first_group, std::int64_t end_group) {
    const RowTiles tiles = tiles_of<Dot>(job.num_rows);
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - first;
        std::uint32_t* words = job.words + first * job.num_groups * Dot::steps;
        for (std::int64_t r = 0; r < rows; ++r) {
            // A group is 4 bytes of a row in either type: one f32 or one pair of bf16.
            const auto* from = reinterpret_cast<const std::uint32_t*>(job.rows) +
                               (first + r) * job.row_stride / (Dot::is_bf16 ? 2 : 1);
            std::uint32_t* to = words + r;
            for (std::int64_t g = first_group; g < end_group; ++g) {
                const std::uint32_t word = from[g];
                if constexpr (Dot::steps == 2) {
                    to[2 * g * rows] = word & 0xffff0000U;
                    to[(2 * g + 1) * rows] = word << 16;
                } else {
                    to[g * rows] = word;
                }
            }
        }
    }
}

/// Sums of slices that wait for their neighbours, [level][row][output]: level l holds 2^l slices. As many rows as a job
/// has, as many outputs as whole tiles fill.
struct WaitingSums {
    static constexpr std::int64_t max_levels = 4;  // 8 slices, and the whole where it cannot go to y at once

    float* first;
    std::int64_t width;  ///< outputs

    /// (always inlined, as levels_before: see the wall in kernel_table.hpp)
    [[gnu::always_inline]] float* level(std::int64_t l) const { return first + l * block_rows * width; }
};

/// Slice `s` of a balanced tree over slices, made from left to right: its tile adds the waiting sums of as many levels
/// as `s` ends in ones, and the result waits one level higher.
[[gnu::always_inline]] inline std::int64_t levels_before(std::int64_t s) {
    return __builtin_ctzll(static_cast<unsigned long long>(s) + 1);
}

/// One tile of a product: where it stands and where its sums go.
struct TilePlace {
    std::int64_t block, num_blocks;  ///< of 16 outputs
    std::int64_t slice;
    std::int64_t first_row, num_rows;
    float* out;
    std::int64_t out_stride;
    Addends addends;
};

/// Calls `run` for each tile of blocks first_block..end_block, all slices and all rows, so that the sums of the slices
/// end in job.y. Order of the loops: a slice of one group of blocks (8 to 22 KB for 16 outputs at K = 2048 to 5632)
/// stays in the first cache while all tiles of rows use it, so weights come from memory once per block_rows rows.
template <class Job, class Run>
void for_each_tile(const Job& job, RowTiles tiles, std::int64_t blocks_at_once, std::int64_t first_block,
                   std::int64_t end_block, Run run) {
    constexpr std::int64_t max_width = 4 * lanes;
    alignas(64) float memory[WaitingSums::max_levels * block_rows * max_width];
    for (std::int64_t b = first_block; b < end_block; b += blocks_at_once) {
        const std::int64_t blocks = end_block - b < blocks_at_once ? end_block - b : blocks_at_once;
        const std::int64_t first_output = b * lanes;
        const std::int64_t valid = job.num_outputs - first_output;
        const WaitingSums waiting{memory, blocks * lanes};
        for (std::int64_t s = 0; s < job.num_slices; ++s) {
            const std::int64_t levels = levels_before(s);
            const bool to_y = s + 1 == job.num_slices && waiting.width <= valid;
            float* out = to_y ? job.y + first_output : waiting.level(levels);
            const std::int64_t out_stride = to_y ? job.num_outputs : waiting.width;
            for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
                const std::int64_t first = tiles.first(t);
                run(TilePlace{.block = b,
                              .num_blocks = blocks,
                              .slice = s,
                              .first_row = first,
                              .num_rows = tiles.first(t + 1) - first,
                              .out = out + first * out_stride,
                              .out_stride = out_stride,
                              .addends = {.first = waiting.first + first * waiting.width,
                                          .num = levels,
                                          .stride = block_rows * waiting.width,
                                          .row_stride = waiting.width}});
            }
        }
        if (waiting.width <= valid) continue;
        const float* whole = waiting.level(levels_before(job.num_slices - 1));
        for (std::int64_t r = 0; r < job.num_rows; ++r) {
            for (std::int64_t n = 0; n < valid; ++n) {
                job.y[r * job.num_outputs + first_output + n] = whole[r * waiting.width + n];
            }
        }
    }
}

template <class Isa, class Dot>
void matmul_blocks(const MatmulJob& job, std::int64_t first_block, std::int64_t end_block) {
    const RowTiles tiles = tiles_of<Dot>(job.num_rows);
    const std::int64_t largest = (job.num_rows + tiles.num_tiles - 1) / tiles.num_tiles;
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    const auto run = [&](const TilePlace& place) {
        const std::int64_t first_group = place.slice * job.groups_per_slice;
        const std::byte* weights = job.weights + (place.block * num_groups + first_group) * group_bytes;
        // Behind the end of a block comes not its neighbour, which is here already, but the next group of blocks.
        const bool next = first_group * group_bytes + prefetch_bytes >= num_groups * group_bytes;
        const std::byte* ahead =
            weights + prefetch_bytes + (next ? (place.num_blocks - 1) * num_groups * group_bytes : 0);
        const TileJob tile{
            .weights = weights,
            .block_stride = num_groups * group_bytes,
            .words = job.words + (place.first_row * num_groups + first_group * place.num_rows) * Dot::steps,
            .num_groups = job.groups_per_slice,
            .ahead = ahead,
            .ahead_in_order = false,
            .out = place.out,
            .out_stride = place.out_stride,
            .accumulate = false,
            .addends = place.addends};
        run_tile<Isa, Dot>(tile, place.num_rows, place.num_blocks);
    };
    for_each_tile(job, tiles, blocks_of_tiles<Isa>(largest), first_block, end_block, run);
}

}  // namespace longhaul::kernels::cpu
