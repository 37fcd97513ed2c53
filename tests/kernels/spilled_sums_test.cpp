// A tile whose sums are spilled to memory gives the same bits as one without spills. Runs on any processor: the
// registers are arrays.
#include "kernels/cpu/spilled_sums.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace longhaul::kernels::cpu {
namespace {

struct Arrays {
    static constexpr int width = 16;
    struct Floats {
        float at[width];
    };
    static Floats load(const float* from) {
        Floats x;
        std::memcpy(x.at, from, sizeof x.at);
        return x;
    }
    static void store(float* to, const Floats& x) { std::memcpy(to, x.at, sizeof x.at); }
};

struct DotArrays {
    using Floats = Arrays::Floats;
    static constexpr int steps = 1;
    static Floats weights(const float* from, int) { return Arrays::load(from); }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        for (int i = 0; i < W; ++i) {
            for (int n = 0; n < Arrays::width; ++n) sum[i].at[n] += w[i].at[n] * static_cast<float>(*x);
        }
    }
};

/// Weights [group][register][lane] and inputs [group][row] whose sums depend on the order of addition.
struct Problem {
    Problem(int rows, int groups) : weights(groups * 2 * Arrays::width), inputs(groups * rows) {
        std::uint32_t state = 7;
        const auto next = [&] { return (state = state * 1664525U + 1013904223U) >> 8; };
        for (float& w : weights) w = static_cast<float>(next()) / 3.0F;
        for (std::uint32_t& x : inputs) x = next() % 1000;
    }
    std::vector<float> weights;
    std::vector<std::uint32_t> inputs;
};

template <int R>
void expect_all_tile_sums(int groups) {
    const Problem problem(R, groups);
    Arrays::Floats sum[R][2] = {}, expected[R][2] = {};
    const auto place = [&](int g) {
        return [&, g](int i) { return problem.weights.data() + (g * 2 + i) * Arrays::width; };
    };
    for (int g = 0; g < groups; ++g) {
        const Arrays::Floats w[2] = {Arrays::load(place(g)(0)), Arrays::load(place(g)(1))};
        for (int r = 0; r < R; ++r) DotArrays::multiply_add_row(expected[r], w, problem.inputs.data() + g * R + r);
    }
    int g = 0;
    multiply_slice_spilled<Arrays, DotArrays>(sum, groups, [&](const auto& multiply) {
        multiply(place(g), problem.inputs.data() + g * R);
        ++g;
    });
    EXPECT_EQ(g, groups);
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < 2; ++i) {
            for (int n = 0; n < Arrays::width; ++n) {
                ASSERT_EQ(sum[r][i].at[n], expected[r][i].at[n])
                    << "row " << r << " of " << R << ", output " << i * Arrays::width + n << ", " << groups
                    << " groups";
            }
        }
    }
}

TEST(SpilledSums, AreThoseOfATileThatKeepsAll) {
    for (int groups = 0; groups <= 7; ++groups) {
        expect_all_tile_sums<15>(groups);
        expect_all_tile_sums<16>(groups);
    }
}

TEST(SpilledSums, AreThoseThatFindNoRegister) {
    EXPECT_EQ((spilled_rows<Arrays, 14, 2>), 0);
    EXPECT_EQ((spilled_rows<Arrays, 15, 2>), 1);
    EXPECT_EQ((spilled_rows<Arrays, 16, 2>), 3);
    EXPECT_EQ((spilled_rows<Arrays, 16, 1>), 0);
}

}  // namespace
}  // namespace longhaul::kernels::cpu
