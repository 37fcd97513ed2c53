#include "engine/replica/output_rules_cache.hpp"

#include <algorithm>
#include <optional>

#include "engine/grammar/output_grammar.hpp"

namespace longhaul::engine {

std::shared_ptr<OutputRules> OutputRulesCache::of(const GenerationOptions& options) {
    constexpr std::size_t max_kept = 4;
    const bool has_format = options.format.kind != OutputFormat::Kind::any;
    if (!has_format && (!options.has_reasoning() || options.reasoning.max_tokens == 0)) return nullptr;
    const auto known = std::find_if(recent_.begin(), recent_.end(), [&](const Entry& entry) {
        return entry.format == options.format && entry.reasoning == options.reasoning;
    });
    if (known != recent_.end()) {
        std::rotate(recent_.begin(), known, known + 1);
        return recent_.front().rules;
    }
    recent_.push_front({options.format, options.reasoning, make(options)});
    if (recent_.size() > max_kept) recent_.pop_back();
    return recent_.front().rules;
}

std::shared_ptr<OutputRules> OutputRulesCache::make(const GenerationOptions& options) {
    const Reasoning& reasoning = options.reasoning;
    std::optional<ReasoningEnd> end;
    if (options.has_reasoning()) end.emplace(reasoning.end, tokenizer_);
    std::shared_ptr<TokenGrammar> grammar;
    if (options.format.kind != OutputFormat::Kind::any) {
        if (texts_ == nullptr) texts_ = std::make_shared<const TokenTexts>(tokenizer_, vocab_size_);
        grammar = std::make_shared<TokenGrammar>(grammar_of(options.format, end.has_value()), texts_);
    }
    return std::make_shared<OutputRules>(std::move(grammar), std::move(end), reasoning.max_tokens, vocab_size_);
}

}  // namespace longhaul::engine
