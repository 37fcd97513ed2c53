// Rotary position embedding: the angles by which pairs of a head's dimensions turn at a position, as Hugging Face
// transformers computes them (modeling_rope_utils), for the scalings that RopeConfig names.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// Frequencies of one model. Immutable: any thread may use it. The steps and their roundings to float are those of
/// transformers; the elementary functions inside are computed in double and rounded once, so cos and sin have the same
/// bits on every machine, and differ from PyTorch's by one unit in the last place here and there.
class RopeTable {
  public:
    explicit RopeTable(const ModelConfig& config);

    /// Writes cos and sin of `position` (from 0), each [head_dim / 2]: dimension i turns with i + head_dim / 2. Both
    /// are already multiplied by the attention factor.
    void fill(std::int64_t position, float* cos, float* sin) const;

    /// Radians a position, [head_dim / 2].
    [[nodiscard]] const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    /// YaRN's temperature of attention, a factor on cos and sin; 1 for all other scalings.
    [[nodiscard]] float attention_factor() const { return attention_factor_; }

  private:
    std::vector<float> inverse_frequencies_;
    float attention_factor_ = 1.0F;
};

}  // namespace longhaul::engine
