// Matmul y = W x with bf16 weights by matrix tiles (bf16_tiles.hpp), for any number of rows: kernels = amx-bf16. The
// weights are those of matmul.hpp, the inputs [step of 16 pairs][row][pair], zeros beyond the last input of a slice.
#pragma once

#include "kernels/cpu/bf16_tiles.hpp"
#include "kernels/cpu/matmul.hpp"

namespace longhaul::kernels::cpu {

[[gnu::always_inline]] inline std::int64_t tile_steps(std::int64_t num_groups) {
    return (num_groups + tile_groups - 1) / tile_groups;
}

/// KernelTable::pack_bf16.
template <class Isa>
void pack_for_tiles(const PackJob& job, std::int64_t part, std::int64_t num_parts) {
    const std::int64_t per_slice = tile_steps(job.groups_per_slice);
    const std::int64_t num_blocks = job.num_groups / job.groups_per_slice * per_slice;
    for (std::int64_t b = part * num_blocks / num_parts; b < (part + 1) * num_blocks / num_parts; ++b) {
        const std::int64_t group = b % per_slice * tile_groups, left = job.groups_per_slice - group;
        const std::int64_t bytes = (left < tile_groups ? left : tile_groups) * 4;
        const std::byte* from = job.rows + (b / per_slice * job.groups_per_slice + group) * 4;
        auto* to = reinterpret_cast<std::byte*>(job.words) + b * job.num_rows * tile_row_bytes;
        for (std::int64_t r = 0; r < job.num_rows; ++r, from += job.row_stride * 2, to += tile_row_bytes) {
            __builtin_memcpy(to, from, bytes);
            __builtin_memset(to + bytes, 0, tile_row_bytes - bytes);
        }
    }
}

/// The matmul of one MatmulJob, of at most max_block_rows rows. Weights of one slice stay in L1 or L2 while all row
/// tiles use them.
template <class Isa, class Tiles>
class Bf16TileMatmul {
  public:
    explicit Bf16TileMatmul(const MatmulJob& job)
        : job_(job),
          rows_of_tile_(job.num_rows < tile_rows ? job.num_rows : tile_rows),
          tiles_(rows_of_tile_),
          num_tiles_((job.num_rows + tile_rows - 1) / tile_rows),
          whole_steps_(job.groups_per_slice / tile_groups),
          rest_groups_(job.groups_per_slice % tile_groups),
          geometry_{job.weights, job.num_slices * job.groups_per_slice * group_bytes,
                    job.groups_per_slice * group_bytes, together},
          lines_at_once_((tile_groups * together + pairs() - 1) / pairs()),
          distance_(pairs() == 1 ? near_distance : together * geometry_.slice_bytes) {}

    void run(BlockRange range) {
        for_each_place<max_block_rows>(job_, together, 1, range, [&](const SlicePlace& place) {
            levels_ = SliceSums::levels_before(place.slices.first);
            if (place.num_blocks == together) return run_slice<together>(place);
            run_slice<1>(place);
        });
    }

  private:
    static constexpr int together = blocks_together<Isa>;
    static constexpr std::int64_t near_distance = 8192;

    [[nodiscard]] std::int64_t pairs() const { return (num_tiles_ + 1) / 2; }

    /// One slice of `Blocks` blocks of outputs, interleaved.
    template <int Blocks>
    void run_slice(const SlicePlace& place) {
        const std::byte* weights = geometry_.at(place);
        if (rest_groups_ > 0) copy_rest<Blocks>(weights + whole_steps_ * Blocks * tile_bytes);
        ahead_ = weights + distance_;
        for (std::int64_t t = 0; t + 1 < num_tiles_; t += 2) multiply<2, Blocks>(place, weights, t);
        if (num_tiles_ % 2 != 0) multiply<1, Blocks>(place, weights, num_tiles_ - 1);
    }

    /// The incomplete step at the end of a slice, with zeros.
    template <int Blocks>
    void copy_rest(const std::byte* from) {
        const std::int64_t bytes = rest_groups_ * Blocks * group_bytes;
        __builtin_memcpy(rest_, from, bytes);
        __builtin_memset(rest_ + bytes, 0, Blocks * tile_bytes - bytes);
    }

    /// Tiles are of 16 rows (or all): the last one begins where it ends with the last row.
    [[nodiscard]] std::int64_t first_row(std::int64_t tile) const {
        const std::int64_t last = job_.num_rows - tile_rows;
        return tile == 0 || tile * tile_rows < last ? tile * tile_rows : last;
    }

    /// `NumTiles` row tiles from `t` on.
    template <int NumTiles, int Blocks>
    void multiply(const SlicePlace& place, const std::byte* weights, std::int64_t t) {
        const std::int64_t first = first_row(t), second = first_row(t + NumTiles - 1);
        const std::int64_t x_stride = job_.num_rows * tile_row_bytes;
        const std::int64_t x_beside = (second - first) * tile_row_bytes;
        const auto* x = reinterpret_cast<const std::byte*>(job_.words) + first * tile_row_bytes +
                        place.slices.first * tile_steps(job_.groups_per_slice) * x_stride;
        clear<NumTiles, Blocks>();
        const auto prefetch = [&] {
            for (std::int64_t i = 0; i < lines_at_once_; ++i) {
                __builtin_prefetch(ahead_, 0, 2);
                ahead_ += group_bytes;
                // Some cycles from one prefetch to the next: all at once, they delay the tiles' loads (one row on
                // Granite Rapids: 6 % of a matmul).
                asm volatile("" : "+m"(ahead_));
            }
        };
        for (std::int64_t s = 0; s < whole_steps_; ++s, x += x_stride, weights += Blocks * tile_bytes) {
            prefetch();
            multiply_step<NumTiles, Blocks>(x, x_beside, weights);
        }
        if (rest_groups_ > 0) {
            prefetch();
            multiply_step<NumTiles, Blocks>(x, x_beside, rest_);
        }
        store_sums_of<0, Blocks>(place, first);
        if constexpr (NumTiles == 2) store_sums_of<1, Blocks>(place, second);
        if (levels_ == 0) return;
        add_levels<0, Blocks>(place, first);
        if constexpr (NumTiles == 2) add_levels<1, Blocks>(place, second);
    }

    /// Sum 2 * i + j is that of row tile i and block j.
    template <int NumTiles, int Blocks>
    [[gnu::always_inline]] void clear() {
        tiles_.template clear<0>();
        if constexpr (Blocks == 2) tiles_.template clear<1>();
        if constexpr (NumTiles == 2) tiles_.template clear<2>();
        if constexpr (NumTiles == 2 && Blocks == 2) tiles_.template clear<3>();
    }
    template <int NumTiles, int Blocks>
    [[gnu::always_inline]] void multiply_step(const std::byte* x, std::int64_t x_beside, const std::byte* weights) {
        constexpr std::int64_t stride = Blocks * group_bytes;
        tiles_.template load_weights<0>(weights, stride);
        tiles_.template load_inputs<0>(x);
        tiles_.template multiply_add<0, 0, 0>();
        if constexpr (Blocks == 2) {
            tiles_.template load_weights<1>(weights + group_bytes, stride);
            tiles_.template multiply_add<1, 0, 1>();
        }
        if constexpr (NumTiles == 2) {
            tiles_.template load_inputs<1>(x + x_beside);
            tiles_.template multiply_add<2, 1, 0>();
        }
        if constexpr (NumTiles == 2 && Blocks == 2) tiles_.template multiply_add<3, 1, 1>();
    }

    /// Where the sums of a slice go: as add_and_store of tile.hpp.
    struct Target {
        float* to;
        std::int64_t stride;
    };
    [[nodiscard]] Target target_of(const SlicePlace& place, std::int64_t row) const {
        const SliceSums sums = place.sums_of(row);
        if (place.slices.end == place.slices.all) return {sums.out, sums.out_stride};
        return {sums.spilled + levels_ * sums.level_stride, place.num_blocks * lanes};
    }
    /// The sums of a row tile, to their target or, if there are levels to be added, to sums_.
    template <int Tile, int Blocks>
    [[gnu::always_inline]] void store_sums_of(const SlicePlace& place, std::int64_t row) {
        const Target target = levels_ == 0 ? target_of(place, row) : Target{sums_[Tile], Blocks * lanes};
        tiles_.template store<2 * Tile>(target.to, target.stride);
        if constexpr (Blocks == 2) tiles_.template store<2 * Tile + 1>(target.to + lanes, target.stride);
    }
    template <int Tile, int Blocks>
    void add_levels(const SlicePlace& place, std::int64_t row) const {
        if (levels_ == 1) return add_levels<Tile, Blocks, 1>(place, row);
        if (levels_ == 2) return add_levels<Tile, Blocks, 2>(place, row);
        add_levels<Tile, Blocks, 3>(place, row);
    }
    template <int Tile, int Blocks, int Levels>
    void add_levels(const SlicePlace& place, std::int64_t row) const {
        constexpr std::int64_t width = Blocks * lanes;
        const std::int64_t level_stride = place.sums.level_stride;
        const float *sums = sums_[Tile], *spilled = place.sums_of(row).spilled;
        Target target = target_of(place, row);
        for (std::int64_t r = 0; r < rows_of_tile_; ++r, sums += width, spilled += width, target.to += target.stride) {
#pragma GCC unroll 4
            for (std::int64_t i = 0; i < width; i += Isa::width) {
                auto sum = Isa::load(sums + i);
#pragma GCC unroll 3
                for (int l = 0; l < Levels; ++l) sum = Isa::add(Isa::load(spilled + l * level_stride + i), sum);
                Isa::store(target.to + i, sum);
            }
        }
    }

    const MatmulJob& job_;
    std::int64_t rows_of_tile_;
    Tiles tiles_;
    std::int64_t num_tiles_;                  ///< of rows
    std::int64_t whole_steps_, rest_groups_;  ///< of a slice; a step is 16 groups
    WeightGeometry geometry_;
    std::int64_t lines_at_once_;  ///< prefetched per step
    std::int64_t distance_;       ///< of the prefetched weights, bytes
    const std::byte* ahead_ = nullptr;
    std::int64_t levels_ = 0;  ///< of sums that the end of the slice adds
    alignas(64) std::byte rest_[2 * tile_bytes];
    alignas(64) float sums_[2][tile_rows * 2 * lanes];  ///< of row tiles, [row][output]
};

template <class Isa, class Tiles>
void matmul_by_tiles(const MatmulJob& job, BlockRange range) {
    Bf16TileMatmul<Isa, Tiles>(job).run(range);
}

}  // namespace longhaul::kernels::cpu
