// Which tokens may follow an output whose text has to belong to a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/grammar/grammar_matcher.hpp"
#include "engine/sampling/token_constraint.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// The texts of a vocabulary's tokens, sorted, so that what begins alike is tried once.
class TokenTexts {
  public:
    /// Without special tokens, which have no text in an output. `vocab_size`: of the model. `tokenizer` must outlive
    /// the object.
    TokenTexts(const Tokenizer& tokenizer, std::int64_t vocab_size);

    struct Entry {
        std::int32_t token;
        std::int32_t shared;  ///< bytes in common with the entry before
    };
    [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
    /// "" for tokens without a text.
    [[nodiscard]] std::string_view text(std::int32_t token) const {
        return static_cast<std::size_t>(token) < texts_.size() ? texts_[static_cast<std::size_t>(token)] : "";
    }
    [[nodiscard]] std::int64_t vocab_size() const { return static_cast<std::int64_t>(texts_.size()); }

  private:
    std::vector<std::string_view> texts_;  ///< [token]
    std::vector<Entry> entries_;
};

/// A grammar for the tokens of a vocabulary. Shared by the items of a format; for one thread.
class TokenGrammar {
  public:
    using State = GrammarMatcher::State;

    TokenGrammar(Grammar grammar, std::shared_ptr<const TokenTexts> texts);

    /// Valid until the next call.
    const AllowedTokens& allowed(State state);

    State next(State state, std::int32_t token);
    State next(State state, std::string_view text);
    [[nodiscard]] State start() const { return matcher_.start(); }

    /// States that stay valid when others are forgotten because they take too much memory: limit_memory changes them.
    void keep(State& state) { kept_.push_back(&state); }
    void drop(State& state) { std::erase(kept_, &state); }
    void limit_memory();
    [[nodiscard]] std::int64_t num_limited() const { return num_limited_; }  ///< times that states were forgotten

  private:
    [[nodiscard]] AllowedTokens find_allowed(State state);

    GrammarMatcher matcher_;
    std::shared_ptr<const TokenTexts> texts_;
    std::unordered_map<State, AllowedTokens> allowed_;
    std::vector<State*> kept_;
    std::int64_t num_limited_ = 0;
};

}  // namespace longhaul::engine
