// The sampling rules are lossless: whatever drafts a method draws and a rule accepts, the text is distributed as the
// target's. Tested as statistics tests it: chi-square of many texts against the exact joint distribution, at a level
// (1e-4) that fixed seeds make safe, with wrong rules that must fail, and with p-values that must be uniform.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "engine/draft/methods.hpp"
#include "engine/sampling/pipeline.hpp"
#include "tests/engine/table_decoding.hpp"

namespace longhaul::engine {
namespace {

using testing::Table;
using testing::TableDecoder;
using testing::TableJob;
using testing::Tokens;

// --- statistics

/// Q(a, x): the chance that a Gamma(a) variable exceeds x (series below a + 1, continued fraction above).
double upper_gamma(double a, double x) {
    if (x <= 0) return 1;
    const double front = std::exp(-x + a * std::log(x) - std::lgamma(a));
    if (x < a + 1) {
        double term = 1 / a;
        double sum = term;
        for (int n = 1; n < 1000 && term > sum * 1e-15; ++n) sum += term *= x / (a + n);
        return 1 - sum * front;
    }
    double b = x + 1 - a;
    double c = 1e300;
    double d = 1 / b;
    double h = d;
    for (int n = 1; n < 1000; ++n) {
        const double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (std::abs(d * c - 1) < 1e-14) break;
    }
    return front * h;
}

/// p-value of `counts` against `expected` (probabilities). Cells with few expected draws are pooled; a draw where the
/// target has nothing is impossible.
double chi_square_p(const std::map<Tokens, std::int64_t>& counts, const std::map<Tokens, double>& expected) {
    std::int64_t draws = 0;
    for (const auto& [text, count] : counts) {
        draws += count;
        if (!expected.contains(text)) return 0;
    }
    double statistic = 0;
    double pooled_expected = 0;
    double pooled_count = 0;
    int cells = 0;
    const auto add = [&](double count, double mean) {
        statistic += (count - mean) * (count - mean) / mean;
        ++cells;
    };
    for (const auto& [text, probability] : expected) {
        const auto counted = counts.find(text);
        const double count = counted == counts.end() ? 0 : static_cast<double>(counted->second);
        const double mean = probability * static_cast<double>(draws);
        if (mean >= 8) {
            add(count, mean);
        } else {
            pooled_expected += mean;
            pooled_count += count;
        }
    }
    if (pooled_expected > 0.5) add(pooled_count, pooled_expected);
    return cells < 2 ? 1 : upper_gamma(0.5 * (cells - 1), 0.5 * statistic);
}

/// The joint distribution of texts of `length` tokens.
std::map<Tokens, double> joint(const Table& q, std::int64_t length) {
    std::map<Tokens, double> texts{{{}, 1.0}};
    for (std::int64_t i = 0; i < length; ++i) {
        std::map<Tokens, double> longer;
        for (const auto& [text, probability] : texts) {
            const Distribution& next = q.after(text);
            for (std::size_t v = 0; v < next.ids.size(); ++v) {
                Tokens all = text;
                all.push_back(next.ids[v]);
                longer[all] = probability * next.q[v];
            }
        }
        texts = std::move(longer);
    }
    return texts;
}

std::map<Tokens, std::int64_t> draw_texts(TableDecoder& decoder, std::int64_t draws, std::uint64_t seed) {
    std::map<Tokens, std::int64_t> counts;
    for (std::int64_t i = 0; i < draws; ++i) ++counts[decoder.text(noise_key(seed, std::to_string(i), 0))];
    return counts;
}

// --- distributions

std::vector<double> random_row(std::mt19937& random, int vocab, double sharpness) {
    std::vector<double> row(static_cast<std::size_t>(vocab));
    for (double& p : row) p = std::pow(std::uniform_real_distribution<>(0.01, 1)(random), sharpness);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& p : row) p /= sum;
    return row;
}

std::vector<double> one_hot(int vocab, int token) {
    std::vector<double> row(static_cast<std::size_t>(vocab), 0.0);
    row[static_cast<std::size_t>(token)] = 1;
    return row;
}

/// What top-p leaves of a row.
std::vector<double> truncated(std::vector<double> row, double top_p) {
    std::vector<std::size_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
    double sum = 0;
    for (const std::size_t v : order) {
        if (sum >= top_p) row[v] = 0;
        sum += row[v];
    }
    const double kept = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& p : row) p /= kept;
    return row;
}

/// A table with rows for the empty context and each first token.
Table table(int vocab, const std::function<std::vector<double>()>& row) {
    std::map<Tokens, std::vector<double>> rows;
    rows[{}] = row();
    for (std::int32_t v = 0; v < vocab; ++v) rows[{v}] = row();
    return Table(rows);
}

/// One row for all contexts.
Table everywhere(const std::vector<double>& row) {
    return Table(std::map<Tokens, std::vector<double>>{{Tokens{}, row}});
}

struct Pair {
    std::string name;
    Table p, q;
};

/// Drafts and targets that have broken implementations: alike, disjoint, certain, truncated, support below K.
const std::vector<Pair>& pairs() {
    static const std::vector<Pair> all = [] {
        std::mt19937 random(5);
        std::vector<Pair> made;
        const auto any = [&](int vocab, double sharpness) {
            return table(vocab, [&] { return random_row(random, vocab, sharpness); });
        };
        made.push_back({"flat", any(6, 0.7), any(6, 0.7)});
        made.push_back({"sharp", any(6, 5), any(6, 5)});
        const Table same = any(5, 2);
        made.push_back({"p = q", same, same});
        made.push_back({"disjoint", everywhere({0.5, 0.5, 0, 0}), everywhere({0, 0, 0.3, 0.7})});
        made.push_back({"certain draft", everywhere(one_hot(4, 2)), any(4, 1)});
        made.push_back({"certain target", any(4, 1), everywhere(one_hot(4, 1))});
        made.push_back({"truncated", table(8, [&] { return truncated(random_row(random, 8, 2), 0.7); }),
                        table(8, [&] { return truncated(random_row(random, 8, 2), 0.8); })});
        made.push_back({"two tokens", any(2, 1), any(2, 1)});
        return made;
    }();
    return all;
}

struct Case {
    const char *draft, *tree, *verify;
    int models = 1;
};

const std::vector<Case> lossless{
    {"sd", "1", "rejection"},
    {"sd", "4", "rejection"},
    {"sd", "3", "multi-round"},
    {"sd", "3", "k-seq"},
    {"sd", "3", "recursive"},
    {"spectr", "3x2", "multi-round"},
    {"spectr", "3x2", "k-seq"},
    {"spectr", "5x1", "k-seq"},
    {"specinfer", "2x3", "multi-round"},
    {"specinfer", "2x2", "k-seq"},
    {"specinfer", "3x2", "multi-round", 2},
    {"rsd-c", "2,2", "recursive"},
    {"rsd-c", "4,1,1", "recursive"},
    {"rsd-s", "3x2", "recursive"},
    {"rsd-s", "5x3", "recursive"},
    {"ngram", "3x2", "recursive", 0},
    {"rsd-s", "3x2", "coupled"},
    {"spectr", "3x2", "coupled"},
    {"ar", "", "coupled", 0},
};

TableJob job_of(const Case& wanted, const Pair& pair, std::int64_t emit) {
    TableJob job;
    job.draft.method = wanted.draft;
    job.draft.tree = wanted.tree;
    job.draft.verify = wanted.verify;
    job.emit = emit;
    job.q = pair.q;
    for (int model = 0; model < wanted.models; ++model) job.p.push_back(model % 2 == 0 ? pair.p : pairs()[0].p);
    return job;
}

// --- tests

TEST(SamplingRules, EveryRuleOnEveryMethodEmitsTheTarget) {
    std::uint64_t seed = 100;
    for (const Case& wanted : lossless) {
        for (const Pair& pair : pairs()) {
            TableDecoder decoder(job_of(wanted, pair, 3));
            const auto counts = draw_texts(decoder, 4000, ++seed);
            EXPECT_GT(chi_square_p(counts, joint(pair.q, 3)), 1e-4)
                << wanted.draft << " " << wanted.tree << " " << wanted.verify << ", " << pair.name;
        }
    }
}

// A rule that did nothing would pass the test above: drafts must be accepted, most of all where p = q.
TEST(SamplingRules, DraftsAreAccepted) {
    for (const Case& wanted : lossless) {
        if (wanted.models != 1) continue;
        const Pair& same = pairs()[2];
        TableDecoder decoder(job_of(wanted, same, 3));
        draw_texts(decoder, 500, 3);
        const auto depth = tree_of(find_draft_method(wanted.draft), wanted.tree).depth;
        const double a_call = static_cast<double>(decoder.accepted) / static_cast<double>(decoder.target_calls);
        // With p = q the first draft of each node is accepted always (K-SEQ: most of the time).
        const bool always = std::string(wanted.verify) != "k-seq" && std::string(wanted.verify) != "coupled";
        if (always) {
            EXPECT_DOUBLE_EQ(a_call, static_cast<double>(depth)) << wanted.draft << " " << wanted.verify;
        }
        EXPECT_GT(a_call, 0.5 * static_cast<double>(depth)) << wanted.draft << " " << wanted.verify;
    }
}

// Drafts with replacement verified as without: total variation up to 0.2.
TEST(SamplingRules, AWrongPairFails) {
    const Pair& pair = pairs()[1];
    for (const char* tree : {"3x1", "3x2"}) {
        TableJob job = job_of({"spectr", tree, "recursive"}, pair, 2);
        const TreeShape shape = parse_tree_shape(tree);
        TableDecoder decoder(job, make_chains(shape.width, shape.depth, 1), make_verifier("recursive"));
        EXPECT_LT(chi_square_p(draw_texts(decoder, 20000, 7), joint(pair.q, 2)), 1e-4) << tree;
    }
    TableJob job = job_of({"rsd-c", "3,1", "multi-round"}, pair, 2);
    TableDecoder decoder(job, make_rsd_c({3, 1}), make_verifier("multi-round"));
    EXPECT_LT(chi_square_p(draw_texts(decoder, 20000, 8), joint(pair.q, 2)), 1e-4);
}

TEST(SamplingRules, PairsThatAreNotLosslessAreRefused) {
    const auto refused = [](const char* draft, const char* verify, std::int64_t models = 1) {
        try {
            check_lossless(verify, find_draft_method(draft), models);
            return false;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find("verify: expected coupled"), std::string::npos) << error.what();
            return true;
        }
    };
    for (const Case& good : lossless) EXPECT_FALSE(refused(good.draft, good.verify, good.models)) << good.draft;
    for (const char* verify : {"rejection", "multi-round", "k-seq"}) {
        EXPECT_TRUE(refused("ngram", verify)) << verify;
        EXPECT_TRUE(refused("rsd-c", verify)) << verify;
        EXPECT_TRUE(refused("rsd-s", verify)) << verify;
    }
    EXPECT_TRUE(refused("spectr", "rejection"));
    EXPECT_TRUE(refused("spectr", "recursive"));
    EXPECT_TRUE(refused("specinfer", "recursive"));
    EXPECT_TRUE(refused("specinfer", "k-seq", 2));
}

// No lucky seed: over a thousand of them the p-values are uniform (Kolmogorov-Smirnov, level 1e-4).
TEST(SamplingRules, PValuesAreUniform) {
    constexpr int seeds = 1000;
    for (const Case& wanted : {Case{"rsd-s", "3x2", "recursive"}, Case{"spectr", "3x2", "k-seq"}}) {
        std::vector<double> p_values;
        const Pair& pair = pairs()[0];
        TableDecoder decoder(job_of(wanted, pair, 1));
        const auto expected = joint(pair.q, 1);
        for (std::uint64_t seed = 0; seed < seeds; ++seed)
            p_values.push_back(chi_square_p(draw_texts(decoder, 200, 1000 + seed), expected));
        std::sort(p_values.begin(), p_values.end());
        double distance = 0;
        for (std::size_t i = 0; i < p_values.size(); ++i) {
            distance = std::max(distance, std::abs(p_values[i] - static_cast<double>(i) / seeds));
            distance = std::max(distance, std::abs(p_values[i] - static_cast<double>(i + 1) / seeds));
        }
        // P(D > x) is about 2 exp(-2 n x^2)
        EXPECT_LT(distance, std::sqrt(std::log(2 / 1e-4) / (2.0 * seeds))) << wanted.draft;
    }
}

TEST(GumbelTopK, IsTheBestOfAllSums) {
    std::mt19937 random(1);
    for (std::uint64_t key = 0; key < 200; ++key) {
        const Distribution all = Table::distribution(random_row(random, 300, 6));
        const NoiseRow noise(key, 5);
        std::vector<std::pair<double, std::int64_t>> sums;
        for (std::size_t i = 0; i < all.ids.size(); ++i)
            sums.emplace_back(-(all.log_weights[i] + static_cast<double>(noise.gumbel(all.ids[i]))), i);
        std::sort(sums.begin(), sums.end());
        const std::vector<Perturbed> best = gumbel_top_k(all, noise, 12);
        ASSERT_EQ(best.size(), 12U);
        for (std::size_t i = 0; i < best.size(); ++i) EXPECT_EQ(best[i].place, sums[i].second);
        EXPECT_EQ(all.ids[static_cast<std::size_t>(best[0].place)], gumbel_argmax(all, noise));
    }
    EXPECT_EQ(gumbel_top_k(Table::distribution(std::vector<double>{0.5, 0.5}), NoiseRow(1, 1), 9).size(), 2U);
}

}  // namespace
}  // namespace longhaul::engine
