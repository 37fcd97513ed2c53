// Latent attention (LatentConfig) on one rank: from a layer's input to queries, keys and values of one shared KV head,
// and from the sums of values back to heads. Used by DecoderLayers.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/config.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// The shared KV head has kv_rank + rope_dim dimensions. Of a key, and of each head's query, dimension i of the first
/// rope_dim / 2 is rotated with i + head_dim / 2; the other dimensions are the latent, in its order. A value is the
/// latent, then dimensions that no projection reads.
class LatentAttention {
  public:
    LatentAttention(ComputeContext& context, const ModelConfig& config, const Split& split)
        : context_(context), latent_(config.latent), head_dim_(config.head_dim), num_heads_(split.num_heads) {}

    /// What rope_store takes, f32 [num_rows, (heads + 2) * head_dim], of a layer's input, act [num_rows, hidden].
    const float* project(const LatentWeights& w, const std::byte* input, std::int64_t num_rows);

    /// Input of the output projection, act [num_rows, width], of what attention gives, act [num_rows, heads *
    /// head_dim].
    const std::byte* values(const LatentWeights& w, const std::byte* attended, std::int64_t num_rows,
                            std::int64_t width);

    /// Bytes that the two use for `num_rows` rows.
    static std::int64_t bytes(const LatentConfig& latent, const Split& split, std::int64_t num_rows);

  private:
    /// Row numbers for the copies of passes of up to `capacity` rows, which are a power of two: a pass of fewer rows
    /// uses the first of them.
    struct Units {
        kernels::Buffer of_queries;  ///< units of the projections, in the order of `project`'s result
        kernels::Buffer of_values;   ///< rows of value_dim of all heads, likewise
    };
    const Units& units_for(std::int64_t capacity);
    [[nodiscard]] std::int64_t unit() const { return latent_.rope_dim / 2; }  ///< what is moved at a time

    ComputeContext& context_;
    const LatentConfig& latent_;
    std::int64_t head_dim_, num_heads_;
    std::vector<Units> units_;  ///< by the logarithm of the capacity
};

}  // namespace longhaul::engine
