// Recognising a jinja text whatever its layout: only what its lexer hands on counts. Nothing is rendered here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

/// The text as jinja's lexer sees it with trim_blocks and lstrip_blocks (transformers' settings): comments and the
/// white space that it trims are gone, and so are white space and minus signs inside tags; strings are in double
/// quotes, with \n, \" and \\ as the only escapes.
std::string jinja_form(std::string_view text);

/// `form` against a pattern: jinja text whose parts stand in this order, with anything (byte 0x01) between them.
/// Returns what stands in the gaps, the shortest that fits from the left; nullopt where it does not match. `form` is a
/// jinja_form, the pattern any jinja text without white space between its tags.
std::optional<std::vector<std::string>> match_jinja(std::string_view form, std::string_view pattern);

/// The characters that a part of a string in a jinja_form stands for.
std::string jinja_literal(std::string_view escaped);

}  // namespace longhaul::engine
