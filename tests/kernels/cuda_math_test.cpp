// Elementary functions that only GPU kernels have (kernels/cuda/math.cuh). The emulated reciprocal is off by up to
// one unit in the last place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

#include "kernels/cuda/math.cuh"
#include "kernels/flush_denormals.hpp"

namespace longhaul::kernels::cuda {
namespace {

/// A number of either sign, with an exponent from `least` to `most`.
float draw(std::mt19937_64& random, int least, int most) {
    const std::uint64_t bits = random();
    const auto mantissa = static_cast<float>(bits >> 41) * 0x1p-23F + 1.0F;
    const int range = most - least + 1, exponent = least + static_cast<int>(bits >> 1 & 0xffffU) % range;
    return std::ldexp(bits % 2 == 0 ? mantissa : -mantissa, exponent);
}

/// Divisors as activations have them, at least 1, and dividends for which they need no scaling.
TEST(CudaMath, QuotientsAreThoseOfDivisions) {
    const FlushDenormals flush;
    std::mt19937_64 random(1);
    for (int i = 0; i < 4'000'000; ++i) {
        const float y = std::abs(draw(random, 0, 99)), quotient = draw(random, -120, 20), x = quotient * y;
        if (std::abs(x) >= 0x1p-100F) ASSERT_EQ(quotient_of(x, y), x / y) << x << " / " << y;
    }
    for (const float x : {0.0F, -0.0F, 0x1p-126F, -0x1.8p-126F, 0x1p100F, -0x1p100F}) {
        EXPECT_EQ(quotient_of(x, 1.0F), x);
        EXPECT_EQ(quotient_of(x, 2.0F), x / 2.0F);
        EXPECT_EQ(std::signbit(quotient_of(x, 2.0F)), std::signbit(x));
    }
}

TEST(CudaMath, OnePlusAnExponentialIsTheirSum) {
    const FlushDenormals flush;
    for (int i = -870'000; i <= 880'000; ++i) {
        const float x = static_cast<float>(i) * 1e-4F;
        ASSERT_EQ(one_plus_exp(x), 1.0F + exp_of(x)) << x;
    }
}

}  // namespace
}  // namespace longhaul::kernels::cuda
