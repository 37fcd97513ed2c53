// Interpreter: statements and macros.
#include <algorithm>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/interpreter.hpp"

namespace longhaul::engine::jinja {
namespace {

/// Ends a loop with its statement.
class LoopEnd {
  public:
    explicit LoopEnd(Loop& loop) : loop_(loop) {}
    ~LoopEnd() { loop_.end(); }
    LoopEnd(const LoopEnd&) = delete;
    LoopEnd& operator=(const LoopEnd&) = delete;

  private:
    Loop& loop_;
};

}  // namespace

Interpreter::Interpreter(Runtime& runtime, const Variables& variables)
    : runtime_(runtime), variables_(variables), scope_(std::make_shared<Scope>()) {}

std::string Interpreter::run(const Body& body) {
    Output output(runtime_);
    execute(body, output);
    return output.take();
}

Interpreter::Flow Interpreter::execute(const Body& body, Output& output) {
    const Runtime::Level level(runtime_);
    for (const auto& statement : body.statements) {
        runtime_.work();
        const Flow flow = execute(*statement, output);
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Output& output) {
    switch (statement.kind) {
        case StatementKind::text:
            runtime_.enter(statement.line, "");
            output.append(static_cast<const TextStatement&>(statement).text);
            return Flow::next;
        case StatementKind::print:
            for (const ExprPtr& expr : static_cast<const PrintStatement&>(statement).values) {
                const Value value = evaluate(*expr);
                runtime_.enter(statement.line, "");
                output.append(text_of(runtime_, value));
            }
            return Flow::next;
        case StatementKind::set: {
            const auto& set = static_cast<const SetStatement&>(statement);
            const Value value = evaluate(*set.value);
            assign(*set.target, value);
            return Flow::next;
        }
        case StatementKind::set_block:
        case StatementKind::filter_block:
            execute_block(static_cast<const BlockStatement&>(statement), output);
            return Flow::next;
        case StatementKind::for_loop:
            return execute_for(static_cast<const ForStatement&>(statement), output);
        case StatementKind::if_chain:
            return execute_if(static_cast<const IfStatement&>(statement), output);
        case StatementKind::macro: {
            const auto& macro = static_cast<const MacroStatement&>(statement);
            scope_->set(macro.name, make_macro(macro));
            return Flow::next;
        }
        case StatementKind::call_block:
            execute_call_block(static_cast<const MacroStatement&>(statement), output);
            return Flow::next;
        case StatementKind::scope:
            return execute_scope(static_cast<const ScopeStatement&>(statement), output);
        case StatementKind::break_loop:
            return Flow::break_loop;
        case StatementKind::continue_loop:
            return Flow::continue_loop;
    }
    return Flow::next;
}

Interpreter::Flow Interpreter::execute_inside(const Body& body, Output& output) {
    const ScopeChange change(*this, scope_.get());
    return execute(body, output);
}

Interpreter::Flow Interpreter::execute_if(const IfStatement& statement, Output& output) {
    for (const auto& [test, body] : statement.branches) {
        if (evaluate(*test).truth()) return execute(body, output);
    }
    return execute(statement.otherwise, output);
}

/// Returns what fetches the items of a loop one after the other, and sets the loop's length if it is known.
std::function<bool(Value&)> Interpreter::items_to_visit(const ForStatement& statement, Loop& loop) {
    Value source = evaluate(*statement.items);
    runtime_.enter(statement.line, "tag 'for'");
    if (!source.is(Kind::iterator)) {
        Values items = items_of(runtime_, source);
        if (!statement.test) loop.num_items = std::ssize(items);
        source = runtime_.iterator(std::move(items));
    }
    return [this, &statement, source, around = scope_.get()](Value& item) {
        auto& iterator = static_cast<Sequence&>(*source.object());
        while (iterator.position < iterator.items.size()) {
            runtime_.work();
            item = iterator.items[iterator.position++];
            if (!statement.test) return true;
            const ScopeChange change(*this, around);
            assign(*statement.target, item);
            if (evaluate(*statement.test).truth()) return true;
        }
        return false;
    };
}

Interpreter::Flow Interpreter::execute_for(const ForStatement& statement, Output& output) {
    const auto loop = std::make_shared<Loop>(runtime_);
    const LoopEnd end(*loop);
    loop->fetch = items_to_visit(statement, *loop);
    execute_iterations(statement, *loop, Value(Kind::loop, loop), output);
    if (loop->index0 < 0) return execute_inside(statement.otherwise, output);
    return Flow::next;
}

void Interpreter::execute_iterations(const ForStatement& statement, Loop& loop, const Value& loop_value,
                                     Output& output) {
    constexpr std::size_t cost =
        1024;  // an iteration, which makes a scope, costs about as much as copying so many bytes
    Scope* around = scope_.get();
    while (loop.advance()) {
        runtime_.work(cost);
        const ScopeChange change(*this, around);
        scope_->set("loop", loop_value);
        runtime_.enter(statement.line, "tag 'for'");
        assign(*statement.target, loop.current);
        if (execute(statement.body, output) == Flow::break_loop) return;
    }
}

void Interpreter::execute_block(const BlockStatement& statement, Output& output) {
    Output inner(runtime_);
    execute_inside(statement.body, inner);
    Value text = runtime_.text(inner.take());
    if (statement.filter) text = evaluate_filter(static_cast<const FilterExpr&>(*statement.filter), &text);
    if (statement.target) return assign(*statement.target, text);
    runtime_.enter(statement.line, "");
    output.append(text_of(runtime_, text));
}

Value Interpreter::make_macro(const MacroStatement& statement) {
    return {Kind::macro, std::make_shared<Macro>(runtime_, statement, scope_)};
}

void Interpreter::execute_call_block(const MacroStatement& statement, Output& output) {
    const Value caller = make_macro(statement);
    const Value value = evaluate_call(static_cast<const CallExpr&>(*statement.call), &caller);
    runtime_.enter(statement.line, "");
    output.append(text_of(runtime_, value));
}

Interpreter::Flow Interpreter::execute_scope(const ScopeStatement& statement, Output& output) {
    Values values;
    for (const auto& [target, value] : statement.variables) values.push_back(evaluate(*value));
    const ScopeChange change(*this, scope_.get());
    for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.variables[i].first, values[i]);
    return execute(statement.body, output);
}

void Interpreter::assign(const Expr& target, const Value& value) {
    if (target.kind == ExprKind::name) {
        scope_->set(static_cast<const NameExpr&>(target).name, value);
    } else if (target.kind == ExprKind::name_space_field) {
        assign_field(static_cast<const NamespaceFieldExpr&>(target), value);
    } else {
        const ExprList& targets = static_cast<const ListExpr&>(target).items;
        runtime_.enter(target.line, "");
        const Values values = items_of(runtime_, value);
        if (values.size() != targets.size())
            runtime_.fail(std::to_string(targets.size()) + " values to assign", std::to_string(values.size()));
        for (std::size_t i = 0; i < targets.size(); ++i) assign(*targets[i], values[i]);
    }
}

void Interpreter::assign_field(const NamespaceFieldExpr& target, const Value& value) {
    const Value object = evaluate_name(NameExpr(target.line, target.name));
    runtime_.enter(target.line, "assignment to", target.name);
    if (!object.is(Kind::name_space)) runtime_.refuse("a namespace", object);
    check_field_name(runtime_, target.field);
    auto& fields = static_cast<Dict&>(*object.object()).items;
    for (auto& [name, old] : fields) {
        if (!name.is(Kind::text) || name.bytes() != target.field) continue;
        old = value;
        return;
    }
    fields.emplace_back(runtime_.text(target.field), value);
}

Value Interpreter::call_macro(const Macro& macro, Arguments arguments, int line) {
    const Runtime::Level level(runtime_);
    const std::shared_ptr<Scope> around = macro.around.lock();
    runtime_.enter(line, "macro", macro.node.name);
    if (!around) runtime_.fail("a macro that is called within the block of its definition", "a call outside");
    const ScopeChange change(*this, around.get());
    bind(macro.node, arguments);
    Output output(runtime_);
    execute(macro.node.body, output);
    return runtime_.text(output.take());
}

/// Sets the parameters of a macro and the special variables that its body uses.
void Interpreter::bind(const MacroStatement& node, Arguments& arguments) {
    auto& keyword = arguments.keyword;
    const auto take = [&](std::string_view name) -> std::optional<Value> {
        const auto found = std::find_if(keyword.begin(), keyword.end(), [&](const auto& a) { return a.first == name; });
        if (found == keyword.end()) return std::nullopt;
        Value value = found->second;
        keyword.erase(found);
        return value;
    };
    const Values& positional = arguments.positional;
    std::vector<std::optional<Value>> given;
    for (std::size_t i = 0; i < node.parameters.size(); ++i)
        given.push_back(i < positional.size() ? std::optional(positional[i]) : take(node.parameters[i].first));
    const bool has_caller = std::any_of(node.parameters.begin(), node.parameters.end(),
                                        [](const auto& parameter) { return parameter.first == "caller"; });
    if (node.uses_caller && !has_caller)
        scope_->set("caller", take("caller").value_or(runtime_.undefined("the caller, of which there is none")));
    if (!node.uses_kwargs && !keyword.empty())
        runtime_.fail("another argument", "'" + printable(keyword[0].first) + "'");
    if (!node.uses_varargs && positional.size() > given.size())
        runtime_.fail("at most " + std::to_string(given.size()) + " arguments", std::to_string(positional.size()));
    if (node.uses_kwargs) {
        std::vector<std::pair<Value, Value>> rest;
        rest.reserve(keyword.size());
        for (auto& [name, value] : keyword) rest.emplace_back(runtime_.text(name), value);
        scope_->set("kwargs", runtime_.dict(std::move(rest)));
    }
    if (node.uses_varargs)
        scope_->set("varargs", runtime_.tuple({positional.begin() + std::min(std::ssize(given), std::ssize(positional)),
                                               positional.end()}));
    for (std::size_t i = 0; i < given.size(); ++i) {
        const auto& [name, fallback] = node.parameters[i];
        Value value = given[i]   ? *given[i]
                      : fallback ? evaluate(*fallback)
                                 : runtime_.undefined("parameter '" + name + "', which was not given");
        scope_->set(name, std::move(value));
    }
}

}  // namespace longhaul::engine::jinja
