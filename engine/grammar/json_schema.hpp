// JSON schemas (draft 2020-12) as grammars.
#pragma once

#include <string_view>

#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

/// JSON values that the schema allows. `schema`: JSON text. Each of them is valid, but not all that are valid are among
/// them: members stand in the order of `properties` and, unless the schema says additionalProperties, there are no
/// others; between tokens is one blank or a line end with its indentation, or nothing. oneOf is read as anyOf. What a
/// grammar cannot express (uniqueItems, multipleOf, not, if, ...) is refused. Throws BadFormat.
GrammarBuilder::Piece json_schema_piece(GrammarBuilder& builder, std::string_view schema);

}  // namespace longhaul::engine
