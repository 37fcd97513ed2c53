// Statements. Which words open and close them is as in jinja2's parser.
#include "engine/tokenizer/jinja/parser.hpp"

#include <algorithm>
#include <array>

#include "engine/json.hpp"

namespace longhaul::engine::jinja {
namespace {

constexpr int max_statement_nesting = 100;

bool contains(const std::vector<std::string>& names, std::size_t from, std::string_view name) {
    return std::find(names.begin() + static_cast<std::ptrdiff_t>(from), names.end(), name) != names.end();
}

class StatementParser {
  public:
    StatementParser(TokenStream& tokens) : tokens_(tokens), expressions_(tokens) {}

    Body whole() {
        Body result = body({});
        if (!expressions_.unknown.empty()) throw expressions_.unknown.front();
        return result;
    }

  private:
    using Ends = std::initializer_list<std::string_view>;
    using StatementPtr = std::unique_ptr<Statement>;

    /// Statements up to the tag that begins with one of `ends`, whose word is the current token afterwards; without
    /// `ends` up to the end of the template.
    Body body(Ends ends) {
        if (++nesting_ > max_statement_nesting)
            tokens_.fail(tokens_.line(), "", "at most " + std::to_string(max_statement_nesting) + " nested blocks",
                         "more");
        Body result;
        for (;;) {
            if (tokens_.sees(TokenKind::end)) {
                if (ends.size() > 0) tokens_.fail("{% " + std::string(*(ends.end() - 1)) + " %}");
                break;
            }
            if (tokens_.sees(TokenKind::block_begin)) {
                tokens_.take();
                const bool ended = std::any_of(ends.begin(), ends.end(),
                                               [&](std::string_view word) { return tokens_.sees_name(word); });
                if (ended) break;
                result.statements.push_back(statement());
                tokens_.expect(TokenKind::block_end);
            } else {
                result.statements.push_back(output());
            }
        }
        --nesting_;
        return result;
    }

    /// The end of the opening tag, then the body up to `end`, which is read too.
    Body body_until(std::string_view end) {
        Body result = inner_body({end});
        tokens_.take();
        return result;
    }
    Body inner_body(Ends ends) {
        tokens_.skip_symbol(":");
        tokens_.expect(TokenKind::block_end);
        return body(ends);
    }

    StatementPtr output() {
        const int line = tokens_.line();
        if (tokens_.sees(TokenKind::data)) return std::make_unique<TextStatement>(line, tokens_.take().word);
        tokens_.take();
        auto node = std::make_unique<PrintStatement>(line);
        node->values.push_back(expressions_.tuple());
        tokens_.expect(TokenKind::print_end);
        return node;
    }

    StatementPtr statement() {
        if (!tokens_.sees(TokenKind::name)) tokens_.fail("the name of a tag");
        static constexpr std::array<std::pair<std::string_view, StatementPtr (StatementParser::*)()>, 11> parsers{
            {{"set", &StatementParser::set},
             {"if", &StatementParser::if_chain},
             {"for", &StatementParser::for_loop},
             {"macro", &StatementParser::macro},
             {"call", &StatementParser::call_block},
             {"filter", &StatementParser::filter_block},
             {"with", &StatementParser::with},
             {"print", &StatementParser::print},
             {"generation", &StatementParser::generation},
             {"break", &StatementParser::loop_control},
             {"continue", &StatementParser::loop_control}}};
        for (const auto& [word, parse] : parsers) {
            if (tokens_.sees_name(word)) return (this->*parse)();
        }
        const std::string word = tokens_.current().word;
        static constexpr std::array<std::string_view, 6> others{"block",  "extends", "include",
                                                                "import", "from",    "autoescape"};
        const bool known = std::find(others.begin(), others.end(), word) != others.end();
        tokens_.fail(tokens_.line(), "tag '" + printable(word) + "'", "a tag of chat templates",
                     known ? "one that is not supported" : "an unknown one, or one in the wrong place");
    }

    StatementPtr set() {
        const int line = tokens_.take().line;
        ExprPtr target = expressions_.target("", true);
        check_target(*target);
        if (tokens_.skip_symbol("=")) {
            auto node = std::make_unique<SetStatement>(line);
            node->target = std::move(target);
            node->value = expressions_.tuple();
            return node;
        }
        auto node = std::make_unique<BlockStatement>(StatementKind::set_block, line);
        node->target = std::move(target);
        node->filter = expressions_.filters(nullptr);
        node->body = body_until("endset");
        return node;
    }

    /// Throws if a loop's special variable would be assigned.
    void check_target(const Expr& target) const {
        if (target.kind == ExprKind::tuple) {
            for (const ExprPtr& item : static_cast<const ListExpr&>(target).items) check_target(*item);
        }
        const bool is_loop = target.kind == ExprKind::name && static_cast<const NameExpr&>(target).name == "loop";
        if (is_loop && any_loop_) tokens_.fail(target.line, "", "another variable than 'loop' to assign to", "'loop'");
    }

    StatementPtr filter_block() {
        auto node = std::make_unique<BlockStatement>(StatementKind::filter_block, tokens_.take().line);
        node->filter = expressions_.filters(nullptr, true);
        node->body = body_until("endfilter");
        return node;
    }

    StatementPtr if_chain() {
        auto node = std::make_unique<IfStatement>(tokens_.line());
        const std::size_t known_faults = expressions_.unknown.size();
        do {
            tokens_.take();
            ExprPtr test = expressions_.tuple({}, false);
            node->branches.emplace_back(std::move(test), inner_body({"elif", "else", "endif"}));
        } while (tokens_.sees_name("elif"));
        if (tokens_.take().word == "else") node->otherwise = body_until("endif");
        auto& unknown = expressions_.unknown;
        unknown.erase(unknown.begin() + static_cast<std::ptrdiff_t>(known_faults), unknown.end());
        return node;
    }

    StatementPtr for_loop() {
        auto node = std::make_unique<ForStatement>(tokens_.take().line);
        node->target = expressions_.target("in", false);
        tokens_.expect_name("in");
        node->items = expressions_.tuple("recursive", false);
        if (tokens_.skip_name("if")) node->test = expressions_.expression();
        if (tokens_.sees_name("recursive"))
            tokens_.fail(node->line, "loop 'recursive'", "a loop that does not call itself", "a recursive one");
        const bool outer = std::exchange(in_loop_, true);
        const bool any_outer = std::exchange(any_loop_, true);
        check_target(*node->target);
        node->body = inner_body({"else", "endfor"});
        in_loop_ = outer;
        any_loop_ = any_outer;
        if (tokens_.take().word == "else") node->otherwise = body_until("endfor");
        return node;
    }

    StatementPtr loop_control() {
        const Token& token = tokens_.take();
        if (!in_loop_)
            tokens_.fail(token.line, "tag '" + token.word + "'", "a for loop around it in the same macro", "none");
        const StatementKind kind = token.word == "break" ? StatementKind::break_loop : StatementKind::continue_loop;
        return std::make_unique<Statement>(kind, token.line);
    }

    StatementPtr macro() {
        auto node = std::make_unique<MacroStatement>(StatementKind::macro, tokens_.take().line);
        node->name = tokens_.expect_name();
        parameters(*node);
        return macro_body(std::move(node), "endmacro");
    }

    StatementPtr call_block() {
        auto node = std::make_unique<MacroStatement>(StatementKind::call_block, tokens_.take().line);
        node->name = "caller";
        if (tokens_.sees_symbol("(")) parameters(*node);
        node->call = expressions_.expression();
        if (node->call->kind != ExprKind::call)
            tokens_.fail(node->line, "tag 'call'", "the call of a macro", "another expression");
        return macro_body(std::move(node), "endcall");
    }

    StatementPtr macro_body(std::unique_ptr<MacroStatement> node, std::string_view end) {
        const std::size_t first = expressions_.names.size();
        const bool outer = std::exchange(in_loop_, false);
        node->body = body_until(end);
        in_loop_ = outer;
        node->uses_caller = contains(expressions_.names, first, "caller");
        node->uses_varargs = contains(expressions_.names, first, "varargs");
        node->uses_kwargs = contains(expressions_.names, first, "kwargs");
        return node;
    }

    void parameters(MacroStatement& node) {
        tokens_.expect_symbol("(");
        while (!tokens_.sees_symbol(")")) {
            if (!node.parameters.empty()) tokens_.expect_symbol(",");
            std::string name = tokens_.expect_name();
            ExprPtr fallback = tokens_.skip_symbol("=") ? expressions_.expression() : nullptr;
            if (!fallback && !node.parameters.empty() && node.parameters.back().second)
                tokens_.fail("'=': a parameter after one with a default needs one");
            node.parameters.emplace_back(std::move(name), std::move(fallback));
        }
        tokens_.take();
    }

    StatementPtr with() {
        auto node = std::make_unique<ScopeStatement>(tokens_.take().line);
        while (!tokens_.sees(TokenKind::block_end)) {
            if (!node->variables.empty()) tokens_.expect_symbol(",");
            ExprPtr target = expressions_.target("", false);
            tokens_.expect_symbol("=");
            node->variables.emplace_back(std::move(target), expressions_.expression());
        }
        node->body = body_until("endwith");
        return node;
    }

    StatementPtr generation() {
        auto node = std::make_unique<ScopeStatement>(tokens_.take().line);
        const bool outer = std::exchange(in_loop_, false);
        node->body = body_until("endgeneration");
        in_loop_ = outer;
        return node;
    }

    StatementPtr print() {
        auto node = std::make_unique<PrintStatement>(tokens_.take().line);
        while (!tokens_.sees(TokenKind::block_end)) {
            if (!node->values.empty()) tokens_.expect_symbol(",");
            node->values.push_back(expressions_.expression());
        }
        return node;
    }

    TokenStream& tokens_;
    ExpressionParser expressions_;
    int nesting_ = 0;
    bool in_loop_ = false;   ///< break and continue have a loop
    bool any_loop_ = false;  ///< within a loop's body, also behind a macro
};

}  // namespace

Body parse_template(std::string_view source, std::string_view file) {
    TokenStream tokens(tokenize(source, file), file);
    return StatementParser(tokens).whole();
}

}  // namespace longhaul::engine::jinja
