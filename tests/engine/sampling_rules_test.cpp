// The sampling rules are lossless: for any drafts of any method and rule, the text is distributed as the target's.
// Tested with chi-square of many texts against the exact joint distribution, at a level (1e-4) that fixed seeds make
// safe, with wrong rules that must fail, and with p-values that must be uniform.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "engine/draft/methods.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/sampling.hpp"
#include "tests/engine/chi_square.hpp"
#include "tests/engine/table_decoding.hpp"

namespace longhaul::engine {
namespace {

using testing::chi_square_p;
using testing::Table;
using testing::TableDecoder;
using testing::TableJob;
using testing::Tokens;

// --- statistics

/// The joint distribution of texts of `length` tokens.
std::map<Tokens, double> joint(const Table& q, std::int64_t length) {
    return testing::joint_distribution(length, [&](const Tokens& text) { return q.after(text); });
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

/// A row after top-p.
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

/// Pairs of draft and target distributions that have broken implementations: equal, disjoint, certain, truncated, and
/// support below K.
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
    {"self", "3", "rejection"},
    {"self", "3x2:5", "recursive"},
    {"ngram", "3x2", "recursive", 0},
    {"rsd-s", "3x2", "coupled"},
    {"spectr", "3x2", "coupled"},
    {"ar", "", "coupled", 0},
};

TableJob job_of(const Case& wanted, const Pair& pair, std::int64_t emit) {
    TableJob job;
    job.draft.method = wanted.draft;
    job.draft.tree = wanted.tree;
    job.verify = wanted.verify;
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

// A rule that rejects everything would pass the test above: drafts must be accepted, most of all if p = q.
TEST(SamplingRules, DraftsAreAccepted) {
    for (const Case& wanted : lossless) {
        if (wanted.models != 1) continue;
        const Pair& same = pairs()[2];
        TableDecoder decoder(job_of(wanted, same, 3));
        draw_texts(decoder, 500, 3);
        const auto depth = tree_of(find_draft_method(wanted.draft), wanted.tree).depth;
        const double a_call = static_cast<double>(decoder.accepted) / static_cast<double>(decoder.target_calls);
        // With p = q the first draft of each node is always accepted: the discount of K-SEQ is 1 there.
        if (std::string(wanted.verify) != "coupled") {
            EXPECT_DOUBLE_EQ(a_call, static_cast<double>(depth)) << wanted.draft << " " << wanted.verify;
        }
        EXPECT_GT(a_call, 0.5 * static_cast<double>(depth)) << wanted.draft << " " << wanted.verify;
    }
}

// Drafts with replacement verified as if without: total variation up to 0.2.
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

// --- wrong draft methods, each verified by the rule of the correct method it resembles

/// The children of each parent are those that `choose` returns; they are reported to the verifier as drawn from the
/// draft distribution.
class ChosenChildren final : public TreeMethod {
  public:
    using Choose = std::function<std::vector<std::size_t>(const Distribution&, const NoiseRow&)>;
    ChosenChildren(std::int64_t depth, Choose choose) : depth_(depth), choose_(std::move(choose)) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t, std::int64_t, const TreePrices&) const override {
        return std::make_unique<Growth>(tree, noise, position, *this);
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return 1024; }
    [[nodiscard]] std::int64_t max_depth() const override { return depth_; }

  private:
    class Growth final : public TreeGrowth {
      public:
        Growth(TokenTree& tree, const Noise& noise, std::int64_t position, const ChosenChildren& method)
            : tree_(tree), noise_(noise), position_(position), method_(method) {}
        [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }
        void grow(std::span<Distribution> drafts) override {
            std::vector<Wanted> next;
            for (std::size_t i = 0; i < drafts.size(); ++i) {
                const std::int32_t parent = wanted_[i].node;
                const NoiseRow row = noise_.row(position_ + level_, 0, parent);
                const std::vector<std::size_t> places = method_.choose_(drafts[i], row);
                const std::vector<std::int32_t> ids = drafts[i].ids;
                const std::int32_t kept = keep_draft(tree_, noise_, drafts[i]);
                for (const std::size_t place : places)
                    next.push_back({add_draw(tree_, parent, ids[place], 0, kept), 0});
            }
            wanted_ = ++level_ < method_.depth_ ? std::move(next) : std::vector<Wanted>{};
        }

      private:
        TokenTree& tree_;
        Noise noise_;
        std::int64_t position_;
        const ChosenChildren& method_;
        std::int64_t level_ = 0;
        std::vector<Wanted> wanted_{{0, 0}};
    };

    std::int64_t depth_;
    Choose choose_;
};

std::vector<std::size_t> drawn_places(const Distribution& p, const NoiseRow& row, std::int64_t count) {
    std::vector<std::size_t> places;
    for (const Perturbed& draw : gumbel_top_k(p, row, count)) places.push_back(static_cast<std::size_t>(draw.place));
    return places;
}

void sort_by_probability(const Distribution& p, std::vector<std::size_t>& places) {
    std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) { return p.q[a] > p.q[b]; });
}

/// p-value of the texts that a draft method gives under the recursive rule.
double p_value_of(std::unique_ptr<TreeMethod> method, const Table& p, const Table& q, std::int64_t draws) {
    TableJob job;
    job.draft.method = "rsd-c";
    job.verify = "recursive";
    job.p = {p};
    job.q = q;
    job.emit = 2;
    TableDecoder decoder(job, std::move(method), make_verifier("recursive"));
    return chi_square_p(draw_texts(decoder, draws, 9), joint(q, 2));
}

TEST(SamplingRules, ResortedDraftsFail) {
    const Pair& pair = pairs()[1];
    const auto method = [](bool resorted) {
        return std::make_unique<ChosenChildren>(2, [resorted](const Distribution& p, const NoiseRow& row) {
            std::vector<std::size_t> places = drawn_places(p, row, 3);
            if (resorted) sort_by_probability(p, places);
            return places;
        });
    };
    EXPECT_GT(p_value_of(method(false), pair.p, pair.q, 5000), 1e-4);
    EXPECT_LT(p_value_of(method(true), pair.p, pair.q, 5000), 1e-4);
}

TEST(SamplingRules, CertainDraftsWithTheirSoftmaxAsPFail) {
    const Pair& pair = pairs()[1];
    const auto best = [](const Distribution& p, const NoiseRow&) {
        std::vector<std::size_t> places(p.ids.size());
        std::iota(places.begin(), places.end(), 0);
        sort_by_probability(p, places);
        places.resize(std::min<std::size_t>(places.size(), 2));
        return places;
    };
    EXPECT_LT(p_value_of(std::make_unique<ChosenChildren>(2, best), pair.p, pair.q, 5000), 1e-4);
}

/// RSD-S of width 2 and depth 2. The two parents of the second level draw with one shared row of noise (wrong) or with
/// two (correct). An independent implementation with the C library.
class TwoParents final : public TreeMethod {
  public:
    explicit TwoParents(bool one_row) : one_row_(one_row) {}
    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t, std::int64_t, const TreePrices&) const override {
        return std::make_unique<Growth>(tree, noise, position, one_row_);
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return 4; }
    [[nodiscard]] std::int64_t max_depth() const override { return 2; }

  private:
    struct Beam {
        double psi, phi;
        std::size_t parent;
        std::int32_t token;
    };
    class Growth final : public TreeGrowth {
      public:
        Growth(TokenTree& tree, const Noise& noise, std::int64_t position, bool one_row)
            : tree_(tree), noise_(noise), position_(position), one_row_(one_row) {}
        [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }
        void grow(std::span<Distribution> drafts) override {
            std::vector<Beam> candidates;
            for (std::size_t i = 0; i < drafts.size(); ++i) add_children(drafts[i], i, candidates);
            std::sort(candidates.begin(), candidates.end(), [](const Beam& a, const Beam& b) { return a.psi > b.psi; });
            candidates.resize(std::min<std::size_t>(candidates.size(), 2));
            std::vector<Wanted> next;
            std::vector<std::int32_t> kept;
            for (Distribution& draft : drafts) kept.push_back(keep_draft(tree_, noise_, draft));
            for (const Beam& c : candidates)
                next.push_back({add_draw(tree_, wanted_[c.parent].node, c.token, 0, kept[c.parent]), 0});
            wanted_ = ++level_ < 2 ? next : std::vector<Wanted>{};
            beams_ = candidates;
        }

      private:
        void add_children(const Distribution& p, std::size_t parent, std::vector<Beam>& candidates) {
            const NoiseRow row = noise_.row(position_ + level_, 0, one_row_ ? 0 : wanted_[parent].node);
            const Beam& above = beams_[parent];
            std::vector<double> perturbed;
            for (std::size_t v = 0; v < p.ids.size(); ++v)
                perturbed.push_back(above.phi + std::log(p.q[v]) + static_cast<double>(row.gumbel(p.ids[v])));
            const double greatest = *std::max_element(perturbed.begin(), perturbed.end());
            for (std::size_t v = 0; v < p.ids.size(); ++v) {
                const double psi = -std::log(std::exp(-above.psi) - std::exp(-greatest) + std::exp(-perturbed[v]));
                candidates.push_back({psi, above.phi + std::log(p.q[v]), parent, p.ids[v]});
            }
        }
        TokenTree& tree_;
        Noise noise_;
        std::int64_t position_;
        bool one_row_;
        std::int64_t level_ = 0;
        std::vector<Wanted> wanted_{{0, 0}};
        std::vector<Beam> beams_{{0, 0, 0, 0}};
    };

    bool one_row_;
};

// With shared noise, whether the second parent keeps a child depends on which one it is. Total variation 0.08 here: the
// target prefers tokens that the draft model finds unlikely, and then agrees with it.
TEST(SamplingRules, OneRowOfNoiseForTwoParentsFails) {
    const Table p(std::map<Tokens, std::vector<double>>{{{}, {0.9, 0.1}}, {{0}, {0.9, 0.1}}, {{1}, {0.5, 0.5}}});
    const Table q(std::map<Tokens, std::vector<double>>{{{}, {0.1, 0.9}}, {{0}, {0.9, 0.1}}, {{1}, {0.5, 0.5}}});
    EXPECT_GT(p_value_of(std::make_unique<TwoParents>(false), p, q, 10000), 1e-4);
    EXPECT_LT(p_value_of(std::make_unique<TwoParents>(true), p, q, 10000), 1e-4);
    EXPECT_GT(p_value_of(make_rsd_s({.width = 2, .depth = 2}), p, q, 10000), 1e-4);
}

// At low temperatures the probabilities of all but one of p's tokens underflow, but drafts drawn without replacement
// still reach them.
TEST(SamplingRules, TailsBeyondTheSmallestNumber) {
    Distribution p;
    p.ids = {0, 1, 2, 3};
    p.log_weights = {0, -800, -801, -3000};
    p.q = {1, 1e-304, 1e-304, 1e-304};
    Table q(std::map<Tokens, std::vector<double>>{{{}, {0, 0.2, 0.3, 0.5}}});
    std::map<Tokens, std::int64_t> counts;
    const auto verifier = make_verifier("recursive");
    for (const auto& method : {make_rsd_c({4}), make_rsd_s({.width = 3, .depth = 1})}) {
        counts.clear();
        for (std::uint64_t key = 1; key <= 4000; ++key) {
            TokenTree tree;
            tree.reset(0);
            const Noise noise{key, Noise::Kind::own};
            std::vector<Distribution> drafts{p};
            method->begin(tree, noise, 1, 1)->grow(drafts);
            const auto target = [&](std::int32_t node) -> const Distribution& {
                return q.after(node == 0 ? Tokens{} : Tokens{1});
            };
            const Verdict verdict = verifier->verify(tree, target, key, 1);
            const std::int32_t token =
                verdict.nodes.empty() ? verdict.next_token : tree.token[static_cast<std::size_t>(verdict.nodes[0])];
            ++counts[Tokens{token}];
        }
        EXPECT_GT(chi_square_p(counts, joint(q, 1)), 1e-4) << method->max_nodes();
    }
}

TEST(SamplingRules, EachDraftModelNeedsAChain) {
    const DraftMethod& specinfer = find_draft_method("specinfer");
    EXPECT_EQ(tree_of(specinfer, "2x3", 2).width, 2);
    EXPECT_THROW(tree_of(specinfer, "2x3", 3), UsageError);
    EXPECT_THROW(tree_of(specinfer, "", 4), UsageError);
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

// The seed is not a lucky one: over a thousand seeds the p-values are uniform (Kolmogorov-Smirnov, level 1e-4).
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
