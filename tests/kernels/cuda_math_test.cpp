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
        if (std::abs(x) >= 0x1p-100F) {
            ASSERT_EQ(quotient_of(x, y), x / y) << x << " / " << y;
        }
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

TEST(CudaMath, BytesBecomeBf16Exactly) {
    const auto first = [](std::uint32_t pair) { return static_cast<int>(bf16_low(pair)); };
    const auto second = [](std::uint32_t pair) { return static_cast<int>(bf16_high(pair)); };
    for (int i = 0; i < 256; ++i) {
        const int bytes[4] = {i - 128, (i * 7) % 256 - 128, (i * 11 + 5) % 256 - 128, 127 - i};
        std::uint32_t word = 0;
        for (unsigned k = 0; k < 4; ++k) word |= (static_cast<std::uint32_t>(bytes[k]) & 0xffU) << 8 * k;
        const std::uint32_t low = bf16_of_bytes<0, 1>(word, 0x43), high = bf16_of_bytes<2, 3>(word, 0x43);
        const std::uint32_t even = bf16_of_bytes<0, 2>(word, 0x43), odd = bf16_of_bytes<1, 3>(word, 0x43);
        ASSERT_EQ(first(low), bytes[0]);
        ASSERT_EQ(second(low), bytes[1]);
        ASSERT_EQ(first(high), bytes[2]);
        ASSERT_EQ(second(high), bytes[3]);
        ASSERT_EQ(first(even), bytes[0]);
        ASSERT_EQ(second(even), bytes[2]);
        ASSERT_EQ(first(odd), bytes[1]);
        ASSERT_EQ(second(odd), bytes[3]);
    }
}

}  // namespace
}  // namespace longhaul::kernels::cuda
