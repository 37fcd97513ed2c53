// Matmul y = W x over packed f32 and bf16 weights: packing of inputs, and the loops over blocks, slices and row tiles
// (tile.hpp). Called by cpu_matmul.cpp through the kernel table.
#pragma once

#include "kernels/cpu/tile.hpp"

namespace longhaul::kernels::cpu {

template <class Dot>
void pack_words(const PackJob& job, std::int64_t part, std::int64_t num_parts) {
    // A group is 4 bytes of a row in either type: one f32 or one pair of bf16.
    const std::int64_t stride = job.row_stride / (Dot::is_bf16 ? 2 : 1);
    const auto* from = reinterpret_cast<const std::uint32_t*>(job.rows);
    const auto tiles = matmul_tiles<Dot>(job.num_rows);
    const std::int64_t first = part * job.num_groups / num_parts, end = (part + 1) * job.num_groups / num_parts;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first_row = tiles.first(t), rows = tiles.first(t + 1) - first_row;
        pack_tile<Dot>([&](std::int64_t r) { return from + (first_row + r) * stride + first; }, rows, end - first,
                       job.words + (first_row * job.num_groups + first * rows) * Dot::steps);
    }
}

/// Some slices of a group of blocks, for all rows: which they are, and where their sums go.
struct SlicePlace {
    std::int64_t block, num_blocks;  ///< of 16 outputs
    SliceRange slices;
    SliceSums sums;  ///< for row 0

    [[gnu::always_inline]] SliceSums sums_of(std::int64_t row) const {
        SliceSums moved = sums;
        moved.spilled += row * num_blocks * lanes;
        moved.out += row * sums.out_stride;
        return moved;
    }
};

/// Prefetches for write the cache lines that will receive sums. Other cores that read the previous contents may hold
/// these lines, and stores cannot wait that long (Zen 5, cores that share no L3: 2 to 4 % of a matmul of 8 to 24 rows).
[[gnu::always_inline]] inline void prefetch_for_write(const float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(to + i, 1, 3);
}

/// Calls `run` for all slices of the blocks of a range, so that the sums end in job.sums. Loop order: the weights of
/// `slices_at_once` slices of one group of blocks stay in L1 and L2 while all row tiles use them, so they come from
/// memory once per pass. `MaxRows`: of a pass.
template <std::int64_t MaxRows = block_rows, class Job, class Run>
void for_each_place(const Job& job, std::int64_t blocks_at_once, std::int64_t slices_at_once, BlockRange range,
                    Run run) {
    constexpr std::int64_t max_width = 4 * lanes;
    const int log_slices = __builtin_ctzll(static_cast<unsigned long long>(job.num_slices));
    alignas(64) float memory[SliceSums::max_levels * MaxRows * max_width];
    for (std::int64_t b = range.first; b < range.end; b += blocks_at_once) {
        const std::int64_t blocks = range.end - b < blocks_at_once ? range.end - b : blocks_at_once;
        const std::int64_t width = blocks * lanes;
        const std::int64_t first_output = b * lanes;
        const std::int64_t valid = job.num_outputs - first_output;
        const std::int64_t level_stride = MaxRows * width;
        const bool to_y = width <= valid;
        float* whole = memory + SliceSums::levels_before(job.num_slices - 1) * level_stride;
        const SliceSums sums{.spilled = memory,
                             .level_stride = level_stride,
                             .out = to_y ? job.sums.y + (first_output - job.sums.first) : whole,
                             .out_stride = to_y ? job.sums.stride : width};
        const auto rows_until = [&](std::int64_t slice) { return to_y ? slice * job.num_rows >> log_slices : 0; };
        for (std::int64_t s = 0; s < job.num_slices; s += slices_at_once) {
            for (std::int64_t r = rows_until(s); r < rows_until(s + slices_at_once); ++r)
                prefetch_for_write(sums.out + r * sums.out_stride, width);
            run(SlicePlace{
                .block = b, .num_blocks = blocks, .slices = {s, s + slices_at_once, job.num_slices}, .sums = sums});
        }
        if (to_y) continue;
        for (std::int64_t r = 0; r < job.num_rows; ++r) {
            for (std::int64_t n = 0; n < valid; ++n) {
                job.sums.y[r * job.sums.stride + first_output - job.sums.first + n] = whole[r * width + n];
            }
        }
    }
}

/// Layout of the weights: blocks of slices, with `together` blocks interleaved (BlockPlaces).
struct WeightGeometry {
    const std::byte* weights;
    std::int64_t block_bytes;  ///< from block to block, as if they were not interleaved
    std::int64_t slice_bytes;  ///< slices come first in a block
    std::int64_t together;

    /// Number of interleaved blocks at a place. (A place with more blocks, or with separate blocks behind them, takes
    /// all slices at once.)
    [[gnu::always_inline]] std::int64_t bundle_of(const SlicePlace& place) const {
        return place.num_blocks < together ? place.num_blocks : together;
    }
    /// Start of the weights of `place`, which must begin with a bundle.
    [[gnu::always_inline]] const std::byte* at(const SlicePlace& place) const {
        return weights + place.block * block_bytes + place.slices.first * bundle_of(place) * slice_bytes;
    }
    /// What the first of `num_tiles` tiles prefetches. A single tile prefetches what it will use `distance_of_one`
    /// bytes of each block later. Several tiles prefetch the next slices, each a part of them, so that memory is busy
    /// all the time and not only during the first tile. Past the end of a bundle, the next data is not the neighbouring
    /// bundle, if that belongs to the same place, but the next group of blocks: this applies to slices that begin
    /// within the distance from the end. If slices are longer than the distance, the last slice prefetches that much of
    /// the neighbour in vain, and the next group of blocks starts without prefetched data (at most 5 % of the bytes).
    [[gnu::always_inline]] TilePrefetch ahead(const SlicePlace& place, std::int64_t distance_of_one,
                                              std::int64_t num_tiles, std::int64_t part_end) const {
        const std::int64_t bundle = bundle_of(place), slice_stride = bundle * slice_bytes;
        const std::int64_t bytes = (place.slices.end - place.slices.first) * slice_stride;
        const std::int64_t distance = num_tiles == 1 ? bundle * distance_of_one : bytes;
        const std::int64_t before = place.slices.all * slice_stride - distance;
        const std::int64_t share_bytes = (bundle * group_bytes + num_tiles - 1) / num_tiles;
        const std::int64_t beside = num_tiles == 1 ? group_bytes : 0;
        // What follows, if anything, belongs to other threads: prefetch the tile's own data instead.
        if (num_tiles > 1 && is_last(place, part_end)) {
            return {.from = at(place), .bytes = share_bytes, .beside = beside, .skip = 0, .skips_from = 0};
        }
        return {.from = at(place) + distance,
                .bytes = share_bytes,
                .beside = beside,
                .skip = (place.num_blocks - bundle) * block_bytes,
                .skips_from = before <= 0 ? 0 : (before + slice_stride - 1) / slice_stride};
    }
    /// From the prefetch address of one of several tiles to that of the next.
    [[gnu::always_inline]] std::int64_t share_of_tile(const SlicePlace& place, std::int64_t num_tiles) const {
        return (place.slices.end - place.slices.first) * bundle_of(place) * slice_bytes / num_tiles;
    }
    [[gnu::always_inline]] static bool is_last(const SlicePlace& place, std::int64_t part_end) {
        return place.slices.end == place.slices.all && place.block + place.num_blocks >= part_end;
    }
    /// Slices that are processed at a time. One row tile takes all. Several tiles take one, so that what they
    /// prefetched is still in L1. From `many_rows` on, where memory is no longer the limit, they take as many as stay
    /// in L2 together with the next ones.
    [[gnu::always_inline]] std::int64_t slices_at_once(std::int64_t all, std::int64_t blocks, RowTiles tiles,
                                                       std::int64_t many_rows) const {
        constexpr std::int64_t stay_bytes = 96 << 10;
        if (tiles.num_tiles == 1) return all;
        if (tiles.num_rows < many_rows) return 1;
        std::int64_t slices = all;
        while (slices > 1 && slices * blocks * slice_bytes > stay_bytes) slices /= 2;
        return slices;
    }
};

/// Prefetch distance for a single tile of `num_rows` rows: a short one, but the next slice if tiles of outputs share a
/// block (TilePrefetcher).
template <class Isa>
std::int64_t distance_of_one(std::int64_t num_rows, std::int64_t slice_bytes) {
    return Isa::width == 16 || num_rows != 4 ? prefetch_bytes<Isa>(num_rows) : slice_bytes;
}

/// The `many_rows` of WeightGeometry::slices_at_once, by weight type. Measured on Zen 5, cores that share no L3 (time
/// of a layer with it relative to without): bf16, 15 rows when they took two tiles 0.975 (now from 17 rows on); int8, 8
/// rows 1.16, 9 rows 0.94, 12 rows 0.91, 14 rows 0.87; int4, 12 rows 0.89, 8 rows 0.96 (a pass). AVX2 on that machine,
/// 8 and 16 rows: no difference.
template <class Isa>
struct ManyRows {
    static constexpr std::int64_t floats = Isa::width == 16 ? 13 : 24;
    static constexpr std::int64_t int8 = Isa::width == 16 ? 9 : 24;
    static constexpr std::int64_t int4 = Isa::width == 16 ? 8 : 24;
};

/// First rows of the row tiles, and the end of the last. Computed once, so that divisions do not delay a tile.
struct TileRows {
    static constexpr std::int64_t max_tiles = block_rows / 4;
    std::int64_t num_tiles;
    std::int64_t first[max_tiles + 1];

    /// (always inlined: see "the wall" in kernel_table.hpp)
    [[gnu::always_inline]] explicit TileRows(const RowTiles& tiles) : num_tiles(tiles.num_tiles) {
        for (std::int64_t t = 0; t <= num_tiles; ++t) first[t] = tiles.first(t);
    }
};

/// Multiplies all rows with the weights of a place.
template <class Isa, class Dot>
void multiply_place(const MatmulJob& job, const WeightGeometry& geometry, const TileRows& tiles,
                    const SlicePlace& place, std::int64_t distance_of_one, std::int64_t part_end) {
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    const std::int64_t first_group = place.slices.first * job.groups_per_slice;
    TilePrefetch ahead = geometry.ahead(place, distance_of_one, tiles.num_tiles, part_end);
    const std::int64_t share = geometry.share_of_tile(place, tiles.num_tiles);
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t, ahead.from += share) {
        const std::int64_t row = tiles.first[t];
        const std::int64_t rows = tiles.first[t + 1] - row;
        TileJob tile{.weights = geometry.at(place),
                     .block_stride = geometry.block_bytes,
                     .words = job.words + (row * num_groups + first_group * rows) * Dot::steps,
                     .slices = place.slices,
                     .groups_per_slice = job.groups_per_slice,
                     .ahead = ahead,
                     .sums = place.sums_of(row)};
        run_tile<Isa, Dot>(tile, rows, place.num_blocks);
    }
}

template <class Isa, class Dot>
void matmul_blocks(const MatmulJob& job, BlockRange range) {
    const RowTiles tiles = matmul_tiles<Dot>(job.num_rows);
    const std::int64_t largest = (job.num_rows + tiles.num_tiles - 1) / tiles.num_tiles;
    const std::int64_t slice_bytes = job.groups_per_slice * group_bytes;
    const WeightGeometry geometry{job.weights, job.num_slices * slice_bytes, slice_bytes, blocks_together<Isa>};
    const std::int64_t distance = distance_of_one<Isa>(largest, slice_bytes);
    const std::int64_t blocks = blocks_of_tiles<Isa>(largest);
    const std::int64_t slices = geometry.slices_at_once(job.num_slices, blocks, tiles, ManyRows<Isa>::floats);
    const TileRows rows(tiles);
    for_each_place(job, blocks, slices, range, [&](const SlicePlace& place) {
        multiply_place<Isa, Dot>(job, geometry, rows, place, distance, range.part_end);
    });
}

}  // namespace longhaul::kernels::cpu
