// The logits of a pass. On a device that chooses tokens they stay where they were computed, and only what somebody asks
// for comes to the host: a row of a vocabulary of 128K is half a megabyte, a tree has dozens of rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/result_memory.hpp"
#include "kernels/device.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// Owns its memory. The same on every rank, and not collective.
class Logits {
  public:
    /// Of no rows.
    Logits(kernels::Device& device, std::int64_t vocab_size) : device_(&device), vocab_size_(vocab_size) {}
    /// f32 [num_rows, vocab_size] in `rows`, memory that the host reads: of the device or of staging.
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows);
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledStaging rows);
    /// f32 [num_rows, stride] of a device that chooses tokens, whose first columns count. What comes to the host goes
    /// to memory of `staging`.
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows,
           std::int64_t stride, PooledStaging::Pool staging);

    [[nodiscard]] std::int64_t num_rows() const { return num_rows_; }

    /// f32 [vocab_size], in host memory as long as this lives. NaNs and infinities as they came.
    [[nodiscard]] std::span<const float> row(std::int64_t row) &;
    /// f32 [num_rows, vocab_size].
    [[nodiscard]] std::span<const float> all() &;

    /// Whether `choose`, `draw` and `decide` may be called.
    [[nodiscard]] bool can_choose() const { return on_device_ != nullptr; }
    /// A token a choice; -1: whoever asks must decide by the row.
    [[nodiscard]] std::vector<std::int32_t> choose(std::span<const kernels::Choice> choices);
    /// As TokenChooser::draw, of the first `vocab_size` tokens: [choices, 1 + count].
    [[nodiscard]] std::vector<kernels::Drawn> draw(std::span<const kernels::Choice> choices, std::int64_t count,
                                                   std::int64_t vocab_size);

    /// As TokenChooser::decide.
    [[nodiscard]] std::vector<kernels::Decided> decide(kernels::TrialRule rule,
                                                       std::span<const kernels::NodeTrials> nodes);

  private:
    void make_room();
    [[nodiscard]] float* place_of(std::int64_t row) const { return here_.floats() + row * vocab_size_; }

    kernels::Device* device_;
    std::int64_t vocab_size_;
    std::int64_t num_rows_ = 0;
    PooledBuffer rows_;
    PooledStaging here_;  ///< all rows on the host, or room for them
    PooledStaging::Pool staging_;
    const float* on_host_ = nullptr;  ///< `rows_` or `here_`, where the host reads all of it;
    float* on_device_ = nullptr;      ///< else `rows_`
    std::int64_t stride_ = 0;
    std::vector<bool> came_;  ///< rows of the device that are in `here_`
};

}  // namespace longhaul::engine
