// Decides when another draft node pays: it costs one more row of the target's forward pass and saves a token if it is
// accepted. Measured while decoding: seconds per pass by number of rows, tokens per second, and accepted nodes against
// those the drafter expected. Used on a group's first rank, only under `coupled`, where measured time cannot change the
// text. For drafters that estimate a probability per node (Drafter::adapts); TreeChooser serves the others.
#pragma once

#include <cstdint>

namespace longhaul::engine {

class DraftEconomy {
  public:
    /// Records a decode pass: rows, seconds, tokens emitted, draft nodes accepted, and the number of accepted nodes
    /// that the drafters expected.
    void record(std::int64_t rows, double seconds, std::int64_t tokens, std::int64_t accepted, double expected);

    /// The smallest acceptance probability, as the drafter estimates it, at which another node pays.
    [[nodiscard]] double min_probability() const;

    [[nodiscard]] double seconds_per_row() const { return slope_; }  ///< added to a pass by one more row

  private:
    // Exponentially weighted sums over the passes, for a line fit of (rows, seconds) and for tokens per second.
    double weight_ = 0, rows_ = 0, seconds_ = 0, rows_squared_ = 0, rows_seconds_ = 0, tokens_ = 0;
    double accepted_ = 0, expected_ = 0;
    double slope_ = 0;
    std::int64_t passes_ = 0;
};

}  // namespace longhaul::engine
