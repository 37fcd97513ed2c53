#include "engine/grammar/output_rules.hpp"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace longhaul::engine {

static AllowedTokens any_tokens(std::int64_t vocab_size, bool end) {
    return {.tokens = std::vector<bool>(static_cast<std::size_t>(vocab_size), true), .count = vocab_size, .end = end};
}

OutputRules::OutputRules(std::shared_ptr<TokenGrammar> grammar, std::optional<ReasoningEnd> end,
                         std::int64_t max_reasoning, std::int64_t vocab_size)
    : grammar_(std::move(grammar)),
      end_(std::move(end)),
      max_reasoning_(max_reasoning),
      any_(any_tokens(vocab_size, true)) {}

OutputRules::State OutputRules::start(std::span<const std::int32_t> prompt) const {
    return {.is_reasoning = end_ && !end_->is_at_end_of(prompt), .answer = grammar_ ? grammar_->start() : 0};
}

OutputRules::State OutputRules::next(State state, std::int32_t token) {
    if (!state.is_reasoning) {
        if (grammar_) state.answer = grammar_->next(state.answer, token);
        return state;
    }
    ++state.num_tokens;
    if (const auto rest = end_->next(state.matched, token)) {
        state.is_reasoning = false;
        if (grammar_) state.answer = grammar_->next(state.answer, *rest);
    }
    return state;
}

const AllowedTokens& OutputRules::allowed(const State& state) {
    const auto found_once = [](auto& known, std::int32_t key, auto find) -> const AllowedTokens& {
        const auto [entry, fresh] = known.try_emplace(key);
        if (fresh) entry->second = find(key);
        return entry->second;
    };
    if (is_at_limit(state)) return found_once(forced_, state.matched, [&](auto n) { return find_forced(n); });
    if (!grammar_) return any_;
    if (!state.is_reasoning) return grammar_->allowed(state.answer);
    return found_once(reasoning_, state.matched, [&](auto n) { return find_reasoning(n); });
}

bool OutputRules::may_begin(std::string_view bytes) {
    return grammar_->next(grammar_->start(), bytes) >= 0;
}

AllowedTokens OutputRules::find_reasoning(std::int32_t matched) {
    AllowedTokens found = any_tokens(static_cast<std::int64_t>(any_.tokens.size()), false);
    for (std::size_t token = 0; token < found.tokens.size(); ++token) {
        std::int32_t behind = matched;
        const auto rest = end_->next(behind, static_cast<std::int32_t>(token));
        if (!rest || may_begin(*rest)) continue;
        found.tokens[token] = false;
        --found.count;
    }
    return found;
}

AllowedTokens OutputRules::find_forced(std::int32_t matched) {
    AllowedTokens found{.tokens = std::vector<bool>(any_.tokens.size(), false)};
    const std::int32_t token = end_->token_behind(matched, std::ssize(found.tokens));
    if (token < 0) return found;
    found.tokens[static_cast<std::size_t>(token)] = true;
    found.count = 1;
    return found;
}

OutputConstraint::OutputConstraint(std::shared_ptr<OutputRules> rules, std::span<const std::int32_t> prompt)
    : rules_(std::move(rules)), start_(rules_->start(prompt)), state_(start_) {
    if (rules_->grammar() != nullptr) rules_->grammar()->keep(state_.answer);
}

OutputConstraint::~OutputConstraint() {
    if (rules_->grammar() != nullptr) rules_->grammar()->drop(state_.answer);
}

void OutputConstraint::limit_memory() {
    if (rules_->grammar() != nullptr) rules_->grammar()->limit_memory();
}

bool OutputConstraint::goes_on(std::span<const std::int32_t> output) const {
    if (output.size() < output_.size()) return false;
    const std::span<const std::int32_t> last = std::span(output_).last(std::min(output_.size(), max_rewind));
    return std::equal(last.begin(), last.end(), output.first(output_.size()).last(last.size()).begin());
}

std::int64_t OutputConstraint::num_free() const {
    if (rules_->grammar() != nullptr) return 0;
    return state_.is_reasoning ? rules_->max_reasoning() : std::numeric_limits<std::int64_t>::max();
}

const AllowedTokens& OutputConstraint::allowed(std::span<const std::int32_t> output,
                                               std::span<const std::int32_t> path) {
    limit_memory();
    if (!goes_on(output)) {
        output_.clear();
        state_ = start_;
    }
    const auto fresh = output.subspan(output_.size());
    for (const std::int32_t token : fresh) {
        state_ = rules_->next(state_, token);
        limit_memory();
    }
    output_.insert(output_.end(), fresh.begin(), fresh.end());
    OutputRules::State state = state_;
    for (const std::int32_t token : path) state = rules_->next(state, token);
    return rules_->allowed(state);
}

}  // namespace longhaul::engine
