// Interpreter: expressions.
#include <array>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/interpreter.hpp"

namespace longhaul::engine::jinja {
namespace {

std::string_view name_of(Op op) {
    static constexpr std::array<std::string_view, 20> names{
        "not", "-",  "+",  "and", "or", "+",  "-", "*",  "/",  "//",
        "%",   "**", "==", "!=",  "<",  "<=", ">", ">=", "in", "not in"};
    return names[static_cast<std::size_t>(op)];
}

}  // namespace

Value Interpreter::evaluate(const Expr& expr) {
    const Runtime::Level level(runtime_);
    runtime_.work();
    switch (expr.kind) {
        case ExprKind::constant:
            return static_cast<const ConstantExpr&>(expr).value;
        case ExprKind::name:
            return evaluate_name(static_cast<const NameExpr&>(expr));
        case ExprKind::list:
        case ExprKind::tuple:
        case ExprKind::concat:
            return evaluate_list(static_cast<const ListExpr&>(expr));
        case ExprKind::dict:
            return evaluate_dict(static_cast<const DictExpr&>(expr));
        case ExprKind::attribute: {
            const auto& attribute = static_cast<const AttributeExpr&>(expr);
            const Value object = evaluate(*attribute.object);
            runtime_.enter(expr.line, "attribute", attribute.name);
            return attribute_of(runtime_, object, attribute.name);
        }
        case ExprKind::item: {
            const auto& item = static_cast<const ItemExpr&>(expr);
            const Value object = evaluate(*item.object);
            const Value index = evaluate(*item.index);
            runtime_.enter(expr.line, "subscript");
            return item_of(runtime_, object, index);
        }
        case ExprKind::slice:
            return evaluate_slice(static_cast<const SliceExpr&>(expr));
        case ExprKind::call:
            return evaluate_call(static_cast<const CallExpr&>(expr));
        case ExprKind::filter:
        case ExprKind::test:
            return evaluate_filter(static_cast<const FilterExpr&>(expr));
        case ExprKind::unary:
            return evaluate_unary(static_cast<const UnaryExpr&>(expr));
        case ExprKind::binary:
            return evaluate_binary(static_cast<const BinaryExpr&>(expr));
        case ExprKind::compare:
            return evaluate_compare(static_cast<const CompareExpr&>(expr));
        case ExprKind::condition:
            return evaluate_condition(static_cast<const ConditionExpr&>(expr));
        case ExprKind::name_space_field:
            break;  // only a target, see assign()
    }
    return {};
}

Value Interpreter::evaluate_name(const NameExpr& expr) {
    if (const Value* found = scope_->find(expr.name)) return *found;
    for (const auto& [name, value] : variables_) {
        if (name == expr.name) return value;
    }
    const std::int64_t function = find_function(expr.name);
    if (function >= 0) return Value::function(function);
    return runtime_.undefined("variable '" + printable(expr.name) + "', which is undefined");
}

Values Interpreter::evaluate_all(const ExprList& exprs) {
    Values values;
    values.reserve(exprs.size());
    for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr));
    return values;
}

Value Interpreter::evaluate_list(const ListExpr& expr) {
    Values values = evaluate_all(expr.items);
    runtime_.enter(expr.line, expr.kind == ExprKind::concat ? "operator '~'" : "");
    if (expr.kind == ExprKind::list) return runtime_.list(std::move(values));
    if (expr.kind == ExprKind::tuple) return runtime_.tuple(std::move(values));
    Output joined(runtime_);
    for (const Value& value : values) joined.append(text_of(runtime_, value));
    return runtime_.text(joined.take());
}

Value Interpreter::evaluate_dict(const DictExpr& expr) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, value] : expr.items) {
        Value made = evaluate(*key);
        items.emplace_back(std::move(made), evaluate(*value));
    }
    runtime_.enter(expr.line, "");
    return make_dict(runtime_, items);
}

Value Interpreter::evaluate_slice(const SliceExpr& expr) {
    const Value object = evaluate(*expr.object);
    const auto bound = [&](const ExprPtr& part) { return part ? evaluate(*part) : Value::none(); };
    const Value start = bound(expr.start);
    const Value stop = bound(expr.stop);
    const Value step = bound(expr.step);
    runtime_.enter(expr.line, "slice");
    return slice_of(runtime_, object, start, stop, step);
}

Value Interpreter::evaluate_unary(const UnaryExpr& expr) {
    const Value operand = evaluate(*expr.operand);
    if (expr.op == Op::logical_not) return Value::boolean(!operand.truth());
    runtime_.enter(expr.line, "operator", name_of(expr.op));
    return signed_value(runtime_, expr.op, operand);
}

Value Interpreter::evaluate_binary(const BinaryExpr& expr) {
    Value left = evaluate(*expr.left);
    if (expr.op == Op::logical_and || expr.op == Op::logical_or) {
        const bool decided = left.truth() == (expr.op == Op::logical_or);
        return decided ? left : evaluate(*expr.right);
    }
    const Value right = evaluate(*expr.right);
    runtime_.enter(expr.line, "operator", name_of(expr.op));
    return arithmetic(runtime_, expr.op, left, right);
}

Value Interpreter::evaluate_compare(const CompareExpr& expr) {
    Value left = evaluate(*expr.first);
    for (const auto& [op, operand] : expr.rest) {
        Value right = evaluate(*operand);
        runtime_.enter(expr.line, "operator", name_of(op));
        if (!compare(runtime_, op, left, right)) return Value::boolean(false);
        left = std::move(right);
    }
    return Value::boolean(true);
}

Value Interpreter::evaluate_condition(const ConditionExpr& expr) {
    if (evaluate(*expr.test).truth()) return evaluate(*expr.yes);
    if (expr.no) return evaluate(*expr.no);
    return runtime_.undefined("the value of an inline if whose condition is false and that has no else");
}

Arguments Interpreter::evaluate_arguments(const ArgumentExprs& exprs) {
    Arguments arguments{evaluate_all(exprs.positional), {}};
    for (const auto& [name, value] : exprs.keyword) arguments.keyword.emplace_back(name, evaluate(*value));
    if (exprs.more_positional) {
        const Value more = evaluate(*exprs.more_positional);
        const Values items = items_of(runtime_, more);
        arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
    }
    if (!exprs.more_keyword) return arguments;
    const Value more = evaluate(*exprs.more_keyword);
    if (!more.is(Kind::dict)) runtime_.refuse("a dict after **", more);
    for (const auto& [name, value] : more.as_dict().items) {
        if (!name.is(Kind::text)) runtime_.refuse("names of arguments", name);
        arguments.keyword.emplace_back(name.bytes(), value);
    }
    return arguments;
}

Value Interpreter::evaluate_call(const CallExpr& expr, const Value* caller) {
    const Value callee = evaluate(*expr.callee);
    runtime_.enter(expr.line, "call");
    Arguments arguments = evaluate_arguments(expr.arguments);
    if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
    runtime_.enter(expr.line, "call");
    switch (callee.kind()) {
        case Kind::macro:
            return call_macro(static_cast<const Macro&>(*callee.object()), std::move(arguments), expr.line);
        case Kind::function: {
            const auto* name =
                expr.callee->kind == ExprKind::name ? static_cast<const NameExpr*>(&*expr.callee) : nullptr;
            if (name != nullptr) runtime_.enter(expr.line, "function", name->name);
            return call_function(runtime_, callee.as_integer(), arguments);
        }
        case Kind::method: {
            const auto& method = static_cast<const Method&>(*callee.object());
            runtime_.enter(expr.line, "method", method.name);
            return call_method(runtime_, method.self, method.name, arguments);
        }
        default:
            runtime_.refuse("a macro, function or method", callee);
    }
}

Value Interpreter::evaluate_filter(const FilterExpr& expr, const Value* block_text) {
    const bool is_filter = expr.kind == ExprKind::filter;
    Value input;
    if (expr.input && expr.input->kind == ExprKind::filter) {
        const Runtime::Level level(runtime_);
        input = evaluate_filter(static_cast<const FilterExpr&>(*expr.input), block_text);
    } else {
        input = expr.input ? evaluate(*expr.input) : *block_text;
    }
    runtime_.enter(expr.line, is_filter ? "filter" : "test", expr.name);
    const Arguments arguments = evaluate_arguments(expr.arguments);
    runtime_.enter(expr.line, is_filter ? "filter" : "test", expr.name);
    if (is_filter) return apply_filter(runtime_, expr.name, input, arguments);
    return Value::boolean(apply_test(runtime_, expr.name, input, arguments));
}

}  // namespace longhaul::engine::jinja
