#include "engine/replica/grammar_cache.hpp"

#include <algorithm>

#include "engine/grammar/output_grammar.hpp"

namespace longhaul::engine {

std::shared_ptr<TokenGrammar> GrammarCache::of(const OutputFormat& format) {
    constexpr std::size_t max_kept = 4;
    if (format.kind == OutputFormat::Kind::any) return nullptr;
    const auto known =
        std::find_if(recent_.begin(), recent_.end(), [&](const auto& entry) { return entry.first == format; });
    if (known != recent_.end()) {
        std::rotate(recent_.begin(), known, known + 1);
        return recent_.front().second;
    }
    if (texts_ == nullptr) texts_ = std::make_shared<const TokenTexts>(tokenizer_, vocab_size_);
    recent_.emplace_front(format, std::make_shared<TokenGrammar>(grammar_of(format), texts_));
    if (recent_.size() > max_kept) recent_.pop_back();
    return recent_.front().second;
}

}  // namespace longhaul::engine
