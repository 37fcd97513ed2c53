// The discount of K-SEQ: the bracket that spares sums must not change one bit of the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/discount.hpp"

namespace longhaul::kernels {
namespace {

struct Tokens {
    std::vector<double> p, q;

    /// Both distributions over `size` tokens, with logits of these spreads; `shared`: the part that both have in
    /// common.
    Tokens(std::mt19937& random, std::size_t size, double spread, double apart) : p(size), q(size) {
        std::normal_distribution<double> normal;
        for (std::size_t i = 0; i < size; ++i) {
            const double common = spread * normal(random);
            p[i] = std::exp(common + apart * normal(random));
            q[i] = std::exp(common + apart * normal(random));
        }
        for (std::vector<double>* weights : {&p, &q}) {
            double sum = 0;
            for (const double weight : *weights) sum += weight;
            for (double& weight : *weights) weight /= sum;
        }
    }
    [[nodiscard]] double mass(double gamma) const {
        double sum = 0;
        for (std::size_t i = 0; i < p.size(); ++i) sum += std::min(p[i], q[i] / gamma);
        return sum;
    }
};

TEST(Discount, TheBracketChangesNoBitAndSparesSums) {
    std::mt19937 random(5);
    double sums = 0, plain_sums = 0;
    int searched = 0;
    for (const std::size_t size : {2, 3, 50, 3000}) {
        for (const double spread : {0.1, 1.0, 4.0}) {
            for (const double apart : {0.0, 0.001, 0.3, 1.0, 5.0, 30.0}) {
                for (const int num_drafts : {1, 2, 3, 6, 16, 64}) {
                    const Tokens tokens(random, size, spread, apart);
                    int calls = 0;
                    const auto mass_at = [&](double gamma) {
                        ++calls;
                        return tokens.mass(gamma);
                    };
                    const double right = min_gamma(num_drafts, mass_at);
                    const int plain_calls = calls;
                    calls = 0;
                    // One chain of additions is as long as the lanes of a vocabulary of this size.
                    const double margin = excess_margin(static_cast<std::int64_t>(size) * vocabulary_lanes, num_drafts);
                    EXPECT_EQ(min_gamma(num_drafts, mass_at, bracket_gamma(num_drafts, margin, mass_at)), right)
                        << size << " tokens, " << spread << ", " << apart << ", " << num_drafts << " drafts";
                    EXPECT_LE(calls, plain_calls + 16);
                    const bool is_common = num_drafts > 1 && num_drafts < 10 && apart > 0.1 && apart < 10;
                    if (!is_common || plain_calls < gamma_steps) continue;
                    ++searched;
                    sums += calls;
                    plain_sums += plain_calls;
                }
            }
        }
    }
    EXPECT_GT(searched, 30);
    EXPECT_LT(sums, 0.7 * plain_sums) << searched;
}

TEST(Discount, NothingAcceptedIsNoDiscount) {
    const auto nothing = [](double) { return 0.0; };
    EXPECT_EQ(min_gamma(3, nothing, bracket_gamma(3, excess_margin(1000, 3), nothing)), 1.0);
    const auto broken = [](double) { return std::numeric_limits<double>::quiet_NaN(); };
    EXPECT_EQ(min_gamma(3, broken, bracket_gamma(3, excess_margin(1000, 3), broken)), min_gamma(3, broken));
}

}  // namespace
}  // namespace longhaul::kernels
