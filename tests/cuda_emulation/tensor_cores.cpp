// Emulates the instructions of tensor cores (cuda_emulation.hpp).
#include <bit>
#include <cstdint>
#include <cstring>

#include "tests/cuda_emulation/cuda_emulation.hpp"

namespace longhaul::kernels::cuda {
namespace emulation {
namespace {

/// A lane's operands of an mma.
struct MmaOperands {
    std::uint32_t a[4];
    std::uint32_t b[2];
};

float bf16_half(std::uint32_t word, int half) {
    return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xffff0000U);
}

int byte_of(std::uint32_t word, int which) {
    return static_cast<std::int8_t>(word >> (8 * which));
}

/// Registers of `a` that hold row `row` (of 16), for the lower and the upper half of the inputs.
struct RowOfA {
    int lower, upper;
};
RowOfA row_of_a(int row) {
    return row < 8 ? RowOfA{0, 2} : RowOfA{1, 3};
}

/// sum over k of a[row, k] b[k, column], by ascending lanes of the inputs; `product` adds the products of two
/// registers.
template <class Sum, class Product>
Sum product_of(const OfLanes<MmaOperands>& all, int row, int column, Sum sum, Product product) {
    const RowOfA regs = row_of_a(row);
    for (const bool upper : {false, true}) {
        for (int t = 0; t < 4; ++t) {
            const std::uint32_t a = all[row % 8 * 4 + t].a[upper ? regs.upper : regs.lower];
            const std::uint32_t b = all[column * 4 + t].b[upper ? 1 : 0];
            sum = product(sum, a, b);
        }
    }
    return sum;
}

}  // namespace
}  // namespace emulation

void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    const auto all = exchange(MmaOperands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const double sum =
            product_of(all, g + i / 2 * 8, 2 * t + i % 2, 0.0, [](double before, std::uint32_t x, std::uint32_t y) {
                for (const int half : {0, 1}) {
                    before += static_cast<double>(bf16_half(x, half)) * static_cast<double>(bf16_half(y, half));
                }
                return before;
            });
        d[i] = static_cast<float>(static_cast<double>(d[i]) + sum);
    }
}

void mma_int8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    const auto all = exchange(MmaOperands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        d[i] = product_of(all, g + i / 2 * 8, 2 * t + i % 2, d[i],
                          [](std::int32_t before, std::uint32_t x, std::uint32_t y) {
                              for (int k = 0; k < 4; ++k) before += byte_of(x, k) * byte_of(y, k);
                              return before;
                          });
    }
}

namespace {

/// Of the matrix whose rows lanes `first`.. passed: the element (row, column) and its right neighbour; transposed:
/// (column, row) and the element below it.
std::uint32_t matrix_pair(const emulation::OfLanes<const void*>& rows, int first, int row, int column,
                          bool transposed) {
    const auto element = [&](int r, int c) {
        std::uint16_t bits;
        std::memcpy(&bits, static_cast<const std::byte*>(rows[first + r]) + c * 2, 2);
        return static_cast<std::uint32_t>(bits);
    };
    if (transposed) return element(column, row) | element(column + 1, row) << 16;
    return element(row, column) | element(row, column + 1) << 16;
}

template <int count>
void load_matrices(std::uint32_t (&to)[count], const void* row, bool transposed) {
    const auto all = emulation::exchange(row);
    const int g = emulation::lane() / 4, t = emulation::lane() % 4;
    for (int i = 0; i < count; ++i) {
        emulation::check_matrix_row(all[8 * i + g]);
        to[i] = matrix_pair(all, 8 * i, g, 2 * t, transposed);
    }
}

}  // namespace

void load_matrix_x4(std::uint32_t (&to)[4], const void* row) {
    load_matrices(to, row, false);
}
void load_matrix_x4_transposed(std::uint32_t (&to)[4], const void* row) {
    load_matrices(to, row, true);
}
void load_matrix_x2(std::uint32_t (&to)[2], const void* row) {
    load_matrices(to, row, false);
}

std::uint32_t transpose_matrix(std::uint32_t pair) {
    const auto all = emulation::exchange(pair);
    const int g = emulation::lane() / 4, t = emulation::lane() % 4;
    const auto element = [&](int row, int column) { return all[row * 4 + column / 2] >> (column % 2 * 16) & 0xffffU; };
    return element(2 * t, g) | element(2 * t + 1, g) << 16;
}

}  // namespace longhaul::kernels::cuda
