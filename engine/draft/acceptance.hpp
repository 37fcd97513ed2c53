// How likely a tree's next node is accepted, by level and width: learned from the trees that were verified, the older
// ones forgotten little by little.
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

    /// A tree grown at `width`, and its accepted nodes in order. `ended`: the text ended with them, whatever might
    /// have been accepted below.
    void record(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended, std::int64_t width);

    /// For each level, from the root's children down to `depth`: the chance that a node is accepted where its parent
    /// was, in trees of width family.widths[`width`]. Never less for a greater width. `hope`: so many standard errors
    /// above what was seen.
    [[nodiscard]] std::vector<double> chances(std::size_t width, std::int64_t depth, double hope = 0) const;

    /// What was seen so far counts less from now on: drafts are tried again after a pause.
    void doubt();

    /// The most nodes of a tree that were ever accepted.
    [[nodiscard]] std::int64_t deepest() const { return deepest_; }

  private:
    /// Of levels whose parent was accepted by a tree of this width but nothing by the next narrower one.
    struct Cell {
        double trials = 0, hits = 0;
        double last_trials = 0, last_hits = 0;  ///< the same of fewer trials

        void count(bool hit);
    };
    [[nodiscard]] std::size_t narrowest_with(const TokenTree& tree, std::int32_t node, std::int64_t level) const;

    TreeFamily family_;
    std::vector<std::vector<Cell>> cells_;  ///< of a level, of a width
    std::int64_t deepest_ = 0;
};

}  // namespace longhaul::engine
