// The selection of TokenSwift's published code (ALGORITHMS.md section 5, "Verify"), for comparison only: it is not
// lossless. Every leaf draws the target's token at each node of its path separately; one of the paths that agree
// longest is taken, at random. A node that many leaves share is drawn as often, and the lucky draw is kept, so likely
// drafts are accepted more often than the target would draw them. In the published code an n-gram that equals a path of
// the heads is one more leaf, with one more draw; here it is the same leaf.
#include <algorithm>

#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {
namespace {

class PublishedTokenSwift final : public Verifier {
  public:
    [[nodiscard]] bool needs_probabilities() const override { return false; }
    [[nodiscard]] Verdict verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                                 std::int64_t position) const override;
};

/// How far the draws of one leaf agree with its path.
struct Agreement {
    std::int32_t leaf = 0;
    std::int32_t node = 0;   ///< the last node that agrees
    std::int32_t token = 0;  ///< drawn there
    bool goes_on = true;
};

std::vector<Agreement> leaves_of(const TokenTree& tree) {
    std::vector<bool> has_children(tree.token.size());
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) has_children[tree.parent[node]] = true;
    std::vector<Agreement> leaves;
    for (std::int32_t node = 0; node < tree.num_nodes(); ++node)
        if (!has_children[node]) leaves.push_back({.leaf = node});
    return leaves;
}

Verdict PublishedTokenSwift::verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                                    std::int64_t position) const {
    std::vector<Agreement> leaves = leaves_of(tree);
    // In level order: a node's distribution is computed once, for all leaves that have reached it.
    for (std::int32_t node = 0; node < tree.num_nodes(); ++node) {
        const Distribution* drawn_from = nullptr;
        for (Agreement& at : leaves) {
            if (!at.goes_on || at.node != node) continue;
            if (drawn_from == nullptr) drawn_from = &target(node);
            const NoiseRow noise(noise_key, position + tree.depth[node], Purpose::accept,
                                 static_cast<std::uint32_t>(at.leaf), static_cast<std::uint32_t>(node));
            at.token = gumbel_argmax(*drawn_from, noise);
            const std::vector<std::int32_t> path = tree.path_to(at.leaf);
            const auto depth = static_cast<std::size_t>(tree.depth[node]);
            at.goes_on = depth < path.size() && tree.token[path[depth]] == at.token;
            if (at.goes_on) at.node = path[depth];
        }
    }
    const auto depth = [&](const Agreement& at) { return tree.depth[at.node]; };
    const std::int32_t longest = depth(*std::max_element(
        leaves.begin(), leaves.end(), [&](const Agreement& a, const Agreement& b) { return depth(a) < depth(b); }));
    std::erase_if(leaves, [&](const Agreement& at) { return depth(at) < longest; });
    const double number = uniform(noise_key, position, Purpose::residual, 0);
    const Agreement& taken = leaves[static_cast<std::size_t>(number * static_cast<double>(leaves.size()))];
    return {.nodes = tree.path_to(taken.node), .next_token = taken.token};
}

}  // namespace

std::unique_ptr<Verifier> make_published_tokenswift() {
    return std::make_unique<PublishedTokenSwift>();
}

}  // namespace longhaul::engine
