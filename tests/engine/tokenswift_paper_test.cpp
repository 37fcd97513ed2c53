// The selection of TokenSwift's published code: what a draw per leaf does to the distribution, and where it does
// nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int32_t num_tokens = 6;
constexpr std::int32_t drafted = 2;

/// One distribution after every node.
class FixedTarget {
  public:
    explicit FixedTarget(const SamplingParams& sampling = {}) : pipeline_(sampling, num_tokens) {
        const std::vector<float> logits{0.3F, -0.2F, 0.5F, 0.1F, -0.4F, 0.0F};
        distribution_ = pipeline_.apply(logits, {});
    }
    [[nodiscard]] TargetDistribution after() const {
        return [this](std::int32_t) -> const Distribution& { return distribution_; };
    }
    [[nodiscard]] double probability(std::int32_t token) const { return distribution_.probability(token); }

  private:
    LogitsPipeline pipeline_;
    Distribution distribution_;
};

/// A draft of the first token, with `num_leaves` drafts of the second below it.
TokenTree fan(std::int32_t num_leaves) {
    TokenTree tree;
    tree.reset(0);
    tree.add(0, drafted, Origin::model);
    for (std::int32_t leaf = 0; leaf < num_leaves; ++leaf) tree.add(1, leaf, Origin::model);
    return tree;
}

/// The share of many texts whose first token is the drafted one.
double share_of_drafted(const FixedTarget& target, const TokenTree& tree, std::int64_t num_texts) {
    const auto rule = make_verifier(VerifyRule::tokenswift_paper);
    std::int64_t count = 0;
    for (std::int64_t text = 0; text < num_texts; ++text) {
        const Verdict verdict = rule->verify(tree, target.after(), 17, 1 + 3 * text);
        count += (verdict.nodes.empty() ? verdict.next_token : tree.token[verdict.nodes.front()]) == drafted ? 1 : 0;
    }
    return static_cast<double>(count) / static_cast<double>(num_texts);
}

// Each of m leaves draws the first token anew: the draft is missed only if all of them miss it.
TEST(TokenSwiftPaper, ADraftSharedByManyLeavesIsEmittedTooOften) {
    const FixedTarget target;
    const double q = target.probability(drafted);
    constexpr std::int64_t texts = 20000;
    for (const std::int32_t leaves : {1, 2, 5}) {
        const double expected = 1 - std::pow(1 - q, leaves);
        EXPECT_NEAR(share_of_drafted(target, fan(leaves), texts), expected,
                    4 * std::sqrt(expected * (1 - expected) / static_cast<double>(texts)))
            << leaves << " leaves";
    }
}

TEST(TokenSwiftPaper, OnePathAndGreedyDecodingAreLossless) {
    const FixedTarget greedy(SamplingParams{.temperature = 0});
    const auto rule = make_verifier(VerifyRule::tokenswift_paper);
    TokenTree tree = fan(5);  // the token after the draft is token 2, node 4
    const Verdict verdict = rule->verify(tree, greedy.after(), 17, 1);
    EXPECT_EQ(verdict.nodes, (std::vector<std::int32_t>{1, 4}));
    EXPECT_EQ(verdict.next_token, drafted);
    tree.reset(0);  // nothing was drafted
    const FixedTarget target;
    EXPECT_NEAR(share_of_drafted(target, tree, 20000), target.probability(drafted), 0.015);
}

// Of paths that agree equally far, one is taken at random, and its own draw follows.
TEST(TokenSwiftPaper, EqualPathsAreTakenAtRandom) {
    const FixedTarget target;
    TokenTree tree;
    tree.reset(0);
    tree.add(0, drafted, Origin::model);
    tree.add(0, drafted, Origin::ngram);
    const auto rule = make_verifier(VerifyRule::tokenswift_paper);
    std::int64_t first = 0, second = 0;
    for (std::int64_t text = 0; text < 4000; ++text) {
        const Verdict verdict = rule->verify(tree, target.after(), 17, 1 + 2 * text);
        if (verdict.nodes.empty()) continue;
        ++(verdict.nodes.front() == 1 ? first : second);
    }
    EXPECT_GT(first, 300);
    EXPECT_NEAR(static_cast<double>(first), static_cast<double>(second), 4 * std::sqrt(first + second));
}

}  // namespace
}  // namespace longhaul::engine
