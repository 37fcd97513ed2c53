#include "engine/grammar/output_grammar.hpp"

#include "engine/grammar/gbnf_grammar.hpp"
#include "engine/grammar/grammar_matcher.hpp"
#include "engine/grammar/json_schema.hpp"
#include "engine/grammar/regex_grammar.hpp"

namespace longhaul::engine {
namespace {

/// What stands before an answer needs some, too.
constexpr auto max_nodes = static_cast<std::int64_t>(GrammarBuilder::max_nodes) - 64;

GrammarBuilder::Piece piece_of(GrammarBuilder& builder, const OutputFormat& format) {
    if (format.kind == OutputFormat::Kind::json_schema) return json_schema_piece(builder, format.texts.front());
    if (format.kind == OutputFormat::Kind::gbnf) return gbnf_piece(builder, format.texts.front());
    if (format.kind == OutputFormat::Kind::regex) return regex_piece(builder, format.texts.front(), Spelling::plain);
    return builder.one_of(format.texts);
}

}  // namespace

Grammar grammar_of(const OutputFormat& format, bool behind_reasoning) {
    try {
        GrammarBuilder builder;
        const GrammarBuilder::Piece piece = piece_of(builder, format);
        if (builder.left_recursive_rule()) throw BadFormat{"a schema refers to itself with nothing between"};
        if (behind_reasoning) {
            const GrammarBuilder::Piece gap = builder.optional(builder.one_of({" ", "\n", "\n\n"}));
            return builder.finish(GrammarBuilder::sequence({gap, piece}));
        }
        Grammar grammar = builder.finish(piece);
        if (grammar.num_nodes() > max_nodes) throw GrammarBuilder::TooLarge();
        if (GrammarMatcher(grammar).is_complete()) throw BadFormat{"it allows no text but the empty one"};
        return grammar;
    } catch (const GrammarBuilder::Endless&) {
        throw BadFormat{"each text of it would go on without end"};
    } catch (const GrammarBuilder::TooLarge&) {
        throw BadFormat{"it is too large, with its repeats more than " + std::to_string(GrammarBuilder::max_nodes) +
                        " parts"};
    }
}

void check_format(const OutputFormat& format) {
    if (GrammarMatcher(grammar_of(format)).start() == GrammarMatcher::ambiguous)
        throw BadFormat{"there are too many ways to begin a text; let alternatives differ in their first characters"};
}

}  // namespace longhaul::engine
