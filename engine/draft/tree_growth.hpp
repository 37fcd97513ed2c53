// How the trees of draft language models grow, level by level (ALGORITHMS.md section 4). The caller (model_trees.cpp)
// runs the models and passes in distributions, so tests run the same code on tables of probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

/// A tree that is being grown.
class TreeGrowth {
  public:
    virtual ~TreeGrowth() = default;

    /// A draft distribution needed for the next level: that of model `model` after `node`.
    struct Wanted {
        std::int32_t node = 0;
        std::int32_t model = 0;
        bool operator==(const Wanted&) const = default;
    };
    /// The distributions needed for the next level, nodes ascending within a model. Empty: the tree is complete.
    [[nodiscard]] virtual std::span<const Wanted> wanted() const = 0;

    /// Number of tokens that `grow` draws from each of wanted(), with the noise of each of its lanes. If it is not 0,
    /// `grow` accepts these tokens and the most probable one (distribution_of) in place of a complete distribution. 0:
    /// it needs complete distributions.
    [[nodiscard]] virtual std::int64_t num_draws() const { return 0; }
    [[nodiscard]] virtual std::span<const std::uint32_t> lanes_of(std::size_t /*wanted*/) const {
        static constexpr std::uint32_t first = 0;
        return {&first, 1};
    }

    /// Adds the next level to the tree. `drafts`: the distributions of wanted(), in its order, with q; they may be
    /// moved into the tree. A node gets fewer children if the filters left fewer tokens.
    virtual void grow(std::span<Distribution> drafts) = 0;
};

/// A draft method over language models: the shape of its trees and how their tokens are drawn.
class TreeMethod {
  public:
    virtual ~TreeMethod() = default;
    /// `tree` holds its root, or a chain that begins there, and must outlive the result; the tree grows below the last
    /// node. `position`: absolute position of the token after that node. `max_width`: a width as in TreeFamily.
    /// `prices`: for a method that estimates the chances of its nodes.
    [[nodiscard]] virtual std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                            std::int64_t max_depth,
                                                            std::int64_t max_width = TreeLimits::none,
                                                            const TreePrices& prices = {}) const = 0;
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
};

/// K chains of L tokens, drawn independently (chain k from model k mod `num_models`): SD (K = 1), SpecTr, SpecInfer.
/// Chains with a common prefix share nodes, but each draw remains a separate trial.
std::unique_ptr<TreeMethod> make_chains(std::int64_t num_chains, std::int64_t length, std::int64_t num_models);

/// RSD-C: each node of level l (root: 0) has `branching[l]` children, drawn without replacement.
std::unique_ptr<TreeMethod> make_rsd_c(std::vector<std::int64_t> branching);

struct BeamOptions {
    std::int64_t width = 1, depth = 1;
    std::int64_t max_nodes = std::int64_t{1} << 30;  ///< lower levels get fewer nodes, or none
    /// Typical distance of the target's log-probabilities from the draft's. If it is not 0 and the noise is the
    /// target's, TokenTree::probability is the chance that the target draws the node.
    double scatter = 0;
};

/// RSD-S: stochastic beam search with `width` nodes per level and `depth` levels. Draws whole sequences without
/// replacement.
std::unique_ptr<TreeMethod> make_rsd_s(const BeamOptions& beams);

/// EAGLE-2: the best `max_nodes` of all candidates; `width` nodes per level are expanded, into as many children each.
std::unique_ptr<TreeMethod> make_dynamic_tree(const BeamOptions& options);

/// The probability that the target draws each of these tokens (BeamOptions::scatter).
std::vector<double> winning_chances(std::span<const Perturbed> draws, double scatter);

/// Adds a drawn token as a child of `parent`, unless a child already carries it, and returns the node. If `draft` >= 0,
/// also records the draw as a trial from `tree.drafts[draft]`.
std::int32_t add_draw(TokenTree& tree, std::int32_t parent, std::int32_t token, double probability, std::int32_t draft);

/// If the verifier needs the draft distributions (Noise::is_own), moves `drafted` into `tree.drafts` and returns its
/// index; else -1.
std::int32_t keep_draft(TokenTree& tree, const Noise& noise, Distribution& drafted);

}  // namespace longhaul::engine
