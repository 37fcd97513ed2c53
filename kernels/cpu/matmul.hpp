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

/// Adds the slices' sums of one group of blocks as a balanced tree into y.
/// partial: [num_slices][block_rows][width]
template <class Isa>
void add_slices(const MatmulJob& job, float* partial, std::int64_t width, std::int64_t first_output) {
    const std::int64_t slice_floats = block_rows * width;
    const std::int64_t valid = job.num_outputs - first_output < width ? job.num_outputs - first_output : width;
    for (std::int64_t r = 0; r < job.num_rows; ++r) {
        float* y = job.y + r * job.num_outputs + first_output;
        for (std::int64_t i = 0; i < width; i += Isa::width) {
            typename Isa::Floats sum[8];
            const float* from = partial + r * width + i;
            for (std::int64_t s = 0; s < job.num_slices; ++s) sum[s] = Isa::load(from + s * slice_floats);
            for (std::int64_t step = 1; step < job.num_slices; step *= 2) {
                for (std::int64_t s = 0; s < job.num_slices; s += 2 * step) sum[s] = Isa::add(sum[s], sum[s + step]);
            }
            if (i + Isa::width <= valid) {
                Isa::store(y + i, sum[0]);
            } else {
                float rest[Isa::width];
                Isa::store(rest, sum[0]);
                for (std::int64_t j = i; j < valid; ++j) y[j] = rest[j - i];
            }
        }
    }
}

/// Order of the loops: a slice of one group of blocks (8 to 22 KB for 16 outputs at K = 2048 to 5632) stays in the
/// first cache while all tiles of rows use it, so weights come from memory once per block_rows rows.
template <class Isa, class Dot>
void matmul_blocks(const MatmulJob& job, std::int64_t first_block, std::int64_t end_block) {
    constexpr std::int64_t max_width = 4 * lanes;
    alignas(64) float partial[8 * block_rows * max_width];
    const RowTiles tiles = tiles_of<Dot>(job.num_rows);
    const std::int64_t largest = (job.num_rows + tiles.num_tiles - 1) / tiles.num_tiles;
    const std::int64_t blocks_at_once = Isa::width == 16 ? (largest <= 4 ? 4 : 2)
                                        : largest == 1   ? 4
                                        : largest <= 3   ? 2
                                                         : 1;
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    for (std::int64_t b = first_block; b < end_block; b += blocks_at_once) {
        const std::int64_t blocks = end_block - b < blocks_at_once ? end_block - b : blocks_at_once;
        const std::int64_t width = blocks * lanes;
        for (std::int64_t s = 0; s < job.num_slices; ++s) {
            const std::int64_t first_group = s * job.groups_per_slice;
            const std::byte* weights = job.weights + (b * num_groups + first_group) * group_bytes;
            for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
                const std::int64_t first = tiles.first(t);
                const std::int64_t rows = tiles.first(t + 1) - first;
                const TileJob tile{.weights = weights,
                                   .block_stride = num_groups * group_bytes,
                                   .words = job.words + (first * num_groups + first_group * rows) * Dot::steps,
                                   .num_groups = job.groups_per_slice,
                                   .ahead = weights + prefetch_bytes,
                                   .ahead_in_order = false,
                                   .out = partial + (s * block_rows + first) * width,
                                   .out_stride = width,
                                   .accumulate = false};
                run_tile<Isa, Dot>(tile, rows, blocks);
            }
        }
        add_slices<Isa>(job, partial, width, b * lanes);
    }
}

}  // namespace longhaul::kernels::cpu
