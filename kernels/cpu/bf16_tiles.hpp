// Matrix tiles of bf16: sums over 32 inputs of up to 16 rows and 16 outputs in one instruction, in the order that
// numerics.hpp states for kernels = amx-bf16. AmxBf16Tiles are Intel's; EmulatedBf16Tiles compute the same by fused
// multiply-adds, on any processor with AVX2.
//
// Both have registers for inputs 0 and 1 (of 16 rows), weights 0 and 1 (of 16 outputs), and four sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/kernel_table.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels::cpu {
namespace {

constexpr std::int64_t tile_rows = AmxTiles::max_rows;
constexpr std::int64_t tile_groups = 16;  ///< pairs of inputs
static_assert(2 * tile_groups == bf16_block);
constexpr std::int64_t tile_row_bytes = tile_groups * 4;
constexpr std::int64_t tile_bytes = tile_groups * group_bytes;  ///< of weights

class AmxBf16Tiles {
  public:
    /// For `rows` rows, at most 16.
    explicit AmxBf16Tiles(std::int64_t rows) : registers_(shapes_of(rows)) {}

    template <int Sums>
    [[gnu::always_inline]] void clear() const {
        asm volatile("tilezero %%tmm%c0" ::"i"(Sums));
    }
    /// 32 inputs of each row; the rows are `stride` bytes apart.
    template <int Inputs>
    [[gnu::always_inline]] void load_inputs(const std::byte* from, std::int64_t stride = tile_row_bytes) const {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(4 + Inputs) : "memory");
    }
    /// 16 groups, `stride` bytes apart.
    template <int Weights>
    [[gnu::always_inline]] void load_weights(const std::byte* from, std::int64_t stride) const {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(6 + Weights) : "memory");
    }
    template <int Sums, int Inputs, int Weights>
    [[gnu::always_inline]] void multiply_add() const {
        asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(6 + Weights), "i"(4 + Inputs), "i"(Sums));
    }
    /// To [row][stride].
    template <int Sums>
    [[gnu::always_inline]] void store(float* to, std::int64_t stride) const {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Sums), "r"(to), "r"(stride * 4) : "memory");
    }

    /// KernelTable::peak_bf16.
    static double peak(std::int64_t iterations, float* sink) {
        const AmxBf16Tiles tiles(tile_rows);
        for (std::int64_t i = 0; i < iterations; ++i) {
            tiles.multiply_add<0, 0, 0>();
            tiles.multiply_add<1, 0, 1>();
            tiles.multiply_add<2, 1, 0>();
            tiles.multiply_add<3, 1, 1>();
        }
        *sink = 0.0F;
        return static_cast<double>(iterations * 4 * tile_rows * lanes * tile_groups * 2 * 2);
    }

  private:
    static TileShapes shapes_of(std::int64_t rows) {
        TileShapes shapes;
        for (int i = 0; i < 6; ++i) shapes.set(i, rows, 64);
        for (int i = 6; i < 8; ++i) shapes.set(i, tile_groups, 64);
        return shapes;
    }

    ConfiguredTiles registers_;
};

template <class Isa>
class EmulatedBf16Tiles {
  public:
    explicit EmulatedBf16Tiles(std::int64_t rows) : rows_(rows) {}

    template <int Sums>
    void clear() {
        __builtin_memset(sums_[Sums], 0, sizeof sums_[Sums]);
    }
    template <int Inputs>
    void load_inputs(const std::byte* from, std::int64_t stride = tile_row_bytes) {
        inputs_[Inputs] = reinterpret_cast<const float*>(from);
        row_stride_[Inputs] = stride / 4;
    }
    template <int Weights>
    void load_weights(const std::byte* from, std::int64_t stride) {
        weights_[Weights] = from;
        group_stride_[Weights] = stride;
    }
    template <int Sums, int Inputs, int Weights>
    void multiply_add() {
        std::int64_t row = 0;
        for (; row + 4 <= rows_; row += 4) add_rows<4, Inputs, Weights>(row, sums_[Sums] + row * lanes);
        for (; row < rows_; ++row) add_rows<1, Inputs, Weights>(row, sums_[Sums] + row * lanes);
    }
    template <int Sums>
    void store(float* to, std::int64_t stride) const {
        for (std::int64_t row = 0; row < rows_; ++row)
            __builtin_memcpy(to + row * stride, sums_[Sums] + row * lanes, lanes * sizeof(float));
    }

  private:
    using Floats = typename Isa::Floats;
    static constexpr int regs = lanes / Isa::width;

    /// The sums of the even and those of the odd elements of the pairs, then both, are added to `sums`.
    template <int R, int Inputs, int Weights>
    void add_rows(std::int64_t row, float* sums) const {
        const float* pairs = inputs_[Inputs] + row * row_stride_[Inputs];
        for (int i = 0; i < regs; ++i) {
            Floats even[R], odd[R];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) even[r] = odd[r] = Isa::zero();
            for (std::int64_t g = 0; g < tile_groups; ++g) {
                const std::byte* from = weights_[Weights] + g * group_stride_[Weights] + i * (group_bytes / regs);
                const Floats w_even = Isa::load_even(from), w_odd = Isa::load_odd(from);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    const Floats pair = Isa::all(pairs[r * row_stride_[Inputs] + g]);
                    Isa::add_product(even[r], w_even, Isa::even_of(pair));
                    Isa::add_product(odd[r], w_odd, Isa::odd_of(pair));
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                float* at = sums + r * lanes + i * Isa::width;
                Isa::store(at, Isa::add(Isa::load(at), Isa::add(even[r], odd[r])));
            }
        }
    }

    std::int64_t rows_;
    const float* inputs_[2] = {};  ///< pairs, read as f32
    std::int64_t row_stride_[2] = {};
    const std::byte* weights_[2] = {};
    std::int64_t group_stride_[2] = {};
    alignas(64) float sums_[4][tile_rows * lanes];
};

}  // namespace
}  // namespace longhaul::kernels::cpu
