// kernels/scalar_math.hpp against the C library's long double functions, and against itself: the bits of 600,000
// results give one hash that every machine, compiler and floating-point mode must reproduce.
#include "kernels/scalar_math.hpp"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace longhaul::kernels::scalar {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Error in ulps of a double near `exact`. The reference is the x87 long double (64 bits of mantissa, functions good to
/// 1 ulp of theirs); its own error is below 0.001 of these units.
double error_ulps(double got, long double exact) {
    const double near = std::fabs(static_cast<double>(exact));
    const double ulp = std::nextafter(near, infinity) - near;
    return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / static_cast<long double>(ulp));
}

struct Sample {
    std::vector<double> values;
    explicit Sample(std::uint64_t seed) : engine(seed) {}
    double uniform(double low, double high) {
        return low + (high - low) * (static_cast<double>(engine() >> 11) * 0x1p-53);
    }
    /// Positive, with uniformly distributed exponents.
    double any_size(int low_exponent, int high_exponent) {
        return std::ldexp(uniform(1, 2), static_cast<int>(uniform(low_exponent, high_exponent)));
    }
    std::mt19937_64 engine;
};

constexpr int num_samples = 200000;

TEST(ScalarMath, ExpIsWithinOneUlp) {
    Sample sample(1);
    double worst = 0;
    for (int i = 0; i < num_samples; ++i) {
        const double x = i % 2 == 0 ? sample.uniform(-708.3, 709.7) : sample.uniform(-1, 1) * sample.any_size(-60, 5);
        worst = std::max(worst, error_ulps(det_exp(x), std::exp(static_cast<long double>(x))));
    }
    EXPECT_LT(worst, 1.0);
    RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ScalarMath, LogIsWithinOneUlp) {
    Sample sample(2);
    double worst = 0;
    for (int i = 0; i < num_samples; ++i) {
        double x = sample.any_size(-1074, 1023);
        if (i % 3 == 1) x = sample.uniform(0.5, 2);
        if (i % 3 == 2) x = 1 + sample.uniform(-1, 1) * sample.any_size(-52, -1);
        if (x == 1.0) continue;
        worst = std::max(worst, error_ulps(det_log(x), std::log(static_cast<long double>(x))));
    }
    EXPECT_LT(worst, 1.0);
    RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ScalarMath, Log1pIsWithinOneUlpAlsoForTinyNumbers) {
    Sample sample(3);
    double worst = 0;
    for (int i = 0; i < num_samples; ++i) {
        double x = sample.any_size(-1000, 1000);
        if (i % 4 == 1) x = -sample.uniform(0, 1);
        if (i % 4 == 2) x = -sample.any_size(-60, -1);
        if (i % 4 == 3) x = sample.uniform(-0.5, 3);
        if (x <= -1.0) continue;
        worst = std::max(worst, error_ulps(det_log1p(x), std::log1p(static_cast<long double>(x))));
    }
    EXPECT_LT(worst, 1.0);
    RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ScalarMath, SinAndCosAreWithinOneUlp) {
    Sample sample(4);
    double worst = 0;
    for (int i = 0; i < num_samples; ++i) {
        double x = sample.uniform(-16777216, 16777216);
        if (i % 3 == 1) x = sample.uniform(-10, 10);
        if (i % 3 == 2) x = static_cast<float>(std::trunc(sample.uniform(0, 131072)) * sample.any_size(-24, 0));
        const auto exact = static_cast<long double>(x);
        // glibc reduces long double arguments exactly.
        const SinCos got = det_sincos(x);
        worst = std::max(worst, error_ulps(got.sin, std::sin(exact)));
        worst = std::max(worst, error_ulps(got.cos, std::cos(exact)));
        ASSERT_EQ(det_sin(-x), -got.sin);
        ASSERT_EQ(det_cos(-x), got.cos);
    }
    EXPECT_LT(worst, 1.0);
    RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ScalarMath, NextToMultiplesOfHalfPi) {
    double worst = 0;  // absolute: no double is closer to one of these than 2^-60
    for (std::int64_t n = 1; n < 10000000; n = n * 5 / 4 + 1) {
        const auto x = static_cast<double>(static_cast<long double>(n) * 1.57079632679489661923132169163975144L);
        const bool sin_is_small = n % 2 == 0;
        const double got = sin_is_small ? det_sin(x) : det_cos(x);
        const long double exact =
            sin_is_small ? std::sin(static_cast<long double>(x)) : std::cos(static_cast<long double>(x));
        worst = std::max(worst, static_cast<double>(std::fabs(static_cast<long double>(got) - exact)));
    }
    EXPECT_LT(worst, 0x1p-80);
}

TEST(ScalarMath, SpecialValues) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(det_exp(0.0), 1.0);
    EXPECT_EQ(det_exp(-infinity), 0.0);
    EXPECT_EQ(det_exp(-709.0), 0.0);
    EXPECT_EQ(det_exp(infinity), infinity);
    EXPECT_EQ(det_exp(710.0), infinity);
    EXPECT_TRUE(std::isfinite(det_exp(709.78)));
    EXPECT_TRUE(std::isnan(det_exp(nan)));
    EXPECT_EQ(det_log(1.0), 0.0);
    EXPECT_EQ(det_log(0.0), -infinity);
    EXPECT_EQ(det_log(-0.0), -infinity);
    EXPECT_EQ(det_log(infinity), infinity);
    EXPECT_TRUE(std::isnan(det_log(-1.0)));
    EXPECT_TRUE(std::isnan(det_log(nan)));
    EXPECT_EQ(det_log1p(0.0), 0.0);
    EXPECT_EQ(det_log1p(-1.0), -infinity);
    EXPECT_EQ(det_log1p(infinity), infinity);
    EXPECT_EQ(det_log1p(5e-324), 5e-324);
    EXPECT_TRUE(std::isnan(det_log1p(-1.5)));
    EXPECT_TRUE(std::isnan(det_log1p(nan)));
    EXPECT_EQ(det_sin(0.0), 0.0);
    EXPECT_EQ(det_cos(0.0), 1.0);
    EXPECT_TRUE(std::isnan(det_sin(infinity)));
    EXPECT_TRUE(std::isnan(det_cos(1e8)));
}

/// FNV-1a over the bits of results at fixed arguments. The arguments come from integers only, so a difference here is a
/// difference in the functions.
std::uint64_t bits_of_many_results() {
    std::uint64_t hash = 14695981039346656037ULL;
    const auto add = [&](double value) { hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 1099511628211ULL; };
    std::uint64_t state = 1;
    for (int i = 0; i < 100000; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const double u = (static_cast<double>(state >> 11) + 0.5) * 0x1p-53;
        add(det_log(u));
        add(det_log1p(-u));
        add(det_log1p(-u * 0x1p-30));
        add(det_exp(64.0 * u - 60.0));
        add(det_sin(u * 131072.0));
        add(det_cos(u * 131072.0));
    }
    return hash;
}

TEST(ScalarMath, BitsAreTheSameEverywhere) {
    // Changing this number changes every text that longhaul writes: raise kernels::numerics_version with it.
    constexpr std::uint64_t expected = 2105180750731560181ULL;
    EXPECT_EQ(bits_of_many_results(), expected);
    // Compute threads flush denormals (FTZ, DAZ); the runner's other threads do not.
    constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | flush_to_zero | denormals_are_zero);
    const std::uint64_t flushed = bits_of_many_results();
    const double log_of_denormal = det_log(0x1p-1060);
    _mm_setcsr(mode);
    EXPECT_EQ(flushed, expected);
    EXPECT_EQ(log_of_denormal, det_log(0x1p-1060));
}

}  // namespace
}  // namespace longhaul::kernels::scalar
