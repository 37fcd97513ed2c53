// Rotary position embedding (RoPE): cos and sin of the rotation angles at a position, as Hugging Face transformers
// computes them (modeling_rope_utils), for the scalings of RopeConfig. Used by DecoderLayers.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// RoPE frequencies of one model. Immutable and thread-safe. The steps and their roundings to float are those of
/// transformers. Elementary functions are computed in double and rounded once, so cos and sin have the same bits on
/// every machine and occasionally differ from PyTorch's by one unit in the last place.
class RopeTable {
  public:
    /// Of the layers that see all positions.
    explicit RopeTable(const ModelConfig& config) : RopeTable(config, config.rope()) {}
    RopeTable(const ModelConfig& config, const RopeConfig& rope);

    /// Writes cos and sin of `position` (from 0), each [head_dim / 2]: dimension i is rotated with i + head_dim / 2.
    /// Both include the attention factor. Pairs beyond the rotated ones get 1 and 0 (the rows of q and k are ordered so
    /// that these are the last of each half). `text_length`: positions of the whole text, which decides the frequencies
    /// of longrope.
    void fill(std::int64_t position, std::int64_t text_length, float* cos, float* sin) const;

    /// Whether a text of this length has other frequencies than short ones (longrope only).
    [[nodiscard]] bool is_long(std::int64_t text_length) const {
        return !long_frequencies_.empty() && text_length > longest_short_;
    }
    [[nodiscard]] std::int64_t num_pairs() const { return num_pairs_; }
    /// Factor on the queries at `position` (RopeConfig::score_scale and query_growth).
    [[nodiscard]] float query_factor(std::int64_t position) const;

    /// Radians per position, one per rotated pair; longrope: of texts up to original_max_positions.
    [[nodiscard]] const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    /// Attention temperature of yarn and longrope, a factor on cos and sin; 1 for all other scalings.
    [[nodiscard]] float attention_factor() const { return attention_factor_; }

  private:
    std::vector<float> inverse_frequencies_, long_frequencies_;
    std::int64_t num_pairs_ = 0;      ///< of a head
    std::int64_t longest_short_ = 0;  ///< longrope: texts beyond this length have the long frequencies
    float attention_factor_ = 1.0F;
    double query_growth_ = 0.0, score_scale_ = 1.0;
    std::int64_t query_period_ = 1;  ///< positions with the same query factor
};

/// The angles of a RopeTable, which remembers those of the first positions: the prompts of all items have them, and a
/// GPU would wait while they are computed again.
class RememberedAngles {
  public:
    /// max_positions: 16 MiB with heads of 128 dimensions, twice that with texts of both kinds of longrope.
    explicit RememberedAngles(RopeTable table, std::int64_t max_positions = 32768)
        : table_(std::move(table)), max_positions_(max_positions) {}

    [[nodiscard]] std::int64_t num_pairs() const { return table_.num_pairs(); }
    [[nodiscard]] float query_factor(std::int64_t position) const { return table_.query_factor(position); }
    /// Like RopeTable::fill.
    void fill(std::int64_t position, std::int64_t text_length, float* cos, float* sin);
    /// Of texts of this length.
    [[nodiscard]] std::int64_t num_remembered(std::int64_t text_length) const {
        return std::ssize(table_.is_long(text_length) ? long_ : short_) / (2 * table_.num_pairs());
    }

  private:
    RopeTable table_;
    std::int64_t max_positions_;
    std::vector<float> short_, long_;  ///< cos and sin of positions 0.., [position][2][num_pairs]
};

}  // namespace longhaul::engine
