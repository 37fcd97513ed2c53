// Regular expressions as grammars.
#pragma once

#include <string_view>

#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

/// How the characters of a text appear in it.
enum class Spelling {
    plain,
    json,  ///< as in a string of JSON: " and \ and control characters are escaped
};

/// The texts that match `expression` from their beginning to their end (a ^ at its beginning and a $ at its end change
/// nothing); with `anywhere` those that hold a match, unless ^ or $ stand there. Has literals, ., classes, \d \w \s and
/// their opposites, groups, |, and * + ? {m,n}; no look-around, references or word boundaries. Characters are
/// Unicode's, \d \w \s ASCII's. Throws BadFormat.
GrammarBuilder::Piece regex_piece(GrammarBuilder& builder, std::string_view expression, Spelling spelling,
                                  bool anywhere = false);

/// One of these characters in a string of JSON, those that need it escaped.
GrammarBuilder::Piece json_character(GrammarBuilder& builder, const CharacterRanges& ranges);

}  // namespace longhaul::engine
