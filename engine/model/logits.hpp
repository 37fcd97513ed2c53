// The logits of a pass. On a device that chooses tokens they stay where they were computed, and only what somebody asks
// for comes to the host: a row of a vocabulary of 128K is half a megabyte, a tree has dozens of rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// Of one pass, until the next one. The same on every rank, and not collective.
class Logits {
  public:
    Logits(kernels::Device& device, std::int64_t vocab_size) : device_(device), vocab_size_(vocab_size) {}
    Logits(const Logits&) = delete;
    Logits& operator=(const Logits&) = delete;

    [[nodiscard]] std::int64_t num_rows() const { return num_rows_; }

    /// f32 [vocab_size], in host memory until the next pass. NaNs and infinities as they came.
    [[nodiscard]] std::span<const float> row(std::int64_t row);
    /// f32 [num_rows, vocab_size].
    [[nodiscard]] std::span<const float> all();

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

    // For the model: where they are. `rows` [num_rows, vocab_size] of the host; or [num_rows, stride] of the device,
    // whose first columns count. Both stay what they are until the next call.
    void set_on_host(std::span<const float> rows);
    void set_on_device(float* rows, std::int64_t num_rows, std::int64_t stride);

  private:
    void make_room();
    [[nodiscard]] float* place_of(std::int64_t row) const { return here_.floats() + row * vocab_size_; }

    kernels::Device& device_;
    std::int64_t vocab_size_;
    std::int64_t num_rows_ = 0;
    std::span<const float> on_host_;
    float* on_device_ = nullptr;
    std::int64_t stride_ = 0;
    kernels::Staging here_;
    std::vector<bool> came_;  ///< rows of the device that are in `here_`
};

}  // namespace longhaul::engine
