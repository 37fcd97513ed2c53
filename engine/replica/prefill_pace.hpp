// How many rows of a prompt a pass takes. Between passes the replica hears stop requests and others' messages, so a
// pass should end within a second; and on a device that computes thousands of rows in that time, fewer waste it. What a
// row costs depends on the model, the device and the context, so it is learned from the passes themselves; and so is
// what any pass costs, however few its rows are (keys and values that cross a link, drafts): rows take as long as that
// at least, where it is much. Rows do not change results; the group's first rank counts for all.
#pragma once

#include <cstdint>

namespace longhaul::engine {

class PrefillPace {
  public:
    /// Of a model whose row takes `row_flops` operations on this rank. `ceiling`: rows of a pass at most.
    PrefillPace(double row_flops, std::int64_t ceiling);

    [[nodiscard]] std::int64_t rows() const { return rows_; }
    /// A pass with `num_rows` rows of prompts, whatever else it computed, took so long.
    void took(std::int64_t num_rows, double seconds);

  private:
    void set(double rows);
    /// From two full passes of different sizes.
    void learn_fixed_part(std::int64_t num_rows, double seconds);

    std::int64_t ceiling_;
    std::int64_t rows_ = 0;
    std::int64_t last_rows_ = 0;  ///< of the full pass before
    double last_seconds_ = 0;
    double fixed_seconds_ = 0;
    bool tried_more_ = false;
};

}  // namespace longhaul::engine
