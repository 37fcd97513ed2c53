#include "engine/replica/sequence.hpp"

namespace longhaul::engine {
StopText::StopText(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
                   std::span<const std::int32_t> prompt)
    : detokenizer_(tokenizer), stops_(stops) {
    if (prompt.empty()) return;
    const std::string before = tokenizer.decode(prompt.last(1), true);
    if (before.ends_with("\xEF\xBF\xBD")) return;  // the prompt ends inside a character
    text_ = detokenizer_.push(prompt.back());
    before_ = before.size();
}

bool StopText::cut_at_stop(const std::string& text, std::size_t from) {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t begin = std::max(before_, from < stop.size() ? 0 : from - stop.size() + 1);
        first = std::min(first, text.find(stop, begin));
    }
    if (first == std::string::npos) return false;
    text_ = text.substr(0, first);
    stopped_ = true;
    return true;
}

bool StopText::push(std::int32_t token, bool may_stop) {
    const std::size_t from = text_.size();
    text_ += detokenizer_.push(token);
    if (!may_stop) return false;
    if (cut_at_stop(text_, from)) return true;
    const std::string held = Detokenizer(detokenizer_).finish();
    // An incomplete character decodes to U+FFFD for now; later tokens will complete it.
    return !held.empty() && held.find("\xEF\xBF\xBD") == std::string::npos && cut_at_stop(text_ + held, from);
}

std::string StopText::take() {
    if (!stopped_) text_ += detokenizer_.finish();
    return text_.size() > before_ ? text_.substr(before_) : std::string();
}

std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> output) {
    if (prompt.empty()) return tokenizer.decode(output, true);
    std::vector<std::int32_t> both(1, prompt.back());
    const std::string before = tokenizer.decode(both, true);
    both.insert(both.end(), output.begin(), output.end());
    std::string text = tokenizer.decode(both, true);
    if (!text.starts_with(before)) return tokenizer.decode(output, true);  // the prompt ends inside a character
    return text.substr(before.size());
}

static std::string without_first_space(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    return std::string(text.substr(std::min(first, text.size())));
}

/// Where the last bytes of a reasoning's end are behind in the text; npos if it was cut before. `before`: the text up
/// to the token that has them.
static std::size_t behind_last(std::string_view last, const std::string& text, const std::string& before) {
    constexpr std::string_view replacement = "\xEF\xBF\xBD";  // for a character that the token completes
    const std::size_t from = before.size() - (before.ends_with(replacement) ? replacement.size() : 0);
    const std::size_t begin = text.find(last, from);
    return begin == std::string::npos ? begin : begin + last.size();
}

std::optional<std::string> answer_in(const std::string& text, const std::string& end, const Tokenizer& tokenizer,
                                     std::span<const std::int32_t> prompt, std::span<const std::int32_t> output) {
    const ReasoningEnd search(end, tokenizer);
    if (search.is_at_end_of(prompt)) return without_first_space(text);
    std::int32_t matched = 0;
    for (std::size_t i = 0; i < output.size(); ++i) {
        const auto rest = search.next(matched, output[i]);
        if (!rest) continue;
        std::size_t begin = 0;
        if (rest->empty() || tokenizer.is_special(output[i])) {
            begin = output_text(tokenizer, prompt, output.first(i + 1)).size();
        } else {
            const std::size_t num_last = std::min(search.bytes_of(output[i]).size() - rest->size(), end.size());
            begin = behind_last(std::string_view(end).substr(end.size() - num_last), text,
                                output_text(tokenizer, prompt, output.first(i)));
        }
        if (begin > text.size()) return std::nullopt;  // a stop string cut it
        // Parts of characters around the end may decode otherwise in the whole text.
        while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) ++begin;
        return without_first_space(std::string_view(text).substr(begin));
    }
    return std::nullopt;
}

}  // namespace longhaul::engine
