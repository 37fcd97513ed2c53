// Emulates the instructions of tensor cores (cuda_emulation.hpp).
#include <bit>
#include <cstdint>
#include <cstring>

#include "tests/cuda_emulation/cuda_emulation.hpp"

namespace longhaul::kernels::cuda {
namespace emulation {
namespace {

/// A lane's operands of an mma. Lane 4 g + t has of `a` rows g (registers 0 and 2) and g + 8 (1 and 3), of `b` column
/// g; the first of two registers has inputs of the lower half, the other of the upper half; t numbers them within a
/// half.
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

}  // namespace
}  // namespace emulation

void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    const auto all = exchange(MmaOperands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int g = lane() / 4, t = lane() % 4;
    // Written out: as loops this was a quarter of the time of emulated kernels.
    double sums[4]{};
    for (int pair = 0; pair < 8; ++pair) {  // of inputs
        const int upper = pair / 4, from = pair % 4;
        const std::uint32_t* const rows = &all[g * 4 + from].a[2 * upper];
        const std::uint32_t left = all[8 * t + from].b[upper], right = all[8 * t + 4 + from].b[upper];
        const auto add = [&](int half) {
            const double r0 = bf16_half(rows[0], half), r1 = bf16_half(rows[1], half);
            const double c0 = bf16_half(left, half), c1 = bf16_half(right, half);
            sums[0] += r0 * c0;
            sums[1] += r0 * c1;
            sums[2] += r1 * c0;
            sums[3] += r1 * c1;
        };
        add(0);
        add(1);
    }
    for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(double{d[i]} + sums[i]);
}

void mma_int8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    const auto all = exchange(MmaOperands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        for (int part = 0; part < 8; ++part) {  // four inputs each
            const int upper = part / 4, from = part % 4;
            const std::uint32_t x = all[g * 4 + from].a[2 * upper + i / 2];
            const std::uint32_t y = all[(2 * t + i % 2) * 4 + from].b[upper];
            for (int k = 0; k < 4; ++k) d[i] += byte_of(x, k) * byte_of(y, k);
        }
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

std::uint32_t transpose_matrix(std::uint32_t pair) {
    const auto all = emulation::exchange(pair);
    const int g = emulation::lane() / 4, t = emulation::lane() % 4;
    const auto element = [&](int row, int column) { return all[row * 4 + column / 2] >> (column % 2 * 16) & 0xffffU; };
    return element(2 * t, g) | element(2 * t + 1, g) << 16;
}

}  // namespace longhaul::kernels::cuda
