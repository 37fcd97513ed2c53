// Elementary functions that only GPU kernels have (kernels/cuda/math.cuh).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {
namespace {

TEST(Exp2, IsExactWhereAttentionDependsOnIt) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(exp2_of(0.0F), 1.0F);
    EXPECT_EQ(exp2_of(-0.0F), 1.0F);
    EXPECT_EQ(exp2_of(-125.0F), std::ldexp(1.0F, -125));
    EXPECT_EQ(exp2_of(std::nextafter(-125.0F, -infinity)), 0.0F);
    EXPECT_EQ(exp2_of(-1e30F), 0.0F);
    EXPECT_EQ(exp2_of(-infinity), 0.0F);
    EXPECT_TRUE(std::isnan(exp2_of(std::nanf(""))));
    for (int n = -125; n <= 1; ++n) EXPECT_EQ(exp2_of(static_cast<float>(n)), std::ldexp(1.0F, n));
}

TEST(Exp2, IsFarMorePreciseThanBf16) {
    double worst = 0.0;
    for (int i = 0; i <= 1'000'000; ++i) {
        const float x = -125.0F * static_cast<float>(i) / 1e6F;
        const double expected = std::exp2(static_cast<double>(x));
        worst = std::max(worst, std::abs(static_cast<double>(exp2_of(x)) - expected) / expected);
    }
    EXPECT_LT(worst, 3.8e-6);
    EXPECT_GT(worst, 1e-6);  // the range was really tried
}

}  // namespace
}  // namespace longhaul::kernels::cuda
