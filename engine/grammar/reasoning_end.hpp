// Where the reasoning of a model that thinks before it answers ends: behind a text such as "</think>".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// The text without the white space around it (blanks, tabs and line ends).
std::string_view without_space(std::string_view text);

/// Looks for that text among the tokens of an output. Special tokens count with their own text, which results do not
/// have.
class ReasoningEnd {
  public:
    /// `text`: not empty, and not white space alone. `tokenizer` must outlive the object.
    ReasoningEnd(std::string text, const Tokenizer& tokenizer);

    /// Takes one more token. `matched`: bytes of the text that the output ends with, 0 before its first token. Returns
    /// what the token has behind the text if the reasoning ends in it.
    std::optional<std::string_view> next(std::int32_t& matched, std::int32_t token) const;

    /// Whether the prompt ends with the text, white space aside: templates do so for answers without reasoning.
    [[nodiscard]] bool is_at_end_of(std::span<const std::int32_t> prompt) const;

    /// The longest token below `vocab_size` that goes on with the text behind its first `num_bytes` bytes; -1 if there
    /// is none.
    [[nodiscard]] std::int32_t token_behind(std::int32_t num_bytes, std::int64_t vocab_size) const;

    /// Bytes of a token; none for ids that are not in the tokenizer.
    [[nodiscard]] std::string_view bytes_of(std::int32_t token) const;

    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    /// Bytes of the text that the output ends with behind one more byte.
    [[nodiscard]] std::int32_t behind(std::int32_t matched, char byte) const;

    std::string text_;
    const Tokenizer& tokenizer_;
    std::vector<std::int32_t> shorter_;  ///< [n]: the longest shorter beginning that its first n + 1 bytes end with
};

}  // namespace longhaul::engine
