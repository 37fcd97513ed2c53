// Coupled verification: for any tree, the tokens are those of autoregressive decoding.
#include <gtest/gtest.h>

#include <random>

#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int32_t vocab = 5;

/// A toy target: the distribution depends on the last two tokens.
class Toy {
  public:
    const Distribution& after(std::int32_t before, std::int32_t last) {
        std::vector<float> logits(vocab);
        for (std::int32_t v = 0; v < vocab; ++v)
            logits[static_cast<std::size_t>(v)] = static_cast<float>((before * 7 + last * 3 + v * v) % 5);
        return pipeline_.apply(logits, {});
    }

  private:
    LogitsPipeline pipeline_{SamplingParams{}, vocab};
};

std::vector<std::int32_t> autoregressive(Toy& toy, std::uint64_t key, int count) {
    std::vector<std::int32_t> text = {0, 1};
    for (int i = 0; i < count; ++i) {
        text.push_back(gumbel_argmax(toy.after(text[text.size() - 2], text.back()),
                                     NoiseRow(key, static_cast<std::int64_t>(text.size()))));
    }
    return text;
}

TEST(Coupled, EmitsAutoregressiveTextUnderAnyTree) {
    std::mt19937 random(12);
    Toy toy;
    const CoupledVerifier verifier;
    int accepted = 0;
    int rejected = 0;
    for (std::uint64_t key = 0; key < 40; ++key) {
        const std::vector<std::int32_t> expected = autoregressive(toy, key, 60);
        std::vector<std::int32_t> text = {0, 1};
        while (text.size() < 55) {
            TokenTree tree;
            tree.reset(text.back());
            for (std::uint32_t n = random() % 12; n > 0; --n) {  // random parents, duplicate siblings included
                const auto parent = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(tree.num_nodes()));
                tree.add(parent, static_cast<std::int32_t>(random() % vocab), Origin::ngram);
            }
            sort_by_level(tree);
            const auto target = [&](std::int32_t node) -> const Distribution& {
                std::vector<std::int32_t> all = text;
                for (const std::int32_t above : tree.path_to(node))
                    all.push_back(tree.token[static_cast<std::size_t>(above)]);
                return toy.after(all[all.size() - 2], all.back());
            };
            const Verdict verdict = verifier.verify(tree, target, key, static_cast<std::int64_t>(text.size()));
            for (const std::int32_t node : verdict.nodes) text.push_back(tree.token[static_cast<std::size_t>(node)]);
            text.push_back(verdict.next_token);
            accepted += static_cast<int>(verdict.nodes.size());
            rejected += tree.num_nodes() - 1 - static_cast<int>(verdict.nodes.size());
        }
        for (std::size_t i = 0; i < 55; ++i) ASSERT_EQ(text[i], expected[i]) << "key " << key << " token " << i;
    }
    EXPECT_GT(accepted, 300);
    EXPECT_GT(rejected, 300);
}

}  // namespace
}  // namespace longhaul::engine
