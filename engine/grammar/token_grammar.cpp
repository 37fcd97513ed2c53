#include "engine/grammar/token_grammar.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace longhaul::engine {
namespace {

// Of one grammar.
constexpr std::size_t max_state_bytes = std::size_t{32} << 20;
constexpr std::size_t max_allowed_bytes = std::size_t{16} << 20;

std::int32_t num_shared(std::string_view a, std::string_view b) {
    return static_cast<std::int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

TokenTexts::TokenTexts(const Tokenizer& tokenizer, std::int64_t vocab_size)
    : texts_(static_cast<std::size_t>(vocab_size)) {
    for (std::int32_t token = 0; token < std::min<std::int64_t>(vocab_size, tokenizer.vocab_size()); ++token) {
        if (tokenizer.is_special(token) || tokenizer.token_bytes(token).empty()) continue;
        texts_[static_cast<std::size_t>(token)] = tokenizer.token_bytes(token);
        entries_.push_back({token, 0});
    }
    std::sort(entries_.begin(), entries_.end(),
              [&](const Entry& a, const Entry& b) { return text(a.token) < text(b.token); });
    for (std::size_t i = 1; i < entries_.size(); ++i)
        entries_[i].shared = num_shared(text(entries_[i - 1].token), text(entries_[i].token));
}

TokenGrammar::TokenGrammar(Grammar grammar, std::shared_ptr<const TokenTexts> texts)
    : matcher_(std::move(grammar)), texts_(std::move(texts)) {}

TokenGrammar::State TokenGrammar::next(State state, std::int32_t token) {
    const std::string_view text = texts_->text(token);
    return text.empty() ? GrammarMatcher::dead : next(state, text);
}

TokenGrammar::State TokenGrammar::next(State state, std::string_view text) {
    for (const char byte : text) state = matcher_.next(state, static_cast<std::uint8_t>(byte));
    return state;
}

const AllowedTokens& TokenGrammar::allowed(State state) {
    if (const auto known = allowed_.find(state); known != allowed_.end()) return known->second;
    const std::size_t bytes_each = static_cast<std::size_t>(texts_->vocab_size()) / 8 + sizeof(AllowedTokens);
    if ((allowed_.size() + 1) * bytes_each > max_allowed_bytes) allowed_.clear();
    return allowed_.emplace(state, find_allowed(state)).first->second;
}

AllowedTokens TokenGrammar::find_allowed(State state) {
    AllowedTokens found{.tokens = std::vector<bool>(static_cast<std::size_t>(texts_->vocab_size()), false),
                        .end = matcher_.accepts(state)};
    if (state == GrammarMatcher::ambiguous) return {.unknown = true};
    std::vector<State> behind{state};  // [bytes of the entry's text]
    for (const auto& [token, shared] : texts_->entries()) {
        if (std::cmp_greater_equal(shared, behind.size())) continue;  // a beginning that nothing may have
        behind.resize(static_cast<std::size_t>(shared) + 1);
        for (const char byte : texts_->text(token).substr(static_cast<std::size_t>(shared))) {
            const State next = matcher_.next(behind.back(), static_cast<std::uint8_t>(byte));
            if (next == GrammarMatcher::ambiguous) return {.unknown = true};
            if (next == GrammarMatcher::dead) break;
            behind.push_back(next);
        }
        if (behind.size() != texts_->text(token).size() + 1) continue;
        found.tokens[static_cast<std::size_t>(token)] = true;
        ++found.count;
    }
    return found;
}

void TokenGrammar::limit_memory() {
    if (matcher_.num_bytes() <= max_state_bytes) return;
    matcher_.forget_all_but(kept_);
    allowed_.clear();
    ++num_limited_;
}

}  // namespace longhaul::engine
