// Builds the syntax tree of a template. The grammar is that of jinja2's parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/error.hpp"
#include "engine/tokenizer/jinja/ast.hpp"
#include "engine/tokenizer/jinja/lexer.hpp"

namespace longhaul::engine::jinja {

/// The tokens of a template, and what the parsers of expressions and statements share.
class TokenStream {
  public:
    TokenStream(std::vector<Token> tokens, std::string_view file) : tokens_(std::move(tokens)), file_(file) {}

    [[nodiscard]] const Token& current() const { return tokens_[at_]; }
    [[nodiscard]] const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    [[nodiscard]] int line() const { return current().line; }
    [[nodiscard]] bool sees(TokenKind kind) const { return current().kind == kind; }
    [[nodiscard]] bool sees_name(std::string_view word) const { return is_name(current(), word); }
    [[nodiscard]] bool sees_symbol(std::string_view word) const { return is_symbol(current(), word); }
    static bool is_name(const Token& token, std::string_view word) {
        return token.kind == TokenKind::name && token.word == word;
    }
    static bool is_symbol(const Token& token, std::string_view word) {
        return token.kind == TokenKind::symbol && token.word == word;
    }

    /// Returns the current token and goes on to the next one.
    const Token& take();
    bool skip_name(std::string_view word);
    bool skip_symbol(std::string_view word);
    std::string expect_name();
    void expect_name(std::string_view word);
    void expect_symbol(std::string_view word);
    void expect(TokenKind kind);

    [[nodiscard]] InputError error(int line, std::string_view construct, std::string_view expected,
                                   std::string_view got) const {
        return {std::string(file_) + ":" + std::to_string(line), construct, expected, got};
    }
    [[noreturn]] void fail(std::string_view expected) const;
    [[noreturn]] void fail(int line, std::string_view construct, std::string_view expected, std::string_view got) const;

  private:
    std::vector<Token> tokens_;
    std::string_view file_;
    std::size_t at_ = 0;
};

class ExpressionParser {
  public:
    explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

    ExprPtr expression();
    /// An expression, or a tuple without parentheses: a, b. It ends before the word `end` if that is not empty.
    ExprPtr tuple(std::string_view end = {}, bool with_condition = true);
    /// Target of an assignment: a name, a tuple of names; `fields`: also a field of a namespace.
    ExprPtr target(std::string_view end, bool fields);
    /// Filters after `input`: | name(arguments) | ... Null if there is none and `input` is null. `first_is_open`: the
    /// first one has no "|".
    ExprPtr filters(ExprPtr input, bool first_is_open = false);

    /// Names that have been read, in order: which special variables a macro's body uses.
    std::vector<std::string> names;
    /// Unknown filters and tests. An error only where jinja2 looks for them at once: not within an if.
    std::vector<InputError> unknown;

  private:
    friend class Nesting;

    ExprPtr or_expression();
    ExprPtr and_expression();
    ExprPtr not_expression();
    ExprPtr comparison();
    ExprPtr sum();
    ExprPtr concat();
    ExprPtr product();
    ExprPtr power();
    ExprPtr unary(bool with_filters);
    ExprPtr primary(bool fields);
    ExprPtr constant_text();
    ExprPtr list();
    ExprPtr dict();
    ExprPtr postfix(ExprPtr value);
    ExprPtr filters_and_tests(ExprPtr value);
    ExprPtr subscript(ExprPtr object);
    ExprPtr subscript_argument(ExprPtr object, int line);
    ExprPtr slice(int line, ExprPtr object, ExprPtr start);
    ExprPtr call(ExprPtr callee);
    ExprPtr test(ExprPtr input);
    ArgumentExprs arguments();
    void argument(ArgumentExprs& into);
    ExprPtr binary(int line, Op op, ExprPtr left, ExprPtr right);
    void note_if_unknown(const FilterExpr& use);
    template <class Node>
    ExprPtr finished(std::unique_ptr<Node> node, std::initializer_list<const Expr*> children);

    TokenStream& tokens_;
    int nesting_ = 0;
};

/// Throws InputError with file and line.
Body parse_template(std::string_view source, std::string_view file);

}  // namespace longhaul::engine::jinja
