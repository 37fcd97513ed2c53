// Grammars of the items' output formats for the tokens of the model.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "engine/generation_options.hpp"
#include "engine/grammar/token_grammar.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// Items of a job usually have the same few formats: the grammars of the last ones, and what was found in them, are
/// kept.
class GrammarCache {
  public:
    /// `tokenizer` must outlive the object. `vocab_size`: of the model.
    GrammarCache(const Tokenizer& tokenizer, std::int64_t vocab_size)
        : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

    /// Null for OutputFormat::Kind::any. Throws BadFormat.
    std::shared_ptr<TokenGrammar> of(const OutputFormat& format);

  private:
    const Tokenizer& tokenizer_;
    std::int64_t vocab_size_;
    std::shared_ptr<const TokenTexts> texts_;
    std::deque<std::pair<OutputFormat, std::shared_ptr<TokenGrammar>>> recent_;  ///< the last one first
};

}  // namespace longhaul::engine
