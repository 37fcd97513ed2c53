// How much of the trees that are asked for is drafted.
#include "engine/draft/drafted_share.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "engine/token_tree.hpp"

namespace longhaul::engine {
namespace {

/// A chain: n-grams first, then a model's drafts.
TokenTree chain(int ngrams, int drafts) {
    TokenTree tree;
    tree.reset(0);
    std::int32_t node = 0;
    for (int i = 0; i < ngrams; ++i) node = tree.add(node, i, Origin::ngram);
    for (int i = 0; i < drafts; ++i) node = tree.add(node, i, Origin::model);
    return tree;
}

constexpr std::array<std::int64_t, 3> chains_of_three{1, 1, 1};

TEST(DraftedShare, AllOfATreeAtFirst) {
    const DraftedShare share(4);
    EXPECT_EQ(share.expected(3).nodes, 1);
    EXPECT_EQ(share.expected(3).passes, 1);
}

// Half of the trees stop behind one level; all of them were worked for down to the second.
TEST(DraftedShare, NodesAreThoseThatStayedAndPassesThoseThatWereMade) {
    DraftedShare share(4);
    for (int i = 0; i < 400; ++i) {
        share.count(chain(0, i % 2 == 0 ? 1 : 2), 2);
        share.end_step(chains_of_three);
    }
    EXPECT_NEAR(share.expected(0).nodes, 1, 0.01);
    EXPECT_NEAR(share.expected(1).nodes, 0.5, 0.1);
    EXPECT_NEAR(share.expected(2).nodes, 0, 0.01);
    EXPECT_NEAR(share.expected(1).passes, 1, 0.01);
    EXPECT_NEAR(share.expected(2).passes, 0, 0.01);
}

// Below the levels that were ever asked for as much is left out per level as in the deepest of them.
TEST(DraftedShare, DeeperLevelsFollowTheDeepestKnown) {
    DraftedShare share(6);
    constexpr std::array<std::int64_t, 2> asked{1, 1};
    for (int i = 0; i < 400; ++i) {
        share.count(chain(0, i % 2 == 0 ? 1 : 2), i % 2 == 0 ? 1 : 2);
        share.end_step(asked);
    }
    const double known = share.expected(1).nodes;
    EXPECT_NEAR(share.expected(3).nodes, known * known * known, 1e-9);
    EXPECT_NEAR(share.expected(3).passes, known * known * known, 1e-9);
}

TEST(DraftedShare, LevelsCountFromTheEndOfTheNgrams) {
    DraftedShare share(4);
    share.count(chain(2, 1), 1);
    EXPECT_EQ(share.levels_in_step(), 1);
    EXPECT_EQ(share.nodes_per_tree(), 1);
    for (int i = 0; i < 400; ++i) {
        share.end_step(chains_of_three);
        share.count(chain(2, 1), 1);
    }
    EXPECT_NEAR(share.expected(0).nodes, 1, 0.01);
    EXPECT_NEAR(share.expected(1).nodes, 0, 0.01);
}

TEST(DraftedShare, ABatchIsTheMeanOfItsTreesAndMakesThePassesOfItsDeepest) {
    DraftedShare share(4);
    for (int i = 0; i < 400; ++i) {
        share.count(chain(0, 0), 1);
        share.count(chain(0, 3), 3);
        EXPECT_EQ(share.levels_in_step(), 3);
        EXPECT_EQ(share.nodes_per_tree(), 1.5);
        share.end_step(chains_of_three);
    }
    EXPECT_NEAR(share.expected(2).nodes, 0.5, 0.01);
    EXPECT_NEAR(share.expected(2).passes, 1, 0.01);
}

// What an earlier draft has left says nothing, unless the drafter worked for a tree of its own and left it out.
TEST(DraftedShare, LeftoversOfEarlierDraftsAreNoDrafts) {
    TokenTree leftovers;
    leftovers.reset(0);
    leftovers.add(0, 1, Origin::resampled);
    DraftedShare share(4);
    for (int i = 0; i < 400; ++i) {
        share.count(leftovers, 0);
        share.end_step(chains_of_three);
    }
    EXPECT_EQ(share.expected(0).nodes, 1);
    for (int i = 0; i < 400; ++i) {
        share.count(leftovers, 3);
        share.end_step(chains_of_three);
    }
    EXPECT_NEAR(share.expected(0).nodes, 0, 0.01);
    EXPECT_NEAR(share.expected(2).passes, 1, 0.01);
}

}  // namespace
}  // namespace longhaul::engine
