// Runs a parsed template: evaluates its expressions and executes its statements.
#pragma once

#include <memory>
#include <string>

#include "engine/tokenizer/jinja/ast.hpp"
#include "engine/tokenizer/jinja/objects.hpp"
#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/runtime.hpp"

namespace longhaul::engine::jinja {

class Interpreter {
  public:
    /// Both must outlive the interpreter.
    Interpreter(Runtime& runtime, const Variables& variables);

    std::string run(const Body& body);

  private:
    /// How a statement ended.
    enum class Flow { next, break_loop, continue_loop };

    // Statements.
    Flow execute(const Body& body, Output& output);
    Flow execute(const Statement& statement, Output& output);
    /// Executes a body in a scope of its own.
    Flow execute_inside(const Body& body, Output& output);
    Flow execute_if(const IfStatement& statement, Output& output);
    Flow execute_for(const ForStatement& statement, Output& output);
    void execute_iterations(const ForStatement& statement, Loop& loop, const Value& loop_value, Output& output);
    std::function<bool(Value&)> items_to_visit(const ForStatement& statement, Loop& loop);
    void execute_block(const BlockStatement& statement, Output& output);
    void execute_call_block(const MacroStatement& statement, Output& output);
    Flow execute_scope(const ScopeStatement& statement, Output& output);
    Value make_macro(const MacroStatement& statement);
    void assign(const Expr& target, const Value& value);
    void assign_field(const NamespaceFieldExpr& target, const Value& value);

    // Expressions.
    Value evaluate(const Expr& expr);
    Value evaluate_name(const NameExpr& expr);
    Value evaluate_list(const ListExpr& expr);
    Value evaluate_dict(const DictExpr& expr);
    Value evaluate_slice(const SliceExpr& expr);
    Value evaluate_call(const CallExpr& expr, const Value* caller = nullptr);
    Value evaluate_filter(const FilterExpr& expr, const Value* block_text = nullptr);
    Value evaluate_unary(const UnaryExpr& expr);
    Value evaluate_binary(const BinaryExpr& expr);
    Value evaluate_compare(const CompareExpr& expr);
    Value evaluate_condition(const ConditionExpr& expr);
    Values evaluate_all(const ExprList& exprs);
    Arguments evaluate_arguments(const ArgumentExprs& exprs);
    Value call_macro(const Macro& macro, Arguments arguments, int line);
    void bind(const MacroStatement& node, Arguments& arguments);

    Runtime& runtime_;
    const Variables& variables_;
    std::shared_ptr<Scope> scope_;

    friend class ScopeChange;
};

/// Replaces the interpreter's scope while it lives.
class ScopeChange {
  public:
    ScopeChange(Interpreter& interpreter, Scope* parent)
        : interpreter_(interpreter), before_(std::move(interpreter.scope_)) {
        interpreter_.scope_ = std::make_shared<Scope>();
        interpreter_.scope_->parent = parent;
    }
    ~ScopeChange() { interpreter_.scope_ = std::move(before_); }
    ScopeChange(const ScopeChange&) = delete;
    ScopeChange& operator=(const ScopeChange&) = delete;

  private:
    Interpreter& interpreter_;
    std::shared_ptr<Scope> before_;
};

}  // namespace longhaul::engine::jinja
