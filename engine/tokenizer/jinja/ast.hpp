// The syntax tree of a template. Each node has the line where it begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/value.hpp"

namespace longhaul::engine::jinja {

enum class ExprKind : std::uint8_t {
    constant,
    name,
    list,
    tuple,
    dict,
    attribute,
    item,
    slice,
    call,
    filter,
    test,
    unary,
    binary,
    concat,
    compare,
    condition,
    name_space_field
};

enum class Op : std::uint8_t {
    logical_not,
    negate,
    plus,
    logical_and,
    logical_or,
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
using ExprList = std::vector<ExprPtr>;

/// An expression. `depth`: levels of expressions below it, itself included.
struct Expr {
    Expr(ExprKind which, int at) : kind(which), line(at) {}
    Expr(const Expr&) = delete;
    Expr& operator=(const Expr&) = delete;
    virtual ~Expr() = default;

    const ExprKind kind;
    const int line;
    int depth = 1;
};

struct ConstantExpr : Expr {
    ConstantExpr(int at, Value constant) : Expr(ExprKind::constant, at), value(std::move(constant)) {}
    Value value;
};

struct NameExpr : Expr {
    NameExpr(int at, std::string word) : Expr(ExprKind::name, at), name(std::move(word)) {}
    std::string name;
};

/// A list, tuple or concatenation (a ~ b ~ c).
struct ListExpr : Expr {
    ListExpr(ExprKind which, int at, ExprList parts) : Expr(which, at), items(std::move(parts)) {}
    ExprList items;
};

struct DictExpr : Expr {
    explicit DictExpr(int at) : Expr(ExprKind::dict, at) {}
    std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

/// object.name
struct AttributeExpr : Expr {
    AttributeExpr(int at, ExprPtr from, std::string word)
        : Expr(ExprKind::attribute, at), object(std::move(from)), name(std::move(word)) {}
    ExprPtr object;
    std::string name;
};

/// object[index]
struct ItemExpr : Expr {
    ItemExpr(int at, ExprPtr from, ExprPtr which)
        : Expr(ExprKind::item, at), object(std::move(from)), index(std::move(which)) {}
    ExprPtr object, index;
};

/// object[start:stop:step]; each may be null.
struct SliceExpr : Expr {
    SliceExpr(int at, ExprPtr from) : Expr(ExprKind::slice, at), object(std::move(from)) {}
    ExprPtr object, start, stop, step;
};

struct ArgumentExprs {
    ExprList positional;
    std::vector<std::pair<std::string, ExprPtr>> keyword;
    ExprPtr more_positional, more_keyword;  ///< *list and **dict; may be null
};

struct CallExpr : Expr {
    explicit CallExpr(int at) : Expr(ExprKind::call, at) {}
    ExprPtr callee;
    ArgumentExprs arguments;
};

/// A filter or test. `input` null: the text of the block that is filtered.
struct FilterExpr : Expr {
    FilterExpr(ExprKind which, int at) : Expr(which, at) {}
    ExprPtr input;
    std::string name;
    ArgumentExprs arguments;
};

struct UnaryExpr : Expr {
    UnaryExpr(int at, Op which, ExprPtr on) : Expr(ExprKind::unary, at), op(which), operand(std::move(on)) {}
    Op op;
    ExprPtr operand;
};

struct BinaryExpr : Expr {
    BinaryExpr(int at, Op which, ExprPtr a, ExprPtr b)
        : Expr(ExprKind::binary, at), op(which), left(std::move(a)), right(std::move(b)) {}
    Op op;
    ExprPtr left, right;
};

/// first op a op b ...
struct CompareExpr : Expr {
    CompareExpr(int at, ExprPtr a) : Expr(ExprKind::compare, at), first(std::move(a)) {}
    ExprPtr first;
    std::vector<std::pair<Op, ExprPtr>> rest;
};

/// yes if test else no; `no` may be null.
struct ConditionExpr : Expr {
    ConditionExpr(int at, ExprPtr when, ExprPtr a, ExprPtr b)
        : Expr(ExprKind::condition, at), test(std::move(when)), yes(std::move(a)), no(std::move(b)) {}
    ExprPtr test, yes, no;
};

/// name.field as the target of an assignment.
struct NamespaceFieldExpr : Expr {
    NamespaceFieldExpr(int at, std::string word, std::string field_name)
        : Expr(ExprKind::name_space_field, at), name(std::move(word)), field(std::move(field_name)) {}
    std::string name, field;
};

enum class StatementKind : std::uint8_t {
    text,
    print,
    set,
    set_block,
    for_loop,
    if_chain,
    macro,
    call_block,
    filter_block,
    scope,  ///< with, generation
    break_loop,
    continue_loop
};

struct Statement {
    Statement(StatementKind which, int at) : kind(which), line(at) {}
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;
    virtual ~Statement() = default;

    const StatementKind kind;
    const int line;
};

struct Body {
    std::vector<std::unique_ptr<Statement>> statements;
};

struct TextStatement : Statement {
    TextStatement(int at, std::string words) : Statement(StatementKind::text, at), text(std::move(words)) {}
    std::string text;
};

struct PrintStatement : Statement {
    explicit PrintStatement(int at) : Statement(StatementKind::print, at) {}
    ExprList values;
};

/// {% set target = value %}
struct SetStatement : Statement {
    explicit SetStatement(int at) : Statement(StatementKind::set, at) {}
    ExprPtr target, value;
};

/// {% set target %}body{% endset %}, and {% filter … %}body{% endfilter %}, whose target is null.
struct BlockStatement : Statement {
    BlockStatement(StatementKind which, int at) : Statement(which, at) {}
    ExprPtr target;
    ExprPtr filter;  ///< may be null
    Body body;
};

struct ForStatement : Statement {
    explicit ForStatement(int at) : Statement(StatementKind::for_loop, at) {}
    ExprPtr target, items;
    ExprPtr test;  ///< may be null
    Body body, otherwise;
};

struct IfStatement : Statement {
    explicit IfStatement(int at) : Statement(StatementKind::if_chain, at) {}
    std::vector<std::pair<ExprPtr, Body>> branches;
    Body otherwise;
};

/// {% macro name(parameters) %}, and {% call(parameters) call %}, whose body is the macro `caller` of the call.
struct MacroStatement : Statement {
    MacroStatement(StatementKind which, int at) : Statement(which, at) {}
    std::string name;
    std::vector<std::pair<std::string, ExprPtr>> parameters;  ///< default may be null
    ExprPtr call;                                             ///< call_block
    Body body;
    bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  ///< the body mentions these names
};

/// Statements in a scope of their own, with variables (with) or none (generation).
struct ScopeStatement : Statement {
    explicit ScopeStatement(int at) : Statement(StatementKind::scope, at) {}
    std::vector<std::pair<ExprPtr, ExprPtr>> variables;
    Body body;
};

}  // namespace longhaul::engine::jinja
