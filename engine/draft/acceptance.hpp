// Estimates the acceptance probability of draft tree nodes by level and tree width, from verified trees. Older trees
// count exponentially less. Used by TreeChooser.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

class Acceptance {
  public:
    explicit Acceptance(TreeFamily family);

    /// Records a verified tree grown within `limits` and its accepted nodes, in order. They include the n-grams that
    /// the tree begins with; levels count from there. A level that the drafter left out, because it seemed not to pay
    /// or to leave room for the n-grams, counts as a miss. `ended`: the text ended with the accepted nodes, so the
    /// level below them counts neither as accepted nor as rejected. Returns false, and counts nothing, if the text did
    /// not get to the end of these n-grams.
    bool record(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended, const TreeLimits& limits);

    /// For each level, from the root's children down to `depth`: the probability that a node of the level is accepted
    /// given that its parent was, in trees of width family.widths[`width`]. Does not decrease with the width. `hope`:
    /// standard errors added to the estimate of the narrowest width.
    [[nodiscard]] std::vector<double> chances(std::size_t width, std::int64_t depth, double hope = 0) const;

    /// Reduces the weight of everything recorded so far. Called before drafts are tried again after a pause.
    void doubt();

    /// The largest number of nodes of one tree that were ever accepted.
    [[nodiscard]] std::int64_t deepest() const { return deepest_; }

  private:
    /// Counts of one level and one width i. A trial: the accepted path lies in the tree of width i, and the level has
    /// no accepted node in the next narrower tree. A hit: the tree of width i has the accepted node.
    struct Cell {
        double trials = 0, hits = 0;
        double last_trials = 0, last_hits = 0;  ///< the same with a shorter memory

        void count(bool hit);
    };
    [[nodiscard]] std::int64_t fan_out(std::size_t level, std::size_t width) const;
    [[nodiscard]] std::size_t narrowest_with(const TokenTree& tree, std::int32_t node, std::int64_t level) const;

    TreeFamily family_;
    std::vector<std::vector<Cell>> cells_;  ///< [level][width]
    std::int64_t deepest_ = 0;
};

}  // namespace longhaul::engine
