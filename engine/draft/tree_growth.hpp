// How draft language models' trees grow, level by level (algorithms.md section 4). Who runs the models, and on what, is
// not known here: distributions come from outside, so the same code is tested on tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

/// One tree while it grows.
class TreeGrowth {
  public:
    virtual ~TreeGrowth() = default;

    /// A draft distribution that the next level needs: model `model`'s, after `node`.
    struct Wanted {
        std::int32_t node = 0;
        std::int32_t model = 0;
        bool operator==(const Wanted&) const = default;
    };
    /// What the next level needs, nodes ascending within a model; empty: the tree is complete.
    [[nodiscard]] virtual std::span<const Wanted> wanted() const = 0;

    /// Draws that `grow` takes of each of wanted() under the noise of each of its lanes: these tokens and the most
    /// probable one will do in the place of a whole distribution (distribution_of). 0: they will not do.
    [[nodiscard]] virtual std::int64_t num_draws() const { return 0; }
    [[nodiscard]] virtual std::span<const std::uint32_t> lanes_of(std::size_t /*wanted*/) const {
        static constexpr std::uint32_t first = 0;
        return {&first, 1};
    }

    /// Adds the next level to the tree. `drafts`: with q, of wanted(), in its order; the tree may take them. Fewer
    /// children than asked for where filters left fewer tokens.
    virtual void grow(std::span<Distribution> drafts) = 0;
};

/// A draft method over language models: the shape of its trees, and how their tokens are drawn.
class TreeMethod {
  public:
    virtual ~TreeMethod() = default;
    /// `tree` holds its root and must outlive the growth; `position`: absolute, of the token that follows the root.
    /// `max_width`: as TreeFamily counts it.
    [[nodiscard]] virtual std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                            std::int64_t max_depth,
                                                            std::int64_t max_width = TreeLimits::none) const = 0;
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
};

/// K chains of L tokens, each drawn from its model alone (chain k from model k mod `num_models`): SD (K = 1), SpecTr,
/// SpecInfer. Chains are merged where they agree; each stays a trial of its own.
std::unique_ptr<TreeMethod> make_chains(std::int64_t num_chains, std::int64_t length, std::int64_t num_models);

/// RSD-C: each node of level l has `branching[l]` children, drawn without replacement.
std::unique_ptr<TreeMethod> make_rsd_c(std::vector<std::int64_t> branching);

/// RSD-S: stochastic beam search; `width` nodes a level, `depth` levels, drawn as whole sequences without replacement.
std::unique_ptr<TreeMethod> make_rsd_s(std::int64_t width, std::int64_t depth);

/// Adds what a draw gave as a child of `parent`, as a trial from `tree.drafts[draft]` where the drafts are sampled
/// (`draft` < 0: they are not); the node.
std::int32_t add_draw(TokenTree& tree, std::int32_t parent, std::int32_t token, double probability, std::int32_t draft);

/// Takes `drafted` for the verifier where `noise` asks for that; its index, else -1.
std::int32_t keep_draft(TokenTree& tree, const Noise& noise, Distribution& drafted);

}  // namespace longhaul::engine
