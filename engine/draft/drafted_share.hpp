// How much is drafted of the trees that are asked for, by level: drafters leave out what seems not to pay. Used by
// TreeChooser, whose candidates would otherwise cost more than they do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/token_tree.hpp"

namespace longhaul::engine {

class DraftedShare {
  public:
    explicit DraftedShare(std::int64_t max_depth) : levels_(static_cast<std::size_t>(max_depth)) {}

    /// Called for each tree of a step. `levels`: those that the drafter worked for, below the n-grams that begin the
    /// tree, whether or not their nodes stayed in it. Trees that are what was left of earlier drafts do not count.
    void count(const TokenTree& tree, std::int64_t levels);
    /// Called once all trees of a step are counted. `asked`: for each level that was asked for, its nodes in one tree.
    void end_step(std::span<const std::int64_t> asked);

    /// Of the step that is being counted: levels that the drafter worked for in some tree, and mean number of nodes of
    /// models in a tree.
    [[nodiscard]] std::int64_t levels_in_step() const { return levels_in_step_; }
    [[nodiscard]] double nodes_per_tree() const {
        return trees_ > 0 ? static_cast<double>(nodes_in_step_) / static_cast<double>(trees_) : 0;
    }

    struct Share {
        double nodes = 1;   ///< of the nodes asked for
        double passes = 1;  ///< of the steps: those that worked for the level
    };
    /// What is drafted of a level, if it is asked for. Below the levels that ever were, as much is left out per level
    /// as in the deepest of them.
    [[nodiscard]] Share expected(std::int64_t level) const;

  private:
    struct Level {
        Share share;
        int seen = 0;
        std::int64_t nodes_in_step = 0;
    };
    std::vector<Level> levels_;
    std::int64_t levels_in_step_ = 0, nodes_in_step_ = 0, trees_ = 0;
};

}  // namespace longhaul::engine
