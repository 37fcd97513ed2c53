// Token tree: draft tokens below the newest token of a sequence. A Drafter builds it, a forward pass evaluates all its
// nodes, and a Verifier accepts one path from the root.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/distribution.hpp"

namespace longhaul::engine {

/// Source of a draft; the statistics report acceptance per source.
enum class Origin : std::uint8_t { root, ngram, replay, model, resampled };

/// One draft drawn during sampling: `child` drawn under `parent`. Two draws may give the same child.
struct Trial {
    std::int32_t parent = 0, child = 0;
    std::int32_t draft = 0;  ///< index into TokenTree::drafts: the distribution it was drawn from
};

/// Nodes in level order. Node 0 is the root: the newest token of the sequence, already emitted but not yet in the KV
/// cache.
struct TokenTree {
    std::vector<std::int32_t> token;
    std::vector<std::int32_t> parent;  ///< index of an earlier node; -1 for the root
    std::vector<std::int32_t> depth;   ///< 0 for the root
    std::vector<Origin> origin;        ///< who added the node
    std::vector<bool> by_ngram;        ///< whether an n-gram proposes it, also where another draft added it
    std::vector<float>
        probability;  ///< the drafter's estimate of the probability that the node is accepted (1 for the root)

    // Set only if the drafts were sampled for a sampling rule. Otherwise the children of a node are deterministic
    // drafts, each with a one-hot distribution, tried in node order.
    std::vector<Distribution> drafts;  ///< with q (probabilities) filled in
    std::vector<Trial> trials;         ///< those of one parent are in draw order
    bool sampled = false;

    /// Whether it has drafts, and all are of this origin.
    [[nodiscard]] bool is_all_from(Origin from) const {
        return num_nodes() > 1 && std::all_of(origin.begin() + 1, origin.end(), [&](Origin o) { return o == from; });
    }
    [[nodiscard]] std::int32_t num_nodes() const { return static_cast<std::int32_t>(token.size()); }

    void reset(std::int32_t root_token) {
        token.assign(1, root_token);
        parent.assign(1, -1);
        depth.assign(1, 0);
        origin.assign(1, Origin::root);
        by_ngram.assign(1, false);
        probability.assign(1, 1.0F);
        drafts.clear();
        trials.clear();
        sampled = false;
    }

    std::int32_t add(std::int32_t parent_node, std::int32_t token_id, Origin from, double accepted = 0) {
        token.push_back(token_id);
        parent.push_back(parent_node);
        depth.push_back(depth[parent_node] + 1);
        origin.push_back(from);
        by_ngram.push_back(from == Origin::ngram);
        probability.push_back(static_cast<float>(accepted));
        return num_nodes() - 1;
    }

    /// Keeps the root and `nodes`, in this order: parents before their children. Of a tree that was not sampled.
    void keep(std::span<const std::int32_t> nodes);
    /// Removes the nodes from `first` on, of a tree that was not sampled.
    void cut(std::int32_t first);

    /// Adds the most probable nodes of a tree with the same root that are not here yet, at most `max_new`, as `from`,
    /// and sorts all into level order. In `other` no node may be more probable than its parent. Neither may be sampled.
    void merge(const TokenTree& other, Origin from, std::int64_t max_new);

    /// Nodes on the path from the root (excluded) to `node` (included), in order; empty for the root.
    [[nodiscard]] std::vector<std::int32_t> path_to(std::int32_t node) const {
        std::vector<std::int32_t> path(static_cast<std::size_t>(depth[node]));
        for (auto at = path.rbegin(); at != path.rend(); ++at) {
            *at = node;
            node = parent[node];
        }
        return path;
    }

    /// Scratch KV slots of these nodes: node i uses slot i - 1.
    [[nodiscard]] static std::vector<std::int32_t> slots_of(std::vector<std::int32_t> nodes) {
        for (std::int32_t& node : nodes) --node;
        return nodes;
    }

    /// The first child of `node` with token `token_id`; -1: none.
    [[nodiscard]] std::int32_t find_child(std::int32_t node, std::int32_t token_id) const;

    /// Levels that have one node each, of an n-gram, before the first other node.
    [[nodiscard]] std::int64_t ngram_chain() const;

    /// Whether any node has more than one child.
    [[nodiscard]] bool branches() const;
};

/// Sorts nodes that were added in any order (parents before children) into level order. Keeps the order of nodes within
/// a level.
void sort_by_level(TokenTree& tree);

}  // namespace longhaul::engine
