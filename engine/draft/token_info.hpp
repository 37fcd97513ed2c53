// Token info of a Lyanna layer (ALGORITHMS.md section 6): what a token says about the one after it. The layer's chain
// of hidden states knows no tokens; RMSNorm(up(down(E[token]))), with E the target's embedding, is added to the logits
// that a state gives. Only hot tokens have info, and only for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/draft_layer_config.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/model.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// Every rank holds all of it.
struct TokenInfoWeights {
    kernels::Matrix down;  ///< [rank, hidden]
    kernels::Matrix up;    ///< [info tokens, rank]
    Norm norm;             ///< over the info tokens
};

class TokenInfo {
  public:
    /// `target` and `weights` must outlive it.
    TokenInfo(Model& target, const DraftLayerConfig& config, const TokenInfoWeights& weights);

    /// Row i: row `rows[i]` of `logits` with the info of tokens[i]. Collective.
    [[nodiscard]] Logits added(const Logits& logits, std::span<const std::int32_t> rows,
                               std::span<const std::int32_t> tokens);
    /// The info of the tokens, f32 [tokens, info tokens], zeros for those without; valid until the next call.
    /// Collective.
    const float* rows(std::span<const std::int32_t> tokens);

    [[nodiscard]] const TokenColumns& columns() const { return columns_; }

  private:
    Model& target_;
    const TokenInfoWeights& weights_;
    std::int64_t rank_;
    TokenColumns columns_;
    std::vector<bool> has_info_;  ///< by token
    Scratch low_, wide_, normed_;
};

}  // namespace longhaul::engine
