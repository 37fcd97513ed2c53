// Matmul y = W x with bf16 weights by matrix tiles (bf16_tiles.hpp), for any number of rows: kernels = amx-bf16. The
// weights are those of matmul.hpp, the inputs [block of 16 pairs][row][pair], zeros beyond the last input of a slice.
#pragma once

#include "kernels/cpu/bf16_tiles.hpp"
#include "kernels/cpu/matmul.hpp"

namespace longhaul::kernels::cpu {

[[gnu::always_inline]] inline std::int64_t tile_blocks(std::int64_t num_groups) {
    return (num_groups + tile_groups - 1) / tile_groups;
}

/// KernelTable::pack_bf16.
template <class Isa>
void pack_for_tiles(const PackJob& job, std::int64_t part, std::int64_t num_parts) {
    const std::int64_t per_slice = tile_blocks(job.groups_per_slice);
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

/// The matmul of one MatmulJob, of at most max_block_rows rows.
template <class Isa, class Tiles>
class Bf16TileMatmul {
  public:
    explicit Bf16TileMatmul(const MatmulJob& job)
        : job_(job),
          tiles_(job.num_rows < tile_rows ? job.num_rows : tile_rows),
          num_tiles_((job.num_rows + tile_rows - 1) / tile_rows),
          whole_blocks_(job.groups_per_slice / tile_groups),
          rest_groups_(job.groups_per_slice % tile_groups),
          geometry_{job.weights, job.num_slices * job.groups_per_slice * group_bytes,
                    job.groups_per_slice * group_bytes, blocks_together<Isa>} {
        const std::int64_t pairs = (num_tiles_ + 1) / 2;
        lines_at_once_ = (tile_groups * blocks_together<Isa> + pairs - 1) / pairs;
        distance_ = pairs == 1 ? near_distance : blocks_together<Isa> * geometry_.slice_bytes;
    }

    void run(BlockRange range) {
        for_each_place<max_block_rows>(job_, blocks_together<Isa>, 1, range, [&](const SlicePlace& place) {
            if constexpr (blocks_together<Isa> == 2) {
                if (place.num_blocks == 2) return run_slice<2>(place);
            }
            run_slice<1>(place);
        });
    }

  private:
    static constexpr std::int64_t near_distance = 8192;

    /// One slice of `Blocks` blocks of outputs, interleaved.
    template <int Blocks>
    void run_slice(const SlicePlace& place) {
        const std::byte* weights = geometry_.at(place);
        if (rest_groups_ > 0) copy_rest<Blocks>(weights + whole_blocks_ * tile_groups * Blocks * group_bytes);
        ahead_ = weights + distance_;
        levels_ = SliceSums::levels_before(place.slices.first);
        for (std::int64_t t = 0; t < num_tiles_; t += 2) {
            if (t + 1 < num_tiles_) {
                multiply<2, Blocks>(place, weights, t);
            } else {
                multiply<1, Blocks>(place, weights, t);
            }
        }
    }

    /// The incomplete block at the end of a slice, with zeros.
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

    /// Row tiles t..t + Inputs.
    template <int Inputs, int Blocks>
    void multiply(const SlicePlace& place, const std::byte* weights, std::int64_t t) {
        const std::int64_t first = first_row(t), second = first_row(t + Inputs - 1);
        const std::int64_t inputs_stride = job_.num_rows * tile_row_bytes;
        const auto* x = reinterpret_cast<const std::byte*>(job_.words) + first * tile_row_bytes +
                        place.slices.first * tile_blocks(job_.groups_per_slice) * inputs_stride;
        const std::int64_t beside = (second - first) * tile_row_bytes;
        clear<Inputs, Blocks>();
        for (std::int64_t b = 0; b < whole_blocks_; ++b) {
            for (std::int64_t i = 0; i < lines_at_once_; ++i, ahead_ += group_bytes) __builtin_prefetch(ahead_, 0, 2);
            multiply_block<Inputs, Blocks>(x, beside, weights);
            x += inputs_stride;
            weights += Blocks * tile_bytes;
        }
        if (rest_groups_ > 0) multiply_block<Inputs, Blocks>(x, beside, rest_);
        store_sums_of<0, Blocks>(place, first);
        if constexpr (Inputs == 2) store_sums_of<1, Blocks>(place, second);
        if (levels_ == 0) return;
        add_levels<Blocks>(place, first, 0);
        if constexpr (Inputs == 2) add_levels<Blocks>(place, second, 1);
    }

    template <int Inputs, int Blocks>
    [[gnu::always_inline]] void clear() {
        tiles_.template clear<0>();
        if constexpr (Blocks == 2) tiles_.template clear<1>();
        if constexpr (Inputs == 2) tiles_.template clear<2>();
        if constexpr (Inputs == 2 && Blocks == 2) tiles_.template clear<3>();
    }
    template <int Inputs, int Blocks>
    [[gnu::always_inline]] void multiply_block(const std::byte* x, std::int64_t beside, const std::byte* weights) {
        constexpr std::int64_t stride = Blocks * group_bytes;
        tiles_.template load_weights<0>(weights, stride);
        tiles_.template load_inputs<0>(x);
        tiles_.template multiply_add<0, 0, 0>();
        if constexpr (Blocks == 2) {
            tiles_.template load_weights<1>(weights + group_bytes, stride);
            tiles_.template multiply_add<1, 0, 1>();
        }
        if constexpr (Inputs == 2) {
            tiles_.template load_inputs<1>(x + beside);
            tiles_.template multiply_add<2, 1, 0>();
        }
        if constexpr (Inputs == 2 && Blocks == 2) tiles_.template multiply_add<3, 1, 1>();
    }

    /// Where the sums of a slice go: as add_and_store of tile.hpp.
    struct Target {
        float* to;
        std::int64_t stride;
    };
    template <int Blocks>
    [[nodiscard]] Target target_of(const SlicePlace& place, std::int64_t row) const {
        const SliceSums& sums = place.sums;
        if (place.slices.end == place.slices.all) return {sums.out + row * sums.out_stride, sums.out_stride};
        return {sums.spilled + levels_ * sums.level_stride + row * Blocks * lanes, Blocks * lanes};
    }
    /// The sums of a row tile, to their target or, if there are levels to be added, to sums_.
    template <int Inputs, int Blocks>
    [[gnu::always_inline]] void store_sums_of(const SlicePlace& place, std::int64_t row) {
        const Target target = levels_ == 0 ? target_of<Blocks>(place, row) : Target{sums_[Inputs], Blocks * lanes};
        tiles_.template store<2 * Inputs>(target.to, target.stride);
        if constexpr (Blocks == 2) tiles_.template store<2 * Inputs + 1>(target.to + lanes, target.stride);
    }
    template <int Blocks>
    void add_levels(const SlicePlace& place, std::int64_t row, int inputs) const {
        const float* spilled = place.sums.spilled + row * Blocks * lanes;
        const Target target = target_of<Blocks>(place, row);
        if (levels_ == 1) return add_levels<Blocks, 1>(sums_[inputs], spilled, place.sums.level_stride, target);
        if (levels_ == 2) return add_levels<Blocks, 2>(sums_[inputs], spilled, place.sums.level_stride, target);
        add_levels<Blocks, 3>(sums_[inputs], spilled, place.sums.level_stride, target);
    }
    template <int Blocks, int Levels>
    void add_levels(const float* sums, const float* spilled, std::int64_t level_stride, Target target) const {
        constexpr std::int64_t width = Blocks * lanes;
        const std::int64_t rows = job_.num_rows < tile_rows ? job_.num_rows : tile_rows;
        for (std::int64_t r = 0; r < rows; ++r, sums += width, spilled += width, target.to += target.stride) {
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
    Tiles tiles_;
    std::int64_t num_tiles_;
    std::int64_t whole_blocks_, rest_groups_;  ///< of a slice
    WeightGeometry geometry_;
    std::int64_t lines_at_once_;  ///< prefetched per block of inputs
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
