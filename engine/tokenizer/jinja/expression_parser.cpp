// Expressions, in order of precedence as in jinja2's parser.
#include <array>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/names.hpp"
#include "engine/tokenizer/jinja/parser.hpp"

namespace longhaul::engine::jinja {

namespace {

constexpr int max_nesting = 150;
/// Levels of a tree. More than nesting, because each operator of a chain a + b + c adds one.
constexpr int max_tree_depth = 600;

constexpr std::array<std::pair<std::string_view, Op>, 6> comparisons{{{"==", Op::equal},
                                                                      {"!=", Op::not_equal},
                                                                      {"<", Op::less},
                                                                      {"<=", Op::less_equal},
                                                                      {">", Op::greater},
                                                                      {">=", Op::greater_equal}}};

constexpr std::array<std::pair<std::string_view, Op>, 4> products{
    {{"*", Op::multiply}, {"/", Op::divide}, {"//", Op::floor_divide}, {"%", Op::modulo}}};

template <std::size_t count>
const Op* find_op(const std::array<std::pair<std::string_view, Op>, count>& table, const Token& token) {
    for (const auto& [word, op] : table) {
        if (TokenStream::is_symbol(token, word)) return &op;
    }
    return nullptr;
}

}  // namespace

/// Bounds the recursion of the parser: brackets, signs, conditions.
class Nesting {
  public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
        if (parser_.nesting_ >= max_nesting)
            parser_.tokens_.fail(parser_.tokens_.line(), "",
                                 "at most " + std::to_string(max_nesting) + " levels of nested expressions", "more");
        ++parser_.nesting_;
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

  private:
    ExpressionParser& parser_;
};

const Token& TokenStream::take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
}

bool TokenStream::skip_name(std::string_view word) {
    if (!sees_name(word)) return false;
    take();
    return true;
}

bool TokenStream::skip_symbol(std::string_view word) {
    if (!sees_symbol(word)) return false;
    take();
    return true;
}

std::string TokenStream::expect_name() {
    if (!sees(TokenKind::name)) fail("a name");
    return take().word;
}

void TokenStream::expect_name(std::string_view word) {
    if (!skip_name(word)) fail("'" + std::string(word) + "'");
}

void TokenStream::expect_symbol(std::string_view word) {
    if (!skip_symbol(word)) fail("'" + std::string(word) + "'");
}

void TokenStream::expect(TokenKind kind) {
    if (!sees(kind)) fail(kind == TokenKind::print_end ? "'}}'" : "'%}'");
    take();
}

void TokenStream::fail(std::string_view expected) const {
    const Token& token = current();
    switch (token.kind) {
        case TokenKind::name:
        case TokenKind::symbol:
            fail(token.line, "", expected, "'" + printable(token.word) + "'");
        case TokenKind::text:
            fail(token.line, "", expected, "a string");
        case TokenKind::integer:
        case TokenKind::real:
            fail(token.line, "", expected, "a number");
        case TokenKind::print_end:
            fail(token.line, "", expected, "'}}'");
        case TokenKind::block_end:
            fail(token.line, "", expected, "'%}'");
        default:
            fail(token.line, "", expected, "the end of the template");
    }
}

void TokenStream::fail(int line, std::string_view construct, std::string_view expected, std::string_view got) const {
    throw error(line, construct, expected, got);
}

/// Depth of the deepest argument.
static int depth_of(const ArgumentExprs& arguments) {
    int depth = 0;
    const auto add = [&](const ExprPtr& argument) { depth = std::max(depth, argument ? argument->depth : 0); };
    for (const ExprPtr& argument : arguments.positional) add(argument);
    for (const auto& [name, argument] : arguments.keyword) add(argument);
    add(arguments.more_positional);
    add(arguments.more_keyword);
    return depth;
}

template <class Node>
ExprPtr ExpressionParser::finished(std::unique_ptr<Node> node, std::initializer_list<const Expr*> children) {
    for (const Expr* child : children) {
        if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
    }
    if (node->depth > max_tree_depth)
        tokens_.fail(node->line, "", "an expression of at most " + std::to_string(max_tree_depth) + " levels", "more");
    return node;
}

ExprPtr ExpressionParser::expression() {
    const Nesting nesting(*this);
    const std::size_t known_faults = unknown.size();
    int line = tokens_.line();
    ExprPtr value = or_expression();
    while (tokens_.skip_name("if")) {
        ExprPtr condition = or_expression();
        ExprPtr otherwise = tokens_.skip_name("else") ? expression() : nullptr;
        unknown.erase(unknown.begin() + static_cast<std::ptrdiff_t>(known_faults), unknown.end());
        const std::initializer_list<const Expr*> children{condition.get(), value.get(), otherwise.get()};
        value = finished(
            std::make_unique<ConditionExpr>(line, std::move(condition), std::move(value), std::move(otherwise)),
            children);
        line = tokens_.line();
    }
    return value;
}

ExprPtr ExpressionParser::binary(int line, Op op, ExprPtr left, ExprPtr right) {
    const std::initializer_list<const Expr*> children{left.get(), right.get()};
    return finished(std::make_unique<BinaryExpr>(line, op, std::move(left), std::move(right)), children);
}

ExprPtr ExpressionParser::or_expression() {
    const int line = tokens_.line();
    ExprPtr left = and_expression();
    while (tokens_.skip_name("or")) left = binary(line, Op::logical_or, std::move(left), and_expression());
    return left;
}

ExprPtr ExpressionParser::and_expression() {
    const int line = tokens_.line();
    ExprPtr left = not_expression();
    while (tokens_.skip_name("and")) left = binary(line, Op::logical_and, std::move(left), not_expression());
    return left;
}

ExprPtr ExpressionParser::not_expression() {
    const Nesting nesting(*this);
    const int line = tokens_.line();
    if (!tokens_.skip_name("not")) return comparison();
    ExprPtr operand = not_expression();
    const Expr* child = operand.get();
    return finished(std::make_unique<UnaryExpr>(line, Op::logical_not, std::move(operand)), {child});
}

ExprPtr ExpressionParser::comparison() {
    const int line = tokens_.line();
    ExprPtr first = sum();
    std::vector<std::pair<Op, ExprPtr>> rest;
    int depth = first->depth;
    for (;;) {
        const Op* found = find_op(comparisons, tokens_.current());
        Op op = found != nullptr ? *found : Op::in;
        if (tokens_.sees_name("not") && TokenStream::is_name(tokens_.next(), "in")) {
            tokens_.take();
            op = Op::not_in;
        } else if (found == nullptr && !tokens_.sees_name("in")) {
            break;
        }
        tokens_.take();
        rest.emplace_back(op, sum());
        depth = std::max(depth, rest.back().second->depth);
    }
    if (rest.empty()) return first;
    auto node = std::make_unique<CompareExpr>(line, std::move(first));
    node->rest = std::move(rest);
    node->depth = depth + 1;
    return finished(std::move(node), {});
}

ExprPtr ExpressionParser::sum() {
    const int line = tokens_.line();
    ExprPtr left = concat();
    while (tokens_.sees_symbol("+") || tokens_.sees_symbol("-")) {
        const Op op = tokens_.take().word == "+" ? Op::add : Op::subtract;
        left = binary(line, op, std::move(left), concat());
    }
    return left;
}

ExprPtr ExpressionParser::concat() {
    const int line = tokens_.line();
    ExprPtr first = product();
    if (!tokens_.sees_symbol("~")) return first;
    ExprList items;
    int depth = first->depth;
    items.push_back(std::move(first));
    while (tokens_.skip_symbol("~")) {
        items.push_back(product());
        depth = std::max(depth, items.back()->depth);
    }
    auto node = std::make_unique<ListExpr>(ExprKind::concat, line, std::move(items));
    node->depth = depth + 1;
    return finished(std::move(node), {});
}

ExprPtr ExpressionParser::product() {
    const int line = tokens_.line();
    ExprPtr left = power();
    while (const Op* op = find_op(products, tokens_.current())) {
        tokens_.take();
        left = binary(line, *op, std::move(left), power());
    }
    return left;
}

ExprPtr ExpressionParser::power() {
    const int line = tokens_.line();
    ExprPtr left = unary(true);
    while (tokens_.skip_symbol("**")) left = binary(line, Op::power, std::move(left), unary(true));
    return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
    const Nesting nesting(*this);
    const int line = tokens_.line();
    ExprPtr value;
    if (tokens_.sees_symbol("-") || tokens_.sees_symbol("+")) {
        const Op op = tokens_.take().word == "-" ? Op::negate : Op::plus;
        ExprPtr operand = unary(false);
        const Expr* child = operand.get();
        value = finished(std::make_unique<UnaryExpr>(line, op, std::move(operand)), {child});
    } else {
        value = primary(false);
    }
    value = postfix(std::move(value));
    return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::primary(bool fields) {
    const Token token = tokens_.current();
    switch (token.kind) {
        case TokenKind::text:
            return constant_text();
        case TokenKind::integer:
            tokens_.take();
            return std::make_unique<ConstantExpr>(token.line, Value::integer(token.integer));
        case TokenKind::real:
            tokens_.take();
            return std::make_unique<ConstantExpr>(token.line, Value::real(token.real));
        case TokenKind::name:
            break;
        default:
            if (tokens_.sees_symbol("[")) return list();
            if (tokens_.sees_symbol("{")) return dict();
            if (!tokens_.skip_symbol("(")) tokens_.fail("a value");
            ExprPtr value = tuple(")");
            tokens_.expect_symbol(")");
            return value;
    }
    tokens_.take();
    if (token.word == "true" || token.word == "True" || token.word == "false" || token.word == "False")
        return std::make_unique<ConstantExpr>(token.line, Value::boolean((token.word.front() | 0x20) == 't'));
    if (token.word == "none" || token.word == "None") return std::make_unique<ConstantExpr>(token.line, Value::none());
    names.push_back(token.word);
    if (fields && tokens_.skip_symbol("."))
        return std::make_unique<NamespaceFieldExpr>(token.line, token.word, tokens_.expect_name());
    return std::make_unique<NameExpr>(token.line, token.word);
}

ExprPtr ExpressionParser::constant_text() {
    const int line = tokens_.line();
    std::string text;
    while (tokens_.sees(TokenKind::text)) text += tokens_.take().word;
    return std::make_unique<ConstantExpr>(line, Value::text(std::move(text)));
}

ExprPtr ExpressionParser::tuple(std::string_view end, bool with_condition) {
    const Nesting nesting(*this);
    const bool parentheses = end == ")";
    const int line = tokens_.line();
    const auto is_end = [&] {
        return tokens_.sees(TokenKind::print_end) || tokens_.sees(TokenKind::block_end) || tokens_.sees_symbol(")") ||
               (!end.empty() && tokens_.sees_name(end));
    };
    ExprList items;
    bool comma = false;
    int depth = 0;
    while (!is_end()) {
        items.push_back(with_condition ? expression() : or_expression());
        depth = std::max(depth, items.back()->depth);
        if (!tokens_.sees_symbol(",")) break;
        tokens_.take();
        comma = true;
    }
    if (!comma && !items.empty()) return std::move(items.front());
    if (!comma && !parentheses) tokens_.fail("an expression");
    auto node = std::make_unique<ListExpr>(ExprKind::tuple, line, std::move(items));
    node->depth = depth + 1;
    return finished(std::move(node), {});
}

ExprPtr ExpressionParser::target(std::string_view end, bool fields) {
    const Nesting nesting(*this);
    const int line = tokens_.line();
    ExprList items;
    bool comma = false;
    while (!tokens_.sees(TokenKind::block_end) && !tokens_.sees_symbol(")") &&
           (end.empty() || !tokens_.sees_name(end))) {
        if (tokens_.skip_symbol("(")) {
            items.push_back(target("", fields));
            tokens_.expect_symbol(")");
        } else {
            items.push_back(tokens_.sees(TokenKind::name) ? primary(fields) : nullptr);
            if (!items.back() || items.back()->kind == ExprKind::constant) tokens_.fail("a variable to assign to");
        }
        if (!tokens_.skip_symbol(",")) break;
        comma = true;
    }
    if (items.empty()) tokens_.fail("a variable to assign to");
    if (!comma) return std::move(items.front());
    return std::make_unique<ListExpr>(ExprKind::tuple, line, std::move(items));
}

ExprPtr ExpressionParser::list() {
    const int line = tokens_.line();
    tokens_.expect_symbol("[");
    auto node = std::make_unique<ListExpr>(ExprKind::list, line, ExprList());
    while (!tokens_.sees_symbol("]")) {
        node->items.push_back(expression());
        node->depth = std::max(node->depth, node->items.back()->depth + 1);
        if (!tokens_.sees_symbol("]")) tokens_.expect_symbol(",");
    }
    tokens_.take();
    return finished(std::move(node), {});
}

ExprPtr ExpressionParser::dict() {
    auto node = std::make_unique<DictExpr>(tokens_.line());
    tokens_.expect_symbol("{");
    while (!tokens_.sees_symbol("}")) {
        ExprPtr key = expression();
        tokens_.expect_symbol(":");
        node->items.emplace_back(std::move(key), expression());
        node->depth =
            std::max({node->depth, node->items.back().first->depth + 1, node->items.back().second->depth + 1});
        if (!tokens_.sees_symbol("}")) tokens_.expect_symbol(",");
    }
    tokens_.take();
    return finished(std::move(node), {});
}

ExprPtr ExpressionParser::postfix(ExprPtr value) {
    for (;;) {
        if (tokens_.sees_symbol(".") || tokens_.sees_symbol("[")) {
            value = subscript(std::move(value));
        } else if (tokens_.sees_symbol("(")) {
            value = call(std::move(value));
        } else {
            return value;
        }
    }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr value) {
    for (;;) {
        if (tokens_.sees_symbol("|")) {
            value = filters(std::move(value));
        } else if (tokens_.sees_name("is")) {
            value = test(std::move(value));
        } else if (tokens_.sees_symbol("(")) {
            value = call(std::move(value));
        } else {
            return value;
        }
    }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
    const int line = tokens_.line();
    const Expr* child = object.get();
    if (tokens_.skip_symbol(".")) {
        if (tokens_.sees(TokenKind::name))
            return finished(std::make_unique<AttributeExpr>(line, std::move(object), tokens_.take().word), {child});
        if (!tokens_.sees(TokenKind::integer)) tokens_.fail("a name or number");
        auto index = std::make_unique<ConstantExpr>(line, Value::integer(tokens_.take().integer));
        return finished(std::make_unique<ItemExpr>(line, std::move(object), std::move(index)), {child});
    }
    tokens_.expect_symbol("[");
    ExprPtr value = subscript_argument(std::move(object), line);
    tokens_.expect_symbol("]");
    return value;
}

ExprPtr ExpressionParser::subscript_argument(ExprPtr object, int line) {
    if (tokens_.sees_symbol(":")) return slice(line, std::move(object), nullptr);
    ExprPtr index = expression();
    if (tokens_.sees_symbol(":")) return slice(line, std::move(object), std::move(index));
    if (tokens_.sees_symbol(",")) {
        auto items = std::make_unique<ListExpr>(ExprKind::tuple, line, ExprList());
        items->depth = index->depth + 1;
        items->items.push_back(std::move(index));
        while (tokens_.skip_symbol(",")) {
            items->items.push_back(expression());
            items->depth = std::max(items->depth, items->items.back()->depth + 1);
        }
        index = std::move(items);
    }
    const std::initializer_list<const Expr*> children{object.get(), index.get()};
    return finished(std::make_unique<ItemExpr>(line, std::move(object), std::move(index)), children);
}

ExprPtr ExpressionParser::slice(int line, ExprPtr object, ExprPtr start) {
    auto node = std::make_unique<SliceExpr>(line, std::move(object));
    node->start = std::move(start);
    tokens_.expect_symbol(":");
    if (!tokens_.sees_symbol(":") && !tokens_.sees_symbol("]")) node->stop = expression();
    if (tokens_.skip_symbol(":") && !tokens_.sees_symbol("]")) node->step = expression();
    const std::initializer_list<const Expr*> children{node->object.get(), node->start.get(), node->stop.get(),
                                                      node->step.get()};
    return finished(std::move(node), children);
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
    auto node = std::make_unique<CallExpr>(tokens_.line());
    node->callee = std::move(callee);
    node->arguments = arguments();
    node->depth = depth_of(node->arguments) + 1;
    const Expr* child = node->callee.get();
    return finished(std::move(node), {child});
}

ArgumentExprs ExpressionParser::arguments() {
    const Nesting nesting(*this);
    ArgumentExprs result;
    tokens_.expect_symbol("(");
    while (!tokens_.sees_symbol(")")) {
        argument(result);
        if (!tokens_.sees_symbol(")")) tokens_.expect_symbol(",");
    }
    tokens_.take();
    return result;
}

void ExpressionParser::argument(ArgumentExprs& into) {
    const bool only_named = into.more_positional || into.more_keyword || !into.keyword.empty();
    if (tokens_.sees_symbol("*") && !into.more_positional && !into.more_keyword) {
        tokens_.take();
        into.more_positional = expression();
    } else if (tokens_.sees_symbol("**") && !into.more_keyword) {
        tokens_.take();
        into.more_keyword = expression();
    } else if (tokens_.sees(TokenKind::name) && TokenStream::is_symbol(tokens_.next(), "=") && !into.more_keyword) {
        std::string name = tokens_.take().word;
        tokens_.take();
        into.keyword.emplace_back(std::move(name), expression());
    } else {
        if (only_named) tokens_.fail("an argument with a name after arguments with names");
        into.positional.push_back(expression());
    }
}

ExprPtr ExpressionParser::filters(ExprPtr input, bool first_is_open) {
    while (first_is_open || tokens_.skip_symbol("|")) {
        first_is_open = false;
        auto node = std::make_unique<FilterExpr>(ExprKind::filter, tokens_.line());
        node->name = tokens_.expect_name();
        while (tokens_.skip_symbol(".")) node->name += "." + tokens_.expect_name();
        if (tokens_.sees_symbol("(")) node->arguments = arguments();
        node->depth = depth_of(node->arguments) + 1;
        node->input = std::move(input);
        note_if_unknown(*node);
        const Expr* child = node->input.get();
        input = finished(std::move(node), {child});
    }
    return input;
}

ExprPtr ExpressionParser::test(ExprPtr input) {
    auto node = std::make_unique<FilterExpr>(ExprKind::test, tokens_.take().line);
    const bool negated = tokens_.skip_name("not");
    node->name = tokens_.expect_name();
    while (tokens_.skip_symbol(".")) node->name += "." + tokens_.expect_name();
    const bool literal = tokens_.sees(TokenKind::text) || tokens_.sees(TokenKind::integer) ||
                         tokens_.sees(TokenKind::real) || tokens_.sees_symbol("[") || tokens_.sees_symbol("{");
    const bool word = tokens_.sees(TokenKind::name) && !tokens_.sees_name("else") && !tokens_.sees_name("or") &&
                      !tokens_.sees_name("and");
    if (tokens_.sees_symbol("(")) {
        node->arguments = arguments();
    } else if (literal || word) {
        if (tokens_.sees_name("is")) tokens_.fail("one test with 'is'");
        node->arguments.positional.push_back(postfix(primary(false)));
    }
    node->depth = depth_of(node->arguments) + 1;
    node->input = std::move(input);
    note_if_unknown(*node);
    const int line = node->line;
    const Expr* child = node->input.get();
    ExprPtr result = finished(std::move(node), {child});
    if (!negated) return result;
    child = result.get();
    return finished(std::make_unique<UnaryExpr>(line, Op::logical_not, std::move(result)), {child});
}

void ExpressionParser::note_if_unknown(const FilterExpr& use) {
    const bool filter = use.kind == ExprKind::filter;
    const Support support = filter ? filter_support(use.name) : test_support(use.name);
    if (support == Support::here) return;
    unknown.push_back(tokens_.error(use.line, (filter ? "filter '" : "test '") + use.name + "'",
                                    filter ? "a filter of chat templates" : "a test of chat templates",
                                    unsupported_words(support)));
}

}  // namespace longhaul::engine::jinja
