// When a draft pays. A node of a tree costs one more row of the target's pass; it earns a token if it is accepted.
// Measured while decoding: what a pass of n rows takes, what a token costs now, and how often drafts keep what their
// drafter expected of them. Used on a group's first rank; under `coupled` it cannot change the text, so it may depend
// on time. For drafters that know a chance for each node; where only the tree's shape can be chosen, TreeChooser does.
#pragma once

#include <cstdint>

namespace longhaul::engine {

class DraftEconomy {
  public:
    /// A decoding pass: rows, seconds, tokens it emitted, draft nodes accepted, and how many its drafters expected.
    void record(std::int64_t rows, double seconds, std::int64_t tokens, std::int64_t accepted, double expected);

    /// The least probability, in the drafter's own estimate, at which another node pays.
    [[nodiscard]] double min_probability() const;

    [[nodiscard]] double seconds_per_row() const { return slope_; }  ///< that one more row adds to a pass

  private:
    // Exponentially weighted sums of the passes: a line through (rows, seconds), and tokens a second.
    double weight_ = 0, rows_ = 0, seconds_ = 0, rows_squared_ = 0, rows_seconds_ = 0, tokens_ = 0;
    double accepted_ = 0, expected_ = 0;
    double slope_ = 0;
    std::int64_t passes_ = 0;
};

}  // namespace longhaul::engine
