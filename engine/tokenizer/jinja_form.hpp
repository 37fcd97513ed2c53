// Recognises jinja templates independent of their layout, by comparing what the jinja lexer produces. Renders nothing.
// Used by ChatTemplate.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

/// Normal form of a jinja template, as jinja's lexer sees it with trim_blocks and lstrip_blocks (the settings of
/// transformers). Comments and the white space that the lexer trims are removed, and so are white space and minus signs
/// inside tags. Strings are in double quotes, with \n, \" and \\ as the only escapes.
std::string jinja_form(std::string_view text);

/// Matches `form`, a result of jinja_form, against a pattern: jinja text with gaps between its parts. Byte 0x01 is a
/// gap that matches anything; byte 0x02 is a gap that matches only statements ({% ... %}). Returns the contents of the
/// gaps, each the shortest possible from the left; nullopt if the pattern does not match. The pattern must have no
/// white space between its tags.
std::optional<std::vector<std::string>> match_jinja(std::string_view form, std::string_view pattern);

/// Resolves the escapes in a part of a jinja_form string.
std::string jinja_literal(std::string_view escaped);

}  // namespace longhaul::engine
