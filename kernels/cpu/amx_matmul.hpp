// Matmul y = W x with int8 and int4 weights by matrix tiles (amx_tiles.hpp), for passes of many rows. The sum of a
// block is exact in integers, so the bits are those of quantized.hpp, which computes passes of few rows.
//
// The weights of 16 outputs are widened to signed bytes once, a part of a slice at a time, which stays in L1 while all
// rows use it. Each product of a block and up to 16 rows goes to memory (L1), and from there, scaled, to the sums.
#pragma once

#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/quantized.hpp"

namespace longhaul::kernels::cpu {

[[gnu::always_inline]] inline RowTiles tiles_of_sixteen(std::int64_t num_rows) {
    return {num_rows, (num_rows + 15) / 16};
}

/// Whether a matmul uses tiles; else dot products are faster. A tile takes almost as long for 1 row as for 12, and
/// incomplete blocks take as long as complete ones (see fills_blocks). Measured on Granite Rapids, from caches.
template <class Dot>
[[gnu::always_inline]] inline bool uses_tiles(std::int64_t num_rows, std::int64_t num_groups, std::int64_t num_blocks) {
    constexpr std::int64_t min_rows_per_tile = Dot::block == 64 ? 10 : 14;
    if (!fills_blocks(num_groups * 4 * Dot::steps, num_blocks * Dot::block)) return false;
    return num_rows >= block_rows || num_rows >= min_rows_per_tile * tiles_of_sixteen(num_rows).num_tiles;
}

/// Inputs as tiles: [tile][block][row of tile][Dot::block], zeros beyond the last input of a slice.
template <class Dot>
struct AmxInputs {
    static RowTiles tiles(std::int64_t num_rows) { return tiles_of_sixteen(num_rows); }

    static void store(const std::int8_t* q, const QuantizeJob& job, const InputPlace& place) {
        auto* to = reinterpret_cast<std::int8_t*>(job.words) + place.of_block(job.num_blocks) * Dot::block;
        __builtin_memcpy(to, q, Dot::block);
    }
};

template <class Dot>
void quantize_for_amx(const QuantizeJob& job, std::int64_t part, std::int64_t num_parts) {
    if (!uses_tiles<Dot>(job.num_rows, job.num_groups, job.num_blocks))
        return quantize_blocks<Dot, InputWords<Dot>>(job, part, num_parts);
    quantize_blocks<Dot, AmxInputs<Dot>>(job, part, num_parts);
}

/// The matmul of one QuantizedJob.
template <class Isa, class Tiles, class Dot>
class AmxMatmul {
  public:
    explicit AmxMatmul(const QuantizedJob& job)
        : job_(job),
          row_tiles_(tiles_of_sixteen(job.num_rows)),
          tile_unit_(row_tiles_.largest(), Dot::block),
          num_blocks_(job.num_slices * job.blocks_per_slice),
          lines_at_once_((groups_per_block + row_tiles_.num_tiles - 1) / row_tiles_.num_tiles) {}

    void run(BlockRange range) {
        for_each_place<max_block_rows>(job_, 1, job_.num_slices, range, [&](const SlicePlace& place) { run(place); });
    }

  private:
    using Floats = typename Isa::Floats;
    static constexpr int regs = lanes / Isa::width;
    static constexpr std::int64_t groups_per_block = Dot::block / (4 * Dot::steps);
    static constexpr std::int64_t tile_bytes = Dot::block * lanes;  // weights of a block, widened
    static constexpr std::int64_t blocks_at_once = Dot::block == 64 ? 8 : 16;
    static constexpr std::int64_t prefetch_distance = 4096;
    static constexpr std::int64_t rows_at_once = 4;

    void run(const SlicePlace& place) {
        const std::byte* weights = job_.weights + place.block * job_.block_bytes;
        const std::byte* scales = weights + job_.num_slices * job_.groups_per_slice * group_bytes;
        ahead_ = weights + prefetch_distance;
        for (std::int64_t b = 0; b < num_blocks_; b += blocks_at_once) {
            const std::int64_t left = num_blocks_ - b, count = left < blocks_at_once ? left : blocks_at_once;
            widen(weights, b, count);
            widen_scales(scales + b * lanes * 2, count);
            for (std::int64_t t = 0; t < row_tiles_.num_tiles; ++t) multiply(place, b, count, t);
        }
    }

    /// Widens blocks first..first + count; zeros for the rest of an incomplete block.
    void widen(const std::byte* weights, std::int64_t first, std::int64_t count) {
        for (std::int64_t b = 0; b < count; ++b) {
            const std::int64_t slice = (first + b) / job_.blocks_per_slice;
            const std::int64_t group = (first + b) % job_.blocks_per_slice * groups_per_block;
            const std::int64_t left = job_.groups_per_slice - group;
            auto* to = reinterpret_cast<std::byte*>(weights_) + b * tile_bytes;
            widen_groups(weights + (slice * job_.groups_per_slice + group) * group_bytes,
                         left < groups_per_block ? left : groups_per_block, to);
        }
    }
    static void widen_groups(const std::byte* from, std::int64_t num_groups, std::byte* to) {
        const auto offset = Isa::all_ints(0x01010101U * static_cast<std::uint8_t>(-Dot::offset));
        for (std::int64_t g = 0; g < num_groups; ++g) {
            for (int i = 0; i < regs; ++i, from += group_bytes / regs, to += group_bytes / regs) {
                const auto stored = Isa::load_ints(from);
                if constexpr (Dot::steps == 1) {
                    Isa::store_ints(to, Isa::add_bytes(stored, offset));
                } else {
                    Isa::store_ints(to, Isa::add_bytes(Isa::low_halves(stored), offset));
                    Isa::store_ints(to + group_bytes, Isa::add_bytes(Isa::high_halves(stored), offset));
                }
            }
            to += (Dot::steps - 1) * group_bytes;
        }
        for (std::int64_t g = num_groups; g < groups_per_block; ++g, to += Dot::steps * group_bytes)
            __builtin_memset(to, 0, Dot::steps * group_bytes);
    }
    void widen_scales(const std::byte* from, std::int64_t num_blocks) {
        for (std::int64_t i = 0; i < num_blocks * regs; ++i)
            Isa::store(scales_ + i * Isa::width, Isa::load_bf16(from + i * Isa::width * 2));
    }

    /// Adds the products of the widened blocks to the sums of row tile `t`.
    void multiply(const SlicePlace& place, std::int64_t first, std::int64_t count, std::int64_t t) {
        const std::int64_t row = row_tiles_.first(t), rows = row_tiles_.first(t + 1) - row;
        const std::int64_t at = row * num_blocks_ + first * rows;
        const auto* inputs = reinterpret_cast<const std::int8_t*>(job_.words) + at * Dot::block;
        for (std::int64_t b = 0; b < count; ++b) {
            for (std::int64_t i = 0; i < lines_at_once_; ++i, ahead_ += group_bytes) __builtin_prefetch(ahead_, 0, 3);
            tile_unit_.multiply(inputs + b * rows * Dot::block, weights_ + b * tile_bytes, products_[b]);
        }
        for (std::int64_t r = 0; r < rows; r += rows_at_once) {
            const AddedRows added{.in_tile = r,
                                  .count = rows - r < rows_at_once ? rows - r : rows_at_once,
                                  .scales = job_.scales + at + r,
                                  .scales_stride = rows,
                                  .sums = sums_ + (t * Tiles::max_rows + r) * lanes,
                                  .to = place.sums_of(row + r)};
            add(first, first + count, added);
        }
    }

    /// Some rows of a tile.
    struct AddedRows {
        std::int64_t in_tile, count;
        const float* scales;  ///< of the inputs, of the first widened block
        std::int64_t scales_stride;
        float* sums;  ///< of a slice that is incomplete
        SliceSums to;
    };

    /// (Computes rows_at_once rows, also if there are fewer: it reads up to three input scales past the last tile's.)
    [[gnu::always_inline]] void add(std::int64_t first, std::int64_t end, const AddedRows& rows) const {
        Floats sum[rows_at_once][regs];
        if (first % job_.blocks_per_slice != 0) {
            load_sums<Isa>(sum, rows.sums, lanes);
        } else {
            clear_sums<Isa>(sum);
        }
        const float* scales = rows.scales;
        for (std::int64_t b = first, slice = first / job_.blocks_per_slice; b < end; ++slice) {
            const std::int64_t slice_end = (slice + 1) * job_.blocks_per_slice,
                               until = end < slice_end ? end : slice_end;
            for (; b < until; ++b, scales += rows.scales_stride)
                add_block(sum, products_[b - first] + rows.in_tile * lanes, scales, scales_ + (b - first) * lanes);
            if (until < slice_end) {
                const auto as_it_is = [](Floats x, int, int) { return x; };
                return store_sums<Isa>(sum, rows.sums, lanes, as_it_is);
            }
            end_slice(sum, rows, slice);
            clear_sums<Isa>(sum);
        }
    }

    /// sum[r] = fma(products[r], input_scales[r] * scales, sum[r])
    [[gnu::always_inline]] static void add_block(Floats (&sum)[rows_at_once][regs], const std::int32_t* products,
                                                 const float* input_scales, const float* scales) {
#pragma GCC unroll 4
        for (int r = 0; r < rows_at_once; ++r) {
#pragma GCC unroll 2
            for (int k = 0; k < regs; ++k) {
                const auto* product = reinterpret_cast<const std::byte*>(products + r * lanes + k * Isa::width);
                const Floats both = Isa::mul(Isa::load(scales + k * Isa::width), Isa::all(input_scales[r]));
                sum[r][k] = Isa::fma(Isa::to_floats(Isa::load_ints(product)), both, sum[r][k]);
            }
        }
    }

    [[gnu::always_inline]] void end_slice(Floats (&sum)[rows_at_once][regs], const AddedRows& rows,
                                          std::int64_t slice) const {
        const SliceRange slices{0, job_.num_slices, job_.num_slices};
        if (rows.count == rows_at_once) return add_and_store<Isa>(sum, rows.to, slices, slice);
#pragma GCC unroll 4
        for (int r = 0; r < rows_at_once; ++r) {
            if (r >= rows.count) break;
            Floats one[1][regs];
#pragma GCC unroll 2
            for (int k = 0; k < regs; ++k) one[0][k] = sum[r][k];
            SliceSums to = rows.to;
            to.spilled += r * lanes;
            to.out += r * to.out_stride;
            add_and_store<Isa>(one, to, slices, slice);
        }
    }

    const QuantizedJob& job_;
    RowTiles row_tiles_;
    Tiles tile_unit_;
    std::int64_t num_blocks_;     ///< of inputs
    std::int64_t lines_at_once_;  ///< that each product prefetches
    const std::byte* ahead_ = nullptr;
    alignas(64) std::int8_t weights_[blocks_at_once * tile_bytes];  ///< [block][input / 4][output][input % 4]
    alignas(64) float scales_[blocks_at_once * lanes];              ///< of weights, [block][output]
    alignas(64) std::int32_t products_[blocks_at_once][Tiles::max_rows * lanes];  ///< [row of tile][output]
    alignas(64) float sums_[max_block_rows * lanes];  ///< of a slice, [tile][row of tile][output]
};

template <class Isa, class Tiles, class Dot>
void quantized_matmul_by_amx(const QuantizedJob& job, BlockRange range) {
    const std::int64_t num_groups = job.num_slices * job.groups_per_slice;
    if (!uses_tiles<Dot>(job.num_rows, num_groups, job.num_slices * job.blocks_per_slice))
        return quantized_matmul_blocks<Isa, Dot>(job, range);
    AmxMatmul<Isa, Tiles, Dot>(job).run(range);
}

/// Replaces what tiles compute faster.
template <class Isa, class Tiles>
constexpr KernelTable with_amx(KernelTable table, const char* name) {
    table.name = name;
    table.quantized_block_rows = max_block_rows;
    table.int8 = {quantize_for_amx<DotInt8<Isa>>, quantized_matmul_by_amx<Isa, Tiles, DotInt8<Isa>>};
    if constexpr (requires { &Tiles::peak; }) table.peak_int8 = Tiles::peak;
    table.int4 = {quantize_for_amx<DotInt4<Isa>>, quantized_matmul_by_amx<Isa, Tiles, DotInt4<Isa>>};
    return table;
}

}  // namespace longhaul::kernels::cpu
