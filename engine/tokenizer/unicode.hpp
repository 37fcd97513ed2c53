// The little of Unicode that every part of the tokenizer needs: UTF-8, white space, the byte alphabet of GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::engine::unicode {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

/// What stands at the start of some bytes.
enum class StepKind { valid, invalid, incomplete };
struct Step {
    StepKind kind;
    std::size_t num_bytes;  ///< invalid: the maximal subpart that one U+FFFD stands for (Unicode 15, 3.9)
};

/// Looks at the first character of `bytes` (not empty).
Step step(std::string_view bytes);

bool is_utf8(std::string_view bytes);

/// Appends the characters of `bytes` to `text`, U+FFFD for each invalid subpart. Returns how many bytes were used: all
/// but those of an unfinished last character, which `at_end` also turns into U+FFFD.
std::size_t append_lossy(std::string_view bytes, bool at_end, std::string& text);

/// Length in bytes of a character by its first byte, in valid UTF-8.
inline std::size_t char_bytes(char lead) {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// The character at the start of `text` (valid UTF-8, not empty).
char32_t first_char(std::string_view text);
/// Where the last character of `text` (valid UTF-8, not empty) starts.
std::size_t last_char_start(std::string_view text);

void append_char(char32_t code, std::string& text);

/// The property White_Space, which is `\s` of the patterns.
bool is_white_space(char32_t code);

/// The printable character, in UTF-8, that stands for each byte in byte-level BPE.
const std::array<std::string, 256>& byte_alphabet();
/// The byte a character of that alphabet stands for, or -1.
int byte_of(char32_t code);
/// Replaces characters of the alphabet by their bytes; false (and `bytes` untouched) when there is another character.
bool append_alphabet_bytes(std::string_view token, std::string& bytes);

}  // namespace longhaul::engine::unicode
