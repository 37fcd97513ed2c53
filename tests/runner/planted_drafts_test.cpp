// Planting a text into draft trees: how many levels of it are right, and that nothing else is.
#include "runner/bench/planted_drafts.hpp"

#include <gtest/gtest.h>

namespace longhaul::runner {
namespace {

/// Three levels of two nodes, the first of each with two children; all nodes guess the text right.
engine::TokenTree eager_tree(const std::vector<std::int32_t>& text) {
    engine::TokenTree tree;
    tree.reset(7);
    std::int32_t parent = 0;
    for (std::size_t level = 0; level < 3; ++level) {
        const std::int32_t first = tree.add(parent, text[level], engine::Origin::model);
        tree.add(parent, text[level], engine::Origin::model);
        parent = first;
    }
    return tree;
}

/// Levels of the text below the root, as the coupled rule walks.
std::int64_t right_levels(const engine::TokenTree& tree, const std::vector<std::int32_t>& text) {
    std::int32_t node = 0;
    std::int64_t levels = 0;
    while (levels < std::ssize(text)) {
        const std::int32_t child = tree.find_child(node, text[levels]);
        if (child < 0) break;
        node = child;
        ++levels;
    }
    return levels;
}

TEST(PlantedDrafts, LevelsAreRightAtTheRateThatIsAsked) {
    PlantedText text{.tokens = {0, 5, 9}, .prompt_tokens = 16, .accept = 0.6};
    constexpr int trees = 1000;
    std::vector<int> counts(4);
    for (int i = 0; i < trees; ++i) {
        engine::TokenTree tree = eager_tree(text.tokens);
        plant(tree, text, 16);
        ++counts[right_levels(tree, text.tokens)];
    }
    const std::vector<double> expected{0.4, 0.24, 0.144, 0.216};
    for (std::size_t level = 0; level < 4; ++level) {
        EXPECT_NEAR(counts[level] / static_cast<double>(trees), expected[level], 0.005) << level;
    }
}

TEST(PlantedDrafts, TheTextsEndIsTheLast) {
    PlantedText text{.tokens = {0, 5, 9}, .prompt_tokens = 16, .accept = 1};
    engine::TokenTree tree = eager_tree({5, 9, 1});
    plant(tree, text, 17);
    EXPECT_EQ(right_levels(tree, {5, 9}), 2);
    EXPECT_EQ(tree.token[5], 1) << "beyond the text nothing changes";
}

}  // namespace
}  // namespace longhaul::runner
