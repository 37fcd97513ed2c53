// Linear attention (LinearAttentionConfig) on one rank: from a layer's input to the input of its output projection.
// Used by DecoderLayers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/compute_context.hpp"
#include "engine/model/config.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

class LinearAttention {
  public:
    LinearAttention(ComputeContext& context, const ModelConfig& config, const Split& split)
        : context_(context),
          all_heads_(config.linear.num_value_heads),
          heads_per_norm_(all_heads_ / config.linear.num_groups),
          rank_(split.rank) {}

    /// Input of the output projection, act [num_rows, width], of a layer's input, act [num_rows, hidden], for all rows
    /// of the pass. `layer`: index in the layout's group. Changes the states of the sequences.
    const std::byte* attend(const LinearWeights& w, const kernels::KvLayout& layout, std::int64_t layer,
                            const std::byte* input, std::int64_t num_rows, std::int64_t width);

  private:
    const std::byte* norm_and_gate(const LinearWeights& w, const kernels::DeltaShape& shape, const float* gates,
                                   std::int64_t stride, float* out, std::int64_t num_rows, std::int64_t width);
    const std::byte* gate_and_norm(const LinearWeights& w, const kernels::DeltaShape& shape, const float* gates,
                                   std::int64_t stride, float* out, std::int64_t num_rows, std::int64_t width);

    ComputeContext& context_;
    std::int64_t all_heads_;       ///< value heads of all ranks
    std::int64_t heads_per_norm_;  ///< Mamba-2
    std::int64_t rank_;
};

}  // namespace longhaul::engine
