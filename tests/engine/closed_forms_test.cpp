// Drafts and first tokens against closed forms, 100,000 draws each: the joint distribution of the sequences that a tree
// holds, and the token that each rule emits first. Chi-square at a level (1e-6) that fixed seeds make safe. The mutants
// that these tests are for are in tests/mutants.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/verify/verifier.hpp"
#include "tests/engine/chi_square.hpp"
#include "tests/engine/table_decoding.hpp"

namespace longhaul::engine {
namespace {

using testing::chi_square_p;
using testing::Table;
using testing::TableDecoder;
using testing::TableJob;
using testing::Tokens;

constexpr std::int64_t draws = 100'000;
constexpr double level = 1e-6;

// --- what a tree holds

/// Three tokens, another row after each.
Table three_tokens() {
    return Table(std::map<Tokens, std::vector<double>>{
        {{}, {0.5, 0.3, 0.2}}, {{0}, {0.1, 0.2, 0.7}}, {{1}, {0.6, 0.3, 0.1}}, {{2}, {0.25, 0.25, 0.5}}});
}

/// The tree of one step over `p`.
TokenTree grow(const TreeMethod& method, const Table& p, std::uint64_t key) {
    TokenTree tree;
    tree.reset(0);
    const auto growth = method.begin(tree, {key, Noise::Kind::own}, 1, method.max_depth());
    while (!growth->wanted().empty()) {
        std::vector<Distribution> drafts;
        for (const TreeGrowth::Wanted& wanted : growth->wanted()) {
            Tokens path = tree.path_to(wanted.node);
            for (std::int32_t& node : path) node = tree.token[static_cast<std::size_t>(node)];
            drafts.push_back(p.after(path));
        }
        growth->grow(drafts);
    }
    return tree;
}

/// p-value of what `read` finds in the trees of `method`.
template <typename Read>
double p_value_of(const TreeMethod& method, const std::map<Tokens, double>& expected, const Read& read) {
    const Table p = three_tokens();
    std::map<Tokens, std::int64_t> counts;
    for (std::int64_t i = 0; i < draws; ++i) ++counts[read(grow(method, p, noise_key(21, std::to_string(i), 0)))];
    return chi_square_p(counts, expected);
}

/// The probability of each sequence of `length` tokens.
std::map<Tokens, double> sequences(std::int64_t length) {
    const Table p = three_tokens();
    return testing::joint_distribution(length, [&](const Tokens& text) { return p.after(text); });
}

Tokens joined(Tokens first, const Tokens& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

/// The paths to the nodes of the lowest level, one after another.
Tokens leaves_of(const TokenTree& tree) {
    Tokens paths;
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
        if (tree.depth[static_cast<std::size_t>(node)] != tree.depth.back()) continue;
        for (const std::int32_t at : tree.path_to(node)) paths.push_back(tree.token[static_cast<std::size_t>(at)]);
    }
    return paths;
}

// Stochastic beam search draws whole sequences without replacement: the ordered pair (s, t) has the probability
// P(s) P(t) / (1 - P(s)). Without the truncation of the Gumbels a level prefers children of unlikely parents.
TEST(ClosedForms, RsdSDrawsSequencesWithoutReplacement) {
    for (const std::int64_t depth : {2, 3}) {
        std::map<Tokens, double> expected;
        for (const auto& [s, p_s] : sequences(depth)) {
            for (const auto& [t, p_t] : sequences(depth))
                if (s != t) expected[joined(s, t)] = p_s * p_t / (1 - p_s);
        }
        EXPECT_GT(p_value_of(*make_rsd_s({.width = 2, .depth = depth}), expected, leaves_of), level) << depth;
    }
}

/// The probability that two draws without replacement after `context` are these, in this order.
std::map<Tokens, double> pairs_after(const Tokens& context) {
    const Table p = three_tokens();
    const Distribution& next = p.after(context);
    std::map<Tokens, double> pairs;
    for (const std::int32_t a : next.ids) {
        for (const std::int32_t b : next.ids)
            if (a != b) pairs[{a, b}] = next.probability(a) * next.probability(b) / (1 - next.probability(a));
    }
    return pairs;
}

// The children of each node are drawn without replacement, those of different nodes independently.
TEST(ClosedForms, RsdCDrawsChildrenWithoutReplacement) {
    std::map<Tokens, double> expected;
    for (const auto& [top, p_top] : pairs_after({})) {
        for (const auto& [left, p_left] : pairs_after({top[0]})) {
            for (const auto& [right, p_right] : pairs_after({top[1]}))
                expected[joined(top, joined(left, right))] = p_top * p_left * p_right;
        }
    }
    ASSERT_EQ(expected.size(), 216U);
    const auto nodes = [](const TokenTree& tree) { return Tokens(tree.token.begin() + 1, tree.token.end()); };
    EXPECT_GT(p_value_of(*make_rsd_c({2, 2}), expected, nodes), level);
}

// Chains with the same tokens share nodes; each draw of each chain is a trial.
TEST(ClosedForms, ChainsAreDrawnIndependently) {
    std::map<Tokens, double> expected;
    for (const auto& [s, p_s] : sequences(2)) {
        for (const auto& [t, p_t] : sequences(2)) expected[{s[0], t[0], s[1], t[1]}] = p_s * p_t;
    }
    const auto drawn = [](const TokenTree& tree) {
        Tokens tokens;
        for (const Trial& trial : tree.trials) tokens.push_back(tree.token[static_cast<std::size_t>(trial.child)]);
        return tokens;
    };
    EXPECT_GT(p_value_of(*make_chains(2, 2, 1), expected, drawn), level);
}

// --- the first token of each rule

struct FirstToken {
    const char *draft, *tree, *verify;
    int models = 1;
};

const std::vector<FirstToken> first_tokens{
    {"sd", "1", "rejection"},
    {"sd", "1", "multi-round"},
    {"sd", "1", "k-seq"},
    {"sd", "1", "recursive"},
    {"spectr", "3x1", "multi-round"},
    {"spectr", "3x1", "k-seq"},
    {"specinfer", "3x1", "multi-round", 2},
    {"rsd-c", "3", "recursive"},
    {"rsd-s", "3x1", "recursive"},
    {"rsd-s", "3x1", "coupled"},
    {"self", "3x1:2", "recursive"},
    {"ar", "", "coupled", 0},
};

struct Rows {
    std::string name;
    std::vector<double> p, other_p, q;  ///< other_p: of a second draft model
};

/// Mistakes show where they move probability: among others, a draft that the target excludes drawn again and again (a
/// trial each), and a target that prefers what drafts leave out.
const std::vector<Rows> rows{
    {"excluded drafts", {0.29, 0.71, 0}, {0.6, 0.3, 0.1}, {0.55, 0, 0.45}},
    {"opposed", {0.5, 0.25, 0.15, 0.07, 0.03}, {0.2, 0.2, 0.2, 0.2, 0.2}, {0.05, 0.1, 0.2, 0.25, 0.4}},
};

TEST(ClosedForms, FirstTokensAreTheTargets) {
    for (const FirstToken& wanted : first_tokens) {
        for (const Rows& row : rows) {
            const auto table = [](const std::vector<double>& one) {
                return Table(std::map<Tokens, std::vector<double>>{{Tokens{}, one}});
            };
            TableJob job;
            job.draft.method = wanted.draft;
            job.draft.tree = wanted.tree;
            job.verify = wanted.verify;
            job.emit = 1;
            job.q = table(row.q);
            for (int model = 0; model < wanted.models; ++model)
                job.p.push_back(table(model == 0 ? row.p : row.other_p));
            TableDecoder decoder(job);
            std::map<std::int32_t, std::int64_t> counts;
            for (std::int64_t i = 0; i < draws; ++i) ++counts[decoder.text(noise_key(22, std::to_string(i), 0))[0]];
            std::map<std::int32_t, double> expected;
            for (std::size_t v = 0; v < row.q.size(); ++v)
                if (row.q[v] > 0) expected[static_cast<std::int32_t>(v)] = row.q[v];
            EXPECT_GT(chi_square_p(counts, expected), level)
                << wanted.draft << " " << wanted.tree << " " << wanted.verify << ", " << row.name;
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
