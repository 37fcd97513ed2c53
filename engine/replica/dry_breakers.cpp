#include "engine/replica/dry_breakers.hpp"

#include <algorithm>
#include <optional>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

constexpr std::size_t max_tail = 20;

/// The token that is this byte alone; nullopt: none is.
std::optional<std::int32_t> byte_token(const Tokenizer& tokenizer, char byte) {
    for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
        if (tokenizer.token_bytes(token) == std::string_view(&byte, 1)) return token;
    }
    return {};
}

/// Tokens of the rest of a breaker. A rest that begins inside a character begins with the tokens of single bytes;
/// nullopt if there are none.
std::optional<std::vector<std::int32_t>> tail_tokens(const Tokenizer& tokenizer, std::string_view rest) {
    std::vector<std::int32_t> tokens;
    while (!rest.empty() && !unicode::is_utf8(rest)) {
        const auto token = byte_token(tokenizer, rest.front());
        if (!token) return {};
        tokens.push_back(*token);
        rest.remove_prefix(1);
    }
    if (!rest.empty()) {
        const std::vector<std::int32_t> more = tokenizer.encode(rest);
        tokens.insert(tokens.end(), more.begin(), more.end());
    }
    tokens.resize(std::min(tokens.size(), max_tail));
    return tokens;
}

}  // namespace

std::vector<std::vector<std::int32_t>> breaker_sequences(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<std::vector<std::int32_t>> sequences;
    std::vector<std::optional<std::vector<std::int32_t>>> tails(text.size());  // [bytes in the head], once needed
    const auto tail_behind = [&](std::size_t length) -> const std::vector<std::int32_t>* {
        if (!tails[length])
            tails[length] = tail_tokens(tokenizer, text.substr(length)).value_or(std::vector<std::int32_t>());
        return tails[length]->empty() ? nullptr : &*tails[length];
    };
    for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
        const std::string_view word = tokenizer.token_bytes(token);
        if (word.find(text) != std::string_view::npos) {
            sequences.push_back({token});
            continue;
        }
        for (std::size_t length = 1; length < text.size() && length <= word.size(); ++length) {
            if (!word.ends_with(text.substr(0, length))) continue;
            const std::vector<std::int32_t>* tail = tail_behind(length);
            if (tail == nullptr) continue;
            sequences.push_back({token});
            sequences.back().insert(sequences.back().end(), tail->begin(), tail->end());
        }
    }
    return sequences;
}

std::shared_ptr<const DryBreakers> BreakerMaker::of(const std::vector<std::string>& texts) {
    if (breakers_ != nullptr && texts == texts_) return breakers_;
    std::vector<std::vector<std::int32_t>> sequences;
    for (const std::string& text : texts) {
        const auto of_text = breaker_sequences(tokenizer_, text);
        sequences.insert(sequences.end(), of_text.begin(), of_text.end());
    }
    texts_ = texts;
    breakers_ = std::make_shared<const DryBreakers>(sequences);
    return breakers_;
}

}  // namespace longhaul::engine
