// Parses and formats values of the vocabulary, independent of their keys. Used by vocabulary.cpp and for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

/// Thrown for a bad value. The caller, who knows file, line and key, makes the message.
struct BadValue {
    std::string expected;  ///< "an integer from 1 to 8"
    std::string fix;       ///< "", or a hint how to fix it
};

// Each parses the whole of `text` and throws BadValue if it is not one value in range; overflow, NaN and infinity are
// errors.
std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high);
std::uint64_t parse_seed(std::string_view text);
bool parse_bool(std::string_view text);
/// A finite number with low <= x <= high; low < x if `low_excluded`.
double parse_number(std::string_view text, double low, double high, bool low_excluded = false);
/// A size in bytes: a number, possibly a fraction, with an optional unit K or KiB, M or MiB, G or GiB, T or TiB (powers
/// of 1024, as in Slurm).
std::int64_t parse_size(std::string_view text);
/// Text with \n \t \r \\ \" escapes. Double quotes around it are optional and preserve leading and trailing blanks.
std::string parse_text(std::string_view text);

/// Shortest text that parse_number reads back as the same bits.
std::string format_number(double value);
/// `text` printable and in single quotes, for messages.
std::string in_quotes(std::string_view text);
/// Like in_quotes, but "nothing" for an empty text.
std::string shown(std::string_view text);
/// `text` in double quotes, escaped so that parse_text reads it back.
std::string quote_text(std::string_view text);

/// Blank characters within a line: space and tab.
inline bool is_blank(char c) {
    return c == ' ' || c == '\t';
}
/// `text` without blanks at both ends.
std::string_view trimmed(std::string_view text);

/// Offset of the first byte that is NUL or not well-formed UTF-8; npos if there is none.
std::size_t first_bad_byte(std::string_view text);
inline bool is_text(std::string_view text) {
    return first_bad_byte(text) == std::string_view::npos;
}

/// Longest prefix of `text` of at most `max_bytes` that does not end inside a UTF-8 character.
std::string_view whole_characters(std::string_view text, std::size_t max_bytes);

/// The entry of `words` with the fewest typing errors (insert, delete, replace, swap) relative to `word`; "" if none is
/// close.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace longhaul::runner
