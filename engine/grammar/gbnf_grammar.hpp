// Grammars in GBNF, the form of llama.cpp.
#pragma once

#include <string_view>

#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

/// The texts of the rule `root`. A rule is `name ::= …`, up to the end of its line; within parentheses, behind ::=, and
/// behind and before a | the next lines belong to it. Has literals "…", classes […], ., groups, |, * + ? {m} {m,} {m,n}
/// {,n}, and comments behind #; in literals and classes the escapes \n \t \r \xHH \uHHHH \UHHHHHHHH and those of
/// punctuation. No tokens (<think>, <[42]>). Throws BadFormat.
GrammarBuilder::Piece gbnf_piece(GrammarBuilder& builder, std::string_view text);

}  // namespace longhaul::engine
