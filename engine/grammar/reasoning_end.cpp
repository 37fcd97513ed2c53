#include "engine/grammar/reasoning_end.hpp"

#include <algorithm>
#include <utility>

namespace longhaul::engine {
namespace {

constexpr const char* white_space = " \t\r\n";

std::size_t size_without_last_space(std::string_view text) {
    return text.find_last_not_of(white_space) + 1;  // npos + 1 is 0
}

}  // namespace

std::string_view without_space(std::string_view text) {
    text = text.substr(0, size_without_last_space(text));
    return text.substr(std::min(text.find_first_not_of(white_space), text.size()));
}

ReasoningEnd::ReasoningEnd(std::string text, const Tokenizer& tokenizer)
    : text_(std::move(text)), tokenizer_(tokenizer), shorter_(text_.size(), 0) {
    std::int32_t matched = 0;
    for (std::size_t i = 1; i < text_.size(); ++i) shorter_[i] = matched = behind(matched, text_[i]);
}

std::int32_t ReasoningEnd::behind(std::int32_t matched, char byte) const {
    while (matched > 0 && text_[static_cast<std::size_t>(matched)] != byte)
        matched = shorter_[static_cast<std::size_t>(matched) - 1];
    return text_[static_cast<std::size_t>(matched)] == byte ? matched + 1 : 0;
}

std::optional<std::string_view> ReasoningEnd::next(std::int32_t& matched, std::int32_t token) const {
    const std::string_view bytes = bytes_of(token);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        matched = behind(matched, bytes[i]);
        if (std::cmp_equal(matched, text_.size())) return bytes.substr(i + 1);
    }
    return std::nullopt;
}

bool ReasoningEnd::is_at_end_of(std::span<const std::int32_t> prompt) const {
    const std::string_view wanted = without_space(text_);
    std::string tail;
    for (auto token = prompt.rbegin(); token != prompt.rend() && tail.size() < wanted.size(); ++token) {
        const bool is_last = tail.empty();  // but for white space
        tail.insert(0, bytes_of(*token));
        if (is_last) tail.resize(size_without_last_space(tail));
    }
    return tail.ends_with(wanted);
}

std::int32_t ReasoningEnd::token_behind(std::int32_t num_bytes, std::int64_t vocab_size) const {
    const std::string_view rest = std::string_view(text_).substr(static_cast<std::size_t>(num_bytes));
    std::int32_t longest = -1;
    std::size_t size = 0;
    for (std::int32_t token = 0; token < std::min<std::int64_t>(vocab_size, tokenizer_.vocab_size()); ++token) {
        const std::string_view bytes = bytes_of(token);
        if (bytes.size() <= size || !rest.starts_with(bytes)) continue;
        longest = token;
        size = bytes.size();
    }
    return longest;
}

std::string_view ReasoningEnd::bytes_of(std::int32_t token) const {
    return token >= 0 && token < tokenizer_.vocab_size() ? std::string_view(tokenizer_.token_bytes(token)) : "";
}

}  // namespace longhaul::engine
