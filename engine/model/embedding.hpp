// Embedding: first part of a forward pass. Turns token ids into rows of the residual stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/pass.hpp"
#include "engine/model/split.hpp"

namespace longhaul::engine {

class Embedding {
  public:
    /// The caller keeps all arguments alive.
    Embedding(ComputeContext& context, const ModelConfig& config, const Split& split, const Weights& weights);

    /// Writes x, f32 [rows, hidden]: the input of the first layer for each row. A row with `state` >= 0 takes that row
    /// of `states` instead of its token's embedding. Throws UsageError for text beyond the last learned position.
    /// Collective.
    void enter(std::span<const ForwardRow> rows, const HiddenStates* states, float* x);

    /// The embeddings per layer of the rows, f32 [layers, rows, layer_embedding_size], made of their tokens and of x,
    /// what `enter` wrote. Valid until the next call; nullptr if the model has none. Within a pass. Collective.
    const float* of_layers(std::span<const ForwardRow> rows, const float* x);

  private:
    void embed(std::int64_t num_rows, float* x);
    [[nodiscard]] std::int32_t table_row(const ForwardRow& row) const;
    [[nodiscard]] std::int32_t position_row(const ForwardRow& row) const;

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    const Weights& weights_;
    float scale_;  ///< on the embeddings of tokens
    std::vector<std::int32_t> table_rows_, position_rows_;
    std::vector<std::int32_t> merged_rows_, state_rows_;
    std::vector<std::int32_t> by_layer_;
};

}  // namespace longhaul::engine
