// Basic Unicode functions of the tokenizer: UTF-8, white space, the byte alphabet of GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::engine::unicode {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

/// Result of decoding the first character of a byte string.
enum class StepKind { valid, invalid, incomplete };
struct Step {
    StepKind kind;
    std::size_t num_bytes;  ///< if invalid: length of the maximal subpart that one U+FFFD replaces (Unicode 15, 3.9)
};

/// Decodes the first character of `bytes` (not empty).
Step step(std::string_view bytes);

bool is_utf8(std::string_view bytes);

/// Appends `bytes` to `text`, with U+FFFD for each invalid subpart. Returns the number of bytes used: all except those
/// of an incomplete last character. With `at_end` an incomplete character becomes U+FFFD too.
std::size_t append_lossy(std::string_view bytes, bool at_end, std::string& text);

/// Length of a character in bytes, from its first byte; valid UTF-8 only.
inline std::size_t char_bytes(char lead) {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// First character of `text` (valid UTF-8, not empty).
char32_t first_char(std::string_view text);
/// Byte offset of the last character of `text` (valid UTF-8, not empty).
std::size_t last_char_start(std::string_view text);

void append_char(char32_t code, std::string& text);

/// Unicode property White_Space; this is `\s` in the split patterns.
bool is_white_space(char32_t code);

/// [byte] printable character, in UTF-8, that represents the byte in byte-level BPE.
const std::array<std::string, 256>& byte_alphabet();
/// Byte that a character of the alphabet represents, or -1.
int byte_of(char32_t code);
/// Appends to `bytes` the bytes that the characters of `token` represent. Returns false and leaves `bytes` unchanged if
/// a character is not in the alphabet.
bool append_alphabet_bytes(std::string_view token, std::string& bytes);

}  // namespace longhaul::engine::unicode
