// What outputs must look like: reasoning of a limited length, if the model thinks before it answers, and then a text of
// a format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/grammar/reasoning_end.hpp"
#include "engine/grammar/token_grammar.hpp"
#include "engine/sampling/token_constraint.hpp"

namespace longhaul::engine {

/// Rules that items share; for one thread. Reasoning has any tokens except those that end the output, as long as a
/// format is to follow; at its limit the tokens that complete its end are the only ones.
class OutputRules {
  public:
    /// Where an output is in the rules.
    struct State {
        bool is_reasoning = false;
        std::int64_t num_tokens = 0;     ///< of the reasoning
        std::int32_t matched = 0;        ///< bytes of the reasoning's end, as in ReasoningEnd::next
        TokenGrammar::State answer = 0;  ///< of the answer in its grammar
    };

    /// `grammar`: of the answer; null for any text. `end`: nullopt if there is no reasoning. `max_reasoning`: tokens of
    /// the reasoning; 0: any number. `vocab_size`: of the model.
    OutputRules(std::shared_ptr<TokenGrammar> grammar, std::optional<ReasoningEnd> end, std::int64_t max_reasoning,
                std::int64_t vocab_size);

    /// Of an output that is empty.
    [[nodiscard]] State start(std::span<const std::int32_t> prompt) const;
    [[nodiscard]] State next(State state, std::int32_t token);
    /// Valid until the next call.
    const AllowedTokens& allowed(const State& state);

    /// Null for any text.
    [[nodiscard]] TokenGrammar* grammar() const { return grammar_.get(); }
    [[nodiscard]] std::int64_t max_reasoning() const { return max_reasoning_; }
    [[nodiscard]] bool is_at_limit(const State& state) const {
        return state.is_reasoning && max_reasoning_ > 0 && state.num_tokens >= max_reasoning_;
    }

  private:
    /// Whether the answer can begin with these bytes, which a token has behind the end of the reasoning.
    [[nodiscard]] bool may_begin(std::string_view bytes);
    [[nodiscard]] AllowedTokens find_reasoning(std::int32_t matched);
    [[nodiscard]] AllowedTokens find_forced(std::int32_t matched);

    std::shared_ptr<TokenGrammar> grammar_;
    std::optional<ReasoningEnd> end_;
    std::int64_t max_reasoning_;
    AllowedTokens any_;                                          ///< and the end
    std::unordered_map<std::int32_t, AllowedTokens> reasoning_;  ///< [matched]
    std::unordered_map<std::int32_t, AllowedTokens> forced_;     ///< [matched]
};

/// The output of one item.
class OutputConstraint final : public TokenConstraint {
  public:
    OutputConstraint(std::shared_ptr<OutputRules> rules, std::span<const std::int32_t> prompt);
    ~OutputConstraint() override;
    OutputConstraint(const OutputConstraint&) = delete;
    OutputConstraint& operator=(const OutputConstraint&) = delete;

    const AllowedTokens& allowed(std::span<const std::int32_t> output, std::span<const std::int32_t> path) override;
    [[nodiscard]] std::int64_t num_free() const override;

    /// Whether the output of the last call of `allowed` has reached the limit of its reasoning, but not its end.
    [[nodiscard]] bool is_at_limit() const { return rules_->is_at_limit(state_); }

  private:
    /// Whether an output goes on from that of the call before.
    [[nodiscard]] bool goes_on(std::span<const std::int32_t> output) const;
    void limit_memory();

    std::shared_ptr<OutputRules> rules_;
    const OutputRules::State start_;
    std::vector<std::int32_t> output_;  ///< tokens that `state_` is behind
    OutputRules::State state_;
};

}  // namespace longhaul::engine
