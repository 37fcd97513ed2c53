// Chooses the number of prompt rows per pass. Stop requests and messages are handled between passes, so a pass should
// end within a second. On the other hand, a fast device is underused with few rows per pass. The cost of a row depends
// on model, device and context and is learned from the passes. So is the fixed cost of a pass (KV pages that cross a
// link, drafts): if it is large, passes may be longer, so that the rows take at least half of the time. The number of
// rows does not change results. The group's first rank chooses for all.
#pragma once

#include <cstdint>

namespace longhaul::engine {

class PrefillPace {
  public:
    /// `row_flops`: operations per row on this rank. `ceiling`: maximum rows per pass.
    PrefillPace(double row_flops, std::int64_t ceiling);

    [[nodiscard]] std::int64_t rows() const { return rows_; }
    /// Records that a pass with `num_rows` prompt rows (and possibly other rows) took `seconds`.
    void took(std::int64_t num_rows, double seconds);

  private:
    void set(double rows);
    /// Estimates the fixed cost from two full passes of different sizes.
    void learn_fixed_part(std::int64_t num_rows, double seconds);

    std::int64_t ceiling_;
    std::int64_t rows_ = 0;
    std::int64_t last_rows_ = 0;  ///< of the previous full pass
    double last_seconds_ = 0;
    double fixed_seconds_ = 0;
    bool tried_more_ = false;
};

}  // namespace longhaul::engine
