// Output formats (OutputFormat) as grammars.
#pragma once

#include <string>

#include "engine/generation_options.hpp"
#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

/// Thrown for a format that cannot be followed: what is wrong, and where in the schema or the expression.
struct BadFormat {
    std::string fault;
};

/// The texts of a format that is not `any`. `behind_reasoning`: with a blank, or one or two line ends, that may stand
/// before them. Throws BadFormat.
Grammar grammar_of(const OutputFormat& format, bool behind_reasoning = false);

/// Throws BadFormat if no item could follow the format: there is no such grammar, or its texts have too many
/// beginnings.
void check_format(const OutputFormat& format);

}  // namespace longhaul::engine
