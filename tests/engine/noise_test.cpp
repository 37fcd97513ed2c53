// Counter-based noise: known answers of Philox, the shape of the Gumbel distribution and its tails.
#include "engine/sampling/noise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace longhaul::engine {
namespace {

using kernels::gumbel_of_bits;

// The test vectors published by the authors of Philox4x32-10.
TEST(Noise, WordsArePhilox) {
    const auto words = [](std::uint64_t key, const kernels::NoisePlace& place) {
        const kernels::NoiseWords drawn = kernels::noise_words(key, place);
        return std::vector<std::uint32_t>(drawn.word, drawn.word + 4);
    };
    EXPECT_EQ(words(0, {}), (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(words(~std::uint64_t{0}, {-1, ~0U, ~0U, ~0U}),
              (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(words(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
              (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// gumbel_bound is an upper bound of the draw and, if the draw is positive, less than 2 above it.
TEST(Noise, BoundIsNoLess) {
    for (std::uint64_t key = 0; key < 20; ++key) {
        const NoiseRow row(key, 3);
        for (std::int32_t v = 0; v < 5000; ++v) {
            const auto gumbel = static_cast<double>(row.gumbel(v));
            ASSERT_GE(row.gumbel_bound(v), gumbel);
            ASSERT_NEAR(std::log(row.exp_gumbel_bound(v)), row.gumbel_bound(v), 2e-5);
            if (gumbel > 0) {
                ASSERT_LT(row.gumbel_bound(v), gumbel + 2);
            }
        }
    }
    EXPECT_EQ(NoiseRow::silence(1).gumbel_bound(5), 0);
    EXPECT_EQ(NoiseRow::silence(1).exp_gumbel_bound(5), 1);
}

// The noise decides every generated text: these properties must not change.
TEST(Noise, KnownAnswersStay) {
    const std::uint64_t key = noise_key(1, "book-1", 0);
    EXPECT_EQ(key, noise_key(1, "book-1", 0));
    EXPECT_NE(key, noise_key(2, "book-1", 0));
    EXPECT_NE(key, noise_key(1, "book-2", 0));
    EXPECT_NE(key, noise_key(1, "book-1", 1));
    EXPECT_EQ(noise_bits(key, 512, Purpose::target, 0, 0, 0), noise_bits(key, 512, Purpose::target, 0, 0, 0));
    std::set<std::uint32_t> distinct;
    for (std::uint32_t v = 0; v < 64; ++v) distinct.insert(noise_bits(key, 512, Purpose::target, 0, 0, v));
    distinct.insert(noise_bits(key, 513, Purpose::target, 0, 0, 0));
    distinct.insert(noise_bits(key, 512, Purpose::draft, 0, 0, 0));
    distinct.insert(noise_bits(key, 512, Purpose::target, 1, 0, 0));
    distinct.insert(noise_bits(key, 512, Purpose::target, 0, 1, 0));
    EXPECT_EQ(distinct.size(), 68U);
}

TEST(Noise, RowEqualsSingleDraws) {
    const NoiseRow row(99, 1000);
    for (const std::int32_t v : {0, 1, 2, 3, 4, 17, 16, 128000, 5}) {
        EXPECT_EQ(row.gumbel(v),
                  gumbel_of_bits(noise_bits(99, 1000, Purpose::target, 0, 0, static_cast<std::uint32_t>(v))));
    }
}

TEST(Noise, GumbelOfBitsEqualsLibmAndKeepsTheTail) {
    for (const std::uint32_t bits : {0U, 1U, 2U, 1000U, 1U << 20, 1U << 31, 4000000000U}) {
        const double u = static_cast<float>((bits + 0.5) * 0x1p-32);
        EXPECT_NEAR(gumbel_of_bits(bits), -std::log(-std::log1p(-u)), 2e-6 * (1 + std::abs(std::log(-std::log1p(-u)))))
            << bits;
    }
    EXPECT_LE(static_cast<double>(gumbel_of_bits(0)), kernels::max_gumbel);
    EXPECT_GT(gumbel_of_bits(0), 22.87F);       // full precision at the winners' end
    EXPECT_EQ(gumbel_of_bits(~0U), -INFINITY);  // u rounds to 1: never chosen, harmless
    for (std::uint32_t bits = 1; bits < 1000000; bits += 77777)
        EXPECT_GE(gumbel_of_bits(bits - 1), gumbel_of_bits(bits));
}

// Kolmogorov-Smirnov distance of 20,000 draws to exp(-exp(-x)). It exceeds 1.95/sqrt(n) for one seed in a thousand;
// this seed is fixed.
TEST(Noise, DrawsAreGumbelDistributed) {
    std::vector<double> draws;
    for (std::int64_t position = 0; position < 200; ++position) {
        const NoiseRow row(noise_key(7, "ks", 0), position);
        for (std::int32_t v = 0; v < 100; ++v) draws.push_back(row.gumbel(v));
    }
    std::sort(draws.begin(), draws.end());
    double distance = 0;
    for (std::size_t i = 0; i < draws.size(); ++i) {
        const double cdf = std::exp(-std::exp(-draws[i]));
        distance =
            std::max(distance, std::abs(cdf - (static_cast<double>(i) + 0.5) / static_cast<double>(draws.size())));
    }
    EXPECT_LT(distance, 1.95 / std::sqrt(static_cast<double>(draws.size())));
}

}  // namespace
}  // namespace longhaul::engine
