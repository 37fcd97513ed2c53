// The toy example of the paper on recursive speculative decoding (its Figure 1): one token over an alphabet of two,
// with two drafts. Compares the engine's acceptance with closed forms, and with the optimum for drafts with
// replacement.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/engine/table_decoding.hpp"

namespace longhaul::engine {
namespace {

using testing::Table;
using testing::TableDecoder;
using testing::TableJob;
using testing::Tokens;

// Probabilities that one of two drafts is accepted. p and q: the draft's and the target's probability of token 1.

/// The first draft is accepted as in speculative decoding. After its rejection the residual is certain: the token to
/// which the draft gives too little.
double multi_round(double p, double q) {
    const double first = std::min(p, q) + std::min(1 - p, 1 - q);
    return first + (1 - first) * (q > p ? p : 1 - p);
}

double k_seq(double p, double q) {
    const auto beta = [&](double gamma) { return std::min(p, q / gamma) + std::min(1 - p, (1 - q) / gamma); };
    const auto accepted = [&](double gamma) { return 1 - (1 - beta(gamma)) * (1 - beta(gamma)); };
    double low = 1;
    double high = 2;
    for (int i = 0; i < 60; ++i) {
        const double gamma = 0.5 * (low + high);
        (accepted(gamma) <= gamma * beta(gamma) ? high : low) = gamma;
    }
    return accepted(high);
}

/// Optimal transport between the pair of drafts and the target (SpecTr): by Hall's theorem, the minimum over all sets
/// of tokens.
double optimal_transport(double p, double q) {
    const double pair_has_1 = 1 - (1 - p) * (1 - p);
    const double pair_has_0 = 1 - p * p;
    return std::min({1.0, 1 - q + pair_has_1, q + pair_has_0});
}

double accepted_share(const char* draft, const char* verify, double p, double q, std::int64_t draws) {
    TableJob job;
    job.draft.method = draft;
    job.draft.tree = "2x1";
    job.verify = verify;
    job.emit = 1;
    job.p.emplace_back(std::map<Tokens, std::vector<double>>{{Tokens{}, {1 - p, p}}});
    job.q = Table(std::map<Tokens, std::vector<double>>{{Tokens{}, {1 - q, q}}});
    TableDecoder decoder(job);
    for (std::int64_t i = 0; i < draws; ++i) decoder.text(noise_key(11, std::to_string(i), 0));
    return static_cast<double>(decoder.accepted) / static_cast<double>(decoder.target_calls);
}

TEST(ToyExample, TwoDraftsOfTwoTokens) {
    constexpr std::int64_t draws = 4000;
    constexpr double error = 4.5 * 0.5 / 63.2;  // 4.5 standard errors of a share of `draws`
    for (const double p : {0.1, 0.3, 0.5, 0.7, 0.9}) {
        for (const double q : {0.05, 0.1, 0.4, 0.6, 0.95}) {
            const double bound = optimal_transport(p, q);
            EXPECT_LE(multi_round(p, q), bound + 1e-12) << p << " " << q;
            EXPECT_LE(k_seq(p, q), bound + 1e-12) << p << " " << q;
            EXPECT_NEAR(accepted_share("spectr", "multi-round", p, q, draws), multi_round(p, q), error)
                << p << " " << q;
            EXPECT_NEAR(accepted_share("spectr", "k-seq", p, q, draws), k_seq(p, q), error) << p << " " << q;
            // Without replacement the second draft is the residual after the first one's rejection, so one of the two
            // is always accepted.
            EXPECT_EQ(accepted_share("rsd-s", "recursive", p, q, 300), 1.0) << p << " " << q;
        }
    }
}

// Hall's theorem against the transport problem itself, solved by trying all splits of the pair {0, 1}.
TEST(ToyExample, TheBoundIsOptimalTransport) {
    for (const double p : {0.1, 0.35, 0.8}) {
        for (const double q : {0.02, 0.5, 0.97}) {
            const double mixed = 2 * p * (1 - p);
            double best = 0;
            for (int i = 0; i <= 1000; ++i) {
                const double as_1 = mixed * i / 1000;
                best = std::max(best, std::min(q, p * p + as_1) + std::min(1 - q, (1 - p) * (1 - p) + mixed - as_1));
            }
            EXPECT_NEAR(best, optimal_transport(p, q), 1e-3) << p << " " << q;
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
