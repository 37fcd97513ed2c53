// Values of the vocabulary as text: what a user types, and back. Nothing here knows a key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

/// A value that is refused; whoever knows file, line and key makes the message.
struct BadValue {
    std::string expected;  ///< "an integer from 1 to 8"
    std::string fix;       ///< "" or what to do about it
};

// Each throws BadValue for anything but one whole value of its kind inside its range; overflow, NaN and infinity
// included.
std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high);
std::uint64_t parse_seed(std::string_view text);
bool parse_bool(std::string_view text);
/// A finite number, low <= x <= high, or low < x where `low_excluded`.
double parse_number(std::string_view text, double low, double high, bool low_excluded = false);
/// Bytes: a number, may be a fraction, and a unit: none, K or KiB, M or MiB, G or GiB, T or TiB (powers of 1024, as in
/// Slurm).
std::int64_t parse_size(std::string_view text);
/// Text with \n \t \r \\ \" escapes; double quotes round it are optional and keep leading and trailing blanks.
std::string parse_text(std::string_view text);

/// The shortest text that parse_number reads back as the same bits.
std::string format_number(double value);
/// Bytes as people read them: "812 bytes", "13.3 MiB".
std::string size_text(std::int64_t bytes);
/// Of a message: the text in single quotes, printable.
std::string in_quotes(std::string_view text);
/// The same, or "nothing".
std::string shown(std::string_view text);
/// Text in double quotes, escaped so that parse_text reads it back.
std::string quote_text(std::string_view text);

/// Blanks of a line: space and tab.
inline bool is_blank(char c) {
    return c == ' ' || c == '\t';
}
/// Without the blanks at both ends.
std::string_view trimmed(std::string_view text);

/// Offset of the first byte that is NUL or no well-formed UTF-8; npos where all is text.
std::size_t first_bad_byte(std::string_view text);
inline bool is_text(std::string_view text) {
    return first_bad_byte(text) == std::string_view::npos;
}

/// The longest beginning of `text`, at most `max_bytes`, that does not end inside a UTF-8 character.
std::string_view whole_characters(std::string_view text, std::size_t max_bytes);

/// The word of `words` with the fewest typing slips (insert, delete, replace, swap) from `word`; "" when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

/// "a, b or c".
std::string list_words(const std::vector<std::string>& words);

}  // namespace longhaul::runner
