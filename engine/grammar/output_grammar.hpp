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

/// The texts of a format that is not `any`. Throws BadFormat.
Grammar grammar_of(const OutputFormat& format);

}  // namespace longhaul::engine
