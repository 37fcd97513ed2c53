// Rotary position embedding (RoPE): cos and sin of the rotation angles at a position, as Hugging Face transformers
// computes them (modeling_rope_utils), for the scalings of RopeConfig. Used by DecoderLayers.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// RoPE frequencies of one model. Immutable and thread-safe. The steps and their roundings to float are those of
/// transformers. Elementary functions are computed in double and rounded once, so cos and sin have the same bits on
/// every machine and occasionally differ from PyTorch's by one unit in the last place.
class RopeTable {
  public:
    explicit RopeTable(const ModelConfig& config);

    /// Writes cos and sin of `position` (from 0), each [head_dim / 2]: dimension i is rotated with i + head_dim / 2.
    /// Both include the attention factor.
    void fill(std::int64_t position, float* cos, float* sin) const;

    /// Radians per position, [head_dim / 2].
    [[nodiscard]] const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    /// YaRN's attention temperature, a factor on cos and sin; 1 for all other scalings.
    [[nodiscard]] float attention_factor() const { return attention_factor_; }

  private:
    std::vector<float> inverse_frequencies_;
    float attention_factor_ = 1.0F;
};

}  // namespace longhaul::engine
