// Options of the logits pipeline (ALGORITHMS.md section 1), as set by the user.
#pragma once

#include <cstdint>
#include <span>

namespace longhaul::engine {

class DryBreakers;
class TokenConstraint;

/// Options of DRY (dry.hpp).
struct DryParams {
    double multiplier = 0;            ///< 0: off
    double base = 1.75;               ///< >= 1
    std::int64_t allowed_length = 2;  ///< a match of fewer tokens is not penalised
    std::int64_t window = 4096;       ///< matches lie within the last tokens of a node's context; 0: all tokens

    [[nodiscard]] bool is_on() const { return multiplier > 0; }
};

/// Penalties of OpenAI's API: `presence` + `frequency` x count is subtracted from the logit of each token that occurs
/// in the output, the node's path included, the prompt not.
struct OutputPenalties {
    double presence = 0;   ///< 0: off
    double frequency = 0;  ///< 0: off

    [[nodiscard]] bool is_on() const { return presence != 0 || frequency != 0; }
};

/// Added to the logit of a token, before all penalties.
struct TokenBias {
    std::int32_t token = 0;
    float bias = 0;
    friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

struct SamplingParams {
    double temperature = 1.0;            ///< 0: greedy
    std::int64_t top_k = 0;              ///< 0: off
    double top_p = 1.0;                  ///< 1: off
    double min_p = 0.0;                  ///< 0: off
    double eta = 0.0;                    ///< 0: off
    double repetition_penalty = 1.0;     ///< θ; 1: off
    std::int64_t penalty_window = 1024;  ///< W: the penalty sees the last W tokens of a node's context
    OutputPenalties output{};
    std::int64_t min_tokens = 0;  ///< none of `ends` is chosen before the output has so many tokens
    std::int64_t min_keep = 1;    ///< each filter keeps at least this many tokens
    DryParams dry{};

    // Of the sequence; set by the replica, which owns what they refer to.
    std::int64_t prompt_tokens = 0;
    const DryBreakers* dry_breakers = nullptr;  ///< null: none
    std::span<const std::int32_t> ends{};       ///< tokens that end it
    std::span<const TokenBias> biases{};
    TokenConstraint* constraint = nullptr;  ///< of the output; null: any text
};

}  // namespace longhaul::engine
