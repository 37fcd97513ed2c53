// Tokens become rows of the residual stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/pass.hpp"

namespace longhaul::engine {

class Embedding {
  public:
    /// All are kept by the caller.
    Embedding(ComputeContext& context, const ModelConfig& config, const Split& split, const Weights& weights);

    /// x, f32 [rows, hidden]: what the first layer reads of each row. A row that enters as a hidden state is that row
    /// of `states`. Throws UsageError for text beyond the last learned position. Collective.
    void enter(std::span<const ForwardRow> rows, const HiddenStates* states, float* x);

  private:
    void embed(std::int64_t num_rows, float* x);
    [[nodiscard]] std::int32_t position_row(const ForwardRow& row) const;

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    const Weights& weights_;
    std::vector<std::int32_t> table_rows_, position_rows_;
    std::vector<std::int32_t> merged_rows_, state_rows_;
};

}  // namespace longhaul::engine
