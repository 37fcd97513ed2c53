// What `draft-tree = auto` learns from: the acceptance of drafts by level and width, and how times differ from the
// model.
#include "engine/draft/acceptance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "engine/draft/tree_chooser.hpp"
#include "engine/draft/tree_growth.hpp"
#include "tests/engine/simulated_drafts.hpp"

namespace longhaul::engine {
namespace {

using testing::family_of;

/// Levels of two nodes, both children of the accepted node above, or of the first one; `places` are the accepted
/// places.
std::pair<TokenTree, std::vector<std::int32_t>> pairs(const std::vector<std::int32_t>& places, int levels) {
    TokenTree tree;
    tree.reset(0);
    std::vector<std::int32_t> accepted;
    std::int32_t parent = 0;
    for (int level = 0; level < levels; ++level) {
        const std::int32_t first = tree.num_nodes();
        for (std::int32_t i = 0; i < 2; ++i) tree.add(parent, i, Origin::model);
        parent = first;
        if (level < static_cast<int>(places.size())) {
            accepted.push_back(first + places[static_cast<std::size_t>(level)]);
            parent = accepted.back();
        }
    }
    return {tree, accepted};
}

TEST(Acceptance, CountsWhatEachWidthWouldHaveKept) {
    Acceptance acceptance(family_of("rsd-s"));
    const std::vector<double> before = acceptance.chances(1, 2);
    for (int i = 0; i < 300; ++i) {
        const auto [tree, accepted] =
            pairs(i % 4 == 0 ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{i % 2, 0}, 2);
        acceptance.record(tree, accepted, false, {.depth = 2, .width = 2});
    }
    // In four trials: a miss, the second, the first, the second.
    EXPECT_NEAR(acceptance.chances(0, 2)[0], 0.25, 0.05);
    EXPECT_NEAR(acceptance.chances(1, 2)[0], 0.75, 0.05);
    EXPECT_GT(acceptance.chances(0, 2)[1], 0.9);
    EXPECT_GT(acceptance.chances(2, 1)[0], acceptance.chances(1, 1)[0]) << "never tried, believed to be better";
    EXPECT_EQ(acceptance.deepest(), 2);
    acceptance.doubt();
    EXPECT_NEAR(acceptance.chances(1, 2)[0], 0.75, 0.05) << "less certain, not another belief";
}

/// The estimate for a chain's first node after `trials` more trials; `hit` decides each.
double belief_after(Acceptance& acceptance, int trials, const std::function<bool(int)>& hit) {
    for (int i = 0; i < trials; ++i) {
        const auto [tree, accepted] = pairs(hit(i) ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{}, 1);
        acceptance.record(tree, accepted, false, {.depth = 1, .width = 1});
    }
    return acceptance.chances(0, 1)[0];
}

// A model's draft was wrong and an n-gram right: a miss of the model.
TEST(Acceptance, NgramsSayNothingAboutModels) {
    Acceptance acceptance(family_of("sd"));
    for (int i = 0; i < 200; ++i) {
        TokenTree tree;
        tree.reset(0);
        tree.add(0, 1, Origin::model);
        const std::int32_t right = tree.add(0, 2, Origin::ngram);
        const std::vector<std::int32_t> accepted{right, tree.add(right, 3, Origin::ngram)};
        acceptance.record(tree, accepted, false, {.depth = 1, .width = 1});
    }
    EXPECT_LT(acceptance.chances(0, 1)[0], 0.05);
    EXPECT_EQ(acceptance.deepest(), 0);
}

// A model that drafts below n-grams is judged by its own first draft, if the text got there.
TEST(Acceptance, AModelBelowNgramsBeginsThere) {
    Acceptance acceptance(family_of("sd"));
    for (int i = 0; i < 300; ++i) {
        TokenTree tree;
        tree.reset(0);
        const std::int32_t first = tree.add(0, 1, Origin::ngram);
        const std::int32_t second = tree.add(first, 2, Origin::ngram);
        const std::int32_t model = tree.add(second, 3, Origin::model);
        EXPECT_EQ(tree.ngram_chain(), 2);
        std::vector<std::int32_t> accepted;
        if (i % 3 == 0) accepted = {first};  // nobody knows what the model's draft was worth
        if (i % 3 == 1) accepted = {first, second};
        if (i % 3 == 2) accepted = {first, second, model};
        acceptance.record(tree, accepted, false, {.depth = 3, .width = 1});
    }
    EXPECT_NEAR(acceptance.chances(0, 2)[0], 0.5, 0.02);
    EXPECT_LT(acceptance.chances(0, 2)[1], 0.05) << "levels left out, for the n-grams or as unsure, are misses";
    EXPECT_EQ(acceptance.deepest(), 1);
}

TEST(Acceptance, RemembersLongWhatStaysAndForgetsFastWhatChanges) {
    Acceptance acceptance(family_of("sd"));
    belief_after(acceptance, 300, [](int) { return true; });
    EXPECT_LT(belief_after(acceptance, 20, [](int) { return false; }), 0.5) << "another text began";
    // Fair coins: an estimate from the last 20 trials alone would vary from 0.25 to 0.75 here.
    std::mt19937 coins(7);
    belief_after(acceptance, 400, [&](int) { return coins() % 2 == 0; });
    for (int i = 0; i < 400; ++i) {
        EXPECT_NEAR(belief_after(acceptance, 1, [&](int) { return coins() % 2 == 0; }), 0.5, 0.13);
    }
}

TEST(Acceptance, TheEndOfATextIsNoMiss) {
    Acceptance acceptance(family_of("sd")), same(family_of("sd"));
    const auto [tree, accepted] = pairs({}, 1);
    acceptance.record(tree, accepted, true, {.depth = 1, .width = 1});
    EXPECT_EQ(acceptance.chances(0, 3), same.chances(0, 3));
    acceptance.record(tree, accepted, false, {.depth = 1, .width = 1});
    EXPECT_LT(acceptance.chances(0, 3)[0], same.chances(0, 3)[0]);
}

TEST(Acceptance, PlacesOfABranchingTreeAreAmongSiblings) {
    Acceptance acceptance(family_of("rsd-c"));
    TokenTree tree;
    tree.reset(0);
    for (std::int32_t i = 0; i < 2; ++i) tree.add(0, i, Origin::model);
    for (std::int32_t parent = 1; parent <= 2; ++parent) tree.add(parent, 0, Origin::model);
    const std::vector<std::int32_t> accepted{2, 4};  // the second child, and its only child
    for (int i = 0; i < 200; ++i) acceptance.record(tree, accepted, false, {.depth = 2, .width = 2});
    EXPECT_LT(acceptance.chances(0, 2)[0], 0.1);
    EXPECT_GT(acceptance.chances(1, 2)[0], 0.9);
    EXPECT_GT(acceptance.chances(1, 2)[1], 0.6) << "of a tree that is wide enough for its parent";
}

// Passes before the heads are a chain in trees of every width.
TEST(Acceptance, WidthAddsNothingToAChain) {
    TreeFamily family = family_of("tokenswift");
    family.passes = 3;
    const Acceptance acceptance(family);
    const std::vector<double> narrow = acceptance.chances(0, 4), wide = acceptance.chances(4, 4);
    for (std::size_t level = 0; level < 2; ++level) EXPECT_EQ(narrow[level], wide[level]);
    for (std::size_t level = 2; level < 4; ++level) EXPECT_LT(narrow[level], wide[level]);
}

TEST(Correction, LearnsTheSpeedAndTheShape) {
    Correction correction;
    EXPECT_DOUBLE_EQ(correction.factor(5), 1);
    for (int i = 0; i < 200; ++i) {
        correction.record(1, 1.0, 2.0);
        correction.record(8, 1.0, 3.0);
    }
    EXPECT_NEAR(correction.factor(1), 2, 0.05);
    EXPECT_NEAR(correction.factor(8), 3, 0.05);
    // Twice as fast, measured with 8 rows only: 1 row is assumed to be faster too.
    for (int i = 0; i < 200; ++i) correction.record(8, 1.0, 1.5);
    EXPECT_NEAR(correction.factor(8), 1.5, 0.05);
    EXPECT_LT(correction.factor(1), 1.7);
    correction.record(8, 1.0, 1000.0);
    EXPECT_LT(correction.factor(8), 1.75) << "one interrupted pass";
}

TEST(TreeFamily, EveryTreeOfItFitsTheGreatest) {
    for (const char* name : {"sd", "spectr", "specinfer", "rsd-c", "rsd-s", "replay"}) {
        const DraftMethod& method = find_draft_method(name);
        EXPECT_TRUE(chooses_tree(method, "auto"));
        EXPECT_FALSE(chooses_tree(method, ""));
        const TreeFamily family = tree_family(method, 1);
        const TreeShape greatest = tree_of(method, "auto");
        EXPECT_EQ(greatest.depth, family.max_depth) << name;
        EXPECT_GE(greatest.width, family.widths.back()) << name;
        EXPECT_EQ(greatest.budget, family.max_nodes) << name;
    }
    EXPECT_FALSE(chooses_tree(find_draft_method("ngram"), "auto"));
    EXPECT_EQ(tree_of(find_draft_method("ngram"), "auto").budget, 16);
    EXPECT_EQ(tree_of(find_draft_method("ar"), "auto").depth, 0);
}

// The trees respect the limits and have the number of nodes that the chooser assumes.
TEST(TreeFamily, TreesAreAsLargeAsItsCounts) {
    Distribution many;
    for (std::int32_t id = 0; id < 64; ++id) {
        many.ids.push_back(id);
        many.log_weights.push_back(0);
        many.q.push_back(1.0 / 64);
    }
    for (const char* name : {"sd", "spectr", "rsd-c", "rsd-s"}) {
        const DraftMethod& method = find_draft_method(name);
        const TreeFamily family = tree_family(method, 1);
        const auto trees = method.make_trees(tree_of(method, "auto"), 1);
        EXPECT_EQ(trees->max_depth(), family.max_depth);
        for (const std::int64_t width : family.widths) {
            TokenTree tree;
            tree.reset(0);
            const auto growth = trees->begin(tree, Noise{.key = 5}, 100, 3, width);
            while (!growth->wanted().empty()) {
                std::vector<Distribution> drafts(growth->wanted().size(), many);
                growth->grow(drafts);
            }
            EXPECT_EQ(tree.depth.back(), 3) << name;
            std::int64_t level_nodes = 1;
            for (std::int32_t depth = 1; depth <= 3; ++depth) {
                level_nodes = (family.branches ? level_nodes : 1) * family.fan_out(depth - 1, width);
                const auto nodes = std::count(tree.depth.begin(), tree.depth.end(), depth);
                const bool merged = method.draws == Draws::independent;  // chains that agree
                EXPECT_TRUE(nodes == level_nodes || (merged && nodes < level_nodes)) << name << " width " << width;
            }
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
