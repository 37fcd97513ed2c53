// Products y = W x over the packed layout.
#pragma once

#include "kernels/cpu/tile.hpp"

namespace longhaul::kernels::cpu {

template <class Dot>
void pack_words(const PackJob& job, std::int64_t first_group, std::int64_t end_group) {
    const RowTiles tiles = product_tiles<Dot>(job.num_rows);
    // A group is 4 bytes of a row in either type: one f32 or one pair of bf16.
    const std::int64_t stride = job.row_stride / (Dot::is_bf16 ? 2 : 1);
    const auto* from = reinterpret_cast<const std::uint32_t*>(job.rows) + first_group;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - first;
        pack_tile<Dot>([&](std::int64_t r) { return from + (first + r) * stride; }, rows, end_group - first_group,
                       job.words + (first * job.num_groups + first_group * rows) * Dot::steps);
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

/// One slice of a group of blocks, all rows: where it stands and where its sums go.
struct SlicePlace {
    std::int64_t block, num_blocks;  ///< of 16 outputs
    std::int64_t slice;
    float* out;  ///< of row 0, as `addends`
    std::int64_t out_stride;
    Addends addends;

    [[gnu::always_inline]] float* out_of(std::int64_t row) const { return out + row * out_stride; }
    [[gnu::always_inline]] Addends addends_of(std::int64_t row) const {
        Addends moved = addends;
        moved.first += row * addends.row_stride;
        return moved;
    }
};

/// Calls `run` for each slice of blocks first_block..end_block, so that the sums of the slices end in job.y. Order of
/// the loops: a slice of one group of blocks (8 to 22 KB for 16 outputs at K = 2048 to 5632) stays in the first cache
/// while all tiles of rows use it, so weights come from memory once per block_rows rows.
template <class Job, class Run>
void for_each_slice(const Job& job, std::int64_t blocks_at_once, std::int64_t first_block, std::int64_t end_block,
                    Run run) {
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
            run(SlicePlace{.block = b,
                           .num_blocks = blocks,
                           .slice = s,
                           .out = to_y ? job.y + first_output : waiting.level(levels),
                           .out_stride = to_y ? job.num_outputs : waiting.width,
                           .addends = {.first = waiting.first,
                                       .num = levels,
                                       .stride = block_rows * waiting.width,
                                       .row_stride = waiting.width}});
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

/// Weights of all blocks of a place, and what is to be read meanwhile: `distance` further in each block. Behind the end
/// of a block comes not its neighbour, which is here already, but the next group of blocks: for slices that begin
/// within `distance` of it. Where slices are longer, the last one asks for that much of the neighbour in vain, and the
/// next group begins without having been asked for (at most 5 % of the bytes).
struct WeightStream {
    const std::byte* weights;
    const std::byte* ahead;

    [[gnu::always_inline]] static WeightStream of(const std::byte* weights, std::int64_t block_bytes,
                                                  const SlicePlace& place, std::int64_t at, std::int64_t end,
                                                  std::int64_t distance) {
        const std::byte* here = weights + place.block * block_bytes + at;
        return {here, here + distance + (at + distance >= end ? (place.num_blocks - 1) * block_bytes : 0)};
    }
};

/// Whether one tile of rows asks for what it will use soon (but not where its tiles share a block, TileAhead).
template <class Isa>
bool ask_near(RowTiles tiles) {
    return tiles.num_tiles == 1 && (Isa::width == 16 || tiles.num_rows != 4);
}

/// All rows through a slice's weights as they are. Several tiles of rows ask for the next slice, each for a part: so
/// memory is busy all the time and not during the first of them alone.
template <class Isa, class Dot>
void multiply_slice(const MatmulJob& job, RowTiles tiles, const SlicePlace& place) {
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    const std::int64_t first_group = place.slice * job.groups_per_slice;
    const std::int64_t slice_bytes = job.groups_per_slice * group_bytes;
    const std::int64_t block_bytes = num_groups * group_bytes;
    const WeightStream stream =
        WeightStream::of(job.weights, block_bytes, place, first_group * group_bytes, block_bytes,
                         ask_near<Isa>(tiles) ? prefetch_bytes<Isa>(tiles.num_rows) : slice_bytes);
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t row = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - row;
        const TileJob tile{.weights = stream.weights,
                           .block_stride = block_bytes,
                           .words = job.words + (row * num_groups + first_group * rows) * Dot::steps,
                           .num_groups = job.groups_per_slice,
                           .ahead = stream.ahead + t * slice_bytes / tiles.num_tiles,
                           .ahead_bytes = group_bytes / tiles.num_tiles,
                           .out = place.out_of(row),
                           .out_stride = place.out_stride,
                           .addends = place.addends_of(row)};
        run_tile<Isa, Dot>(tile, rows, place.num_blocks);
    }
}

template <class Isa, class Dot>
void matmul_blocks(const MatmulJob& job, std::int64_t first_block, std::int64_t end_block) {
    const RowTiles tiles = product_tiles<Dot>(job.num_rows);
    const std::int64_t largest = (job.num_rows + tiles.num_tiles - 1) / tiles.num_tiles;
    for_each_slice(job, blocks_of_tiles<Isa>(largest), first_block, end_block,
                   [&](const SlicePlace& place) { multiply_slice<Isa, Dot>(job, tiles, place); });
}

}  // namespace longhaul::kernels::cpu
