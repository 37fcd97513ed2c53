// Matrix tiles: the product of a few rows and 16 outputs in one instruction. AmxTiles are Intel's (AMX); EmulatedTiles
// compute the same on any processor, to test amx_matmul.hpp there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longhaul::kernels::cpu {
namespace {

/// The shapes of the tile registers, the operand of ldtilecfg.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(int tile, std::int64_t num_rows, std::int64_t bytes) {
        rows[tile] = static_cast<std::uint8_t>(num_rows);
        row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    }
};

/// The calling thread's tile registers, configured while this exists. (Their instructions are written in assembly: GCC
/// 12's intrinsics do not say that they read and write memory.)
class ConfiguredTiles {
  public:
    explicit ConfiguredTiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
    ConfiguredTiles(const ConfiguredTiles&) = delete;
    ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
    ~ConfiguredTiles() { asm volatile("tilerelease" ::: "memory"); }
};

class AmxTiles {
  public:
    static constexpr std::int64_t max_rows = 16;

    /// For products of `rows` rows (at most max_rows) over `depth` bytes (a multiple of 4, at most 64).
    AmxTiles(std::int64_t rows, std::int64_t depth) : registers_(shapes_of(rows, depth)), depth_(depth) {}

    /// sums[row][output] = the sum over i of inputs[row][i] * weights[i / 4][output][i % 4], for `depth` inputs and 16
    /// outputs.
    [[gnu::always_inline]] void multiply(const std::int8_t* inputs, const std::int8_t* weights,
                                         std::int32_t* sums) const {
        constexpr std::int64_t line = 64;
        asm volatile(
            "tilezero %%tmm0\n\t"
            "tileloadd (%0,%3,1), %%tmm1\n\t"
            "tileloadd (%1,%4,1), %%tmm2\n\t"
            "tdpbssd %%tmm2, %%tmm1, %%tmm0\n\t"
            "tilestored %%tmm0, (%2,%4,1)" ::"r"(inputs),
            "r"(weights), "r"(sums), "r"(depth_), "r"(line)
            : "memory");
    }

    /// KernelTable::peak_int8.
    static double peak(std::int64_t iterations, float* sink) {
        constexpr std::int64_t depth = 64;
        const AmxTiles tiles(max_rows, depth);
        for (std::int64_t i = 0; i < iterations; ++i) {
            asm volatile(
                "tdpbssd %%tmm2, %%tmm1, %%tmm0\n\t"
                "tdpbssd %%tmm2, %%tmm1, %%tmm3\n\t"
                "tdpbssd %%tmm2, %%tmm1, %%tmm4\n\t"
                "tdpbssd %%tmm2, %%tmm1, %%tmm5" ::);
        }
        *sink = 0.0F;
        return static_cast<double>(iterations * 4 * max_rows * 16 * depth * 2);
    }

  private:
    static constexpr int sum_tiles[] = {0, 3, 4, 5};  ///< all but the first only for `peak`

    static TileShapes shapes_of(std::int64_t rows, std::int64_t depth) {
        TileShapes shapes;
        for (const int sums : sum_tiles) shapes.set(sums, rows, 64);
        shapes.set(1, rows, depth);
        shapes.set(2, depth / 4, 64);
        return shapes;
    }

    ConfiguredTiles registers_;
    std::int64_t depth_;
};

class EmulatedTiles {
  public:
    static constexpr std::int64_t max_rows = AmxTiles::max_rows;

    EmulatedTiles(std::int64_t rows, std::int64_t depth) : rows_(rows), depth_(depth) {}

    void multiply(const std::int8_t* inputs, const std::int8_t* weights, std::int32_t* sums) const {
        for (std::int64_t row = 0; row < rows_; ++row) {
            for (std::int64_t output = 0; output < 16; ++output) {
                std::int32_t sum = 0;
                for (std::int64_t i = 0; i < depth_; ++i)
                    sum += inputs[row * depth_ + i] * weights[i / 4 * 64 + output * 4 + i % 4];
                sums[row * 16 + output] = sum;
            }
        }
    }

  private:
    std::int64_t rows_, depth_;
};

}  // namespace
}  // namespace longhaul::kernels::cpu
