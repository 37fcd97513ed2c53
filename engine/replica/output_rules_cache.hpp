// Rules of the items' outputs, for the tokens of the model.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "engine/generation_options.hpp"
#include "engine/grammar/output_rules.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// Items of a job usually have the same few formats: the rules of the last ones, and what was found in them, are kept.
class OutputRulesCache {
  public:
    /// `tokenizer` must outlive the object. `vocab_size`: of the model.
    OutputRulesCache(const Tokenizer& tokenizer, std::int64_t vocab_size)
        : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

    /// Null if any text will do. Throws BadFormat.
    std::shared_ptr<OutputRules> of(const GenerationOptions& options);

  private:
    struct Entry {
        OutputFormat format;
        Reasoning reasoning;
        std::shared_ptr<OutputRules> rules;
    };
    [[nodiscard]] std::shared_ptr<OutputRules> make(const GenerationOptions& options);

    const Tokenizer& tokenizer_;
    std::int64_t vocab_size_;
    std::shared_ptr<const TokenTexts> texts_;
    std::deque<Entry> recent_;  ///< the last one first
};

}  // namespace longhaul::engine
