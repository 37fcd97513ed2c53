// Logits of a forward pass, produced by OutputHead and read by verifiers and drafters. On a device that chooses tokens
// itself they stay in device memory, and only requested rows are copied to the host: a row of a vocabulary of 128K is
// half a megabyte, and a tree has dozens of rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/result_memory.hpp"
#include "kernels/device.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// Some tokens of a vocabulary.
class TokenColumns {
  public:
    TokenColumns() = default;
    /// `tokens`: distinct.
    TokenColumns(kernels::Device& device, std::vector<std::int32_t> tokens);
    [[nodiscard]] const std::vector<std::int32_t>& tokens() const { return tokens_; }
    [[nodiscard]] std::int64_t size() const { return std::ssize(tokens_); }
    [[nodiscard]] const std::int32_t* on_device() const { return there_.as<std::int32_t>(); }

  private:
    std::vector<std::int32_t> tokens_;
    kernels::Buffer there_;
};

/// So far below every other logit that a token with it has probability 0, at every temperature.
constexpr float absent_logit = -1e20F;

/// Owns its memory. Same contents on every rank. Not collective.
class Logits {
  public:
    /// No rows.
    Logits(kernels::Device& device, std::int64_t vocab_size) : device_(&device), vocab_size_(vocab_size) {}
    /// `rows`: f32 [num_rows, vocab_size] in memory that the host can read: a device buffer or staging memory.
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows);
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledStaging rows);
    /// `rows`: f32 [num_rows, stride] in memory of a device that chooses tokens; only the first `vocab_size` columns
    /// are used. Rows copied to the host use memory of `staging`.
    Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows,
           std::int64_t stride, PooledStaging::Pool staging);

    [[nodiscard]] std::int64_t num_rows() const { return num_rows_; }

    /// f32 [vocab_size] in host memory, valid while this object lives. NaN and infinity are not filtered. Copies the
    /// row from the device on first use.
    [[nodiscard]] std::span<const float> row(std::int64_t row) &;
    /// f32 [num_rows, vocab_size] in host memory, as `row`.
    [[nodiscard]] std::span<const float> all() &;

    /// Whether `choose`, `draw` and `decide` may be called.
    [[nodiscard]] bool can_choose() const { return on_device_ != nullptr; }
    /// One token per choice; -1: the caller must choose from the row itself.
    [[nodiscard]] std::vector<std::int32_t> choose(std::span<const kernels::Choice> choices);
    /// As TokenChooser::draw, over the first `vocab_size` tokens: [choices, 1 + count].
    [[nodiscard]] std::vector<kernels::Drawn> draw(std::span<const kernels::Choice> choices, std::int64_t count,
                                                   std::int64_t vocab_size);

    /// Row i: row `rows[i]` of these, plus added[i, j] for token `columns[j]`. added: f32 [rows, columns] in device
    /// memory.
    [[nodiscard]] Logits with_added(std::span<const std::int32_t> rows, const float* added,
                                    const TokenColumns& columns) const;

    /// For logits of a draft's own vocabulary, whose token i is `columns[i]`: the same over `vocab_size` tokens, of
    /// which the others have `absent_logit`. floor: f32 [vocab_size] in device memory, 0 for the columns, else
    /// `absent_logit`.
    [[nodiscard]] Logits widened(const TokenColumns& columns, std::int64_t vocab_size,
                                 const kernels::Buffer& floor) const;

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
    PooledStaging here_;  ///< all rows on the host, or space for them
    PooledStaging::Pool staging_;
    const float* on_host_ = nullptr;  ///< all rows (`rows_` or `here_`), if the host can read them; else nullptr
    float* on_device_ = nullptr;      ///< `rows_`, if the device chooses tokens; else nullptr
    std::int64_t stride_ = 0;
    std::vector<bool> came_;  ///< by row: whether it has been copied to `here_`
};

}  // namespace longhaul::engine
