// Functions of Python's str on UTF-8 text. Positions and lengths are in code points where the name says `chars`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine::jinja {

/// White space as str.isspace() and `\s` define it.
bool is_space(char32_t code);
/// Bytes of white space at the beginning of `text`.
std::size_t leading_spaces(std::string_view text);

/// str.lstrip, rstrip and strip. `characters`: what is removed; nullopt: white space.
std::string_view stripped_left(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view stripped_right(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view stripped(std::string_view text, std::optional<std::string_view> characters = {});

std::int64_t num_chars(std::string_view text);
/// Byte offset of code point number `index`, or of the end if there are not so many.
std::size_t offset_of_char(std::string_view text, std::int64_t index);
/// The code points of `text`, each as its own text.
std::vector<std::string_view> characters_of(std::string_view text);

/// Offset of `part` in `text` from `from`, npos if there is none. Linear in the length of `text`, also for hostile
/// parts.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from = 0);

/// str.split and rsplit. `separator` nullopt: runs of white space; otherwise not empty. max_splits -1: no limit.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t max_splits);
std::vector<std::string_view> split_right(std::string_view text, std::optional<std::string_view> separator,
                                          std::int64_t max_splits);
/// str.splitlines, by all characters that Python takes as line breaks.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
/// str.replace, for the first `count` (-1: all).
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t count);

enum class Case { upper, lower, title };
/// Each character in another case. nullopt if a character has no single one in this case (the upper case of "ß" is
/// "SS"), or its case depends on its neighbours (capital sigma).
std::optional<std::string> with_case(std::string_view text, Case to);

/// Kinds of text that str.isalpha() and its like test: at least one character, all of this kind.
enum class TextClass { alpha, digit, alnum, space, upper, lower, ascii, decimal, numeric, printable };
bool is_text_of(std::string_view text, TextClass which);

/// repr() of a text.
std::string repr_of_text(std::string_view text);
/// Text with & < > ' " as HTML entities, as markupsafe writes them.
std::string html_escaped(std::string_view text);

}  // namespace longhaul::engine::jinja
