// Objects that exist only while a template is rendered: methods, macros, the variable `loop`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/tokenizer/jinja/ast.hpp"
#include "engine/tokenizer/jinja/runtime.hpp"

namespace longhaul::engine::jinja {

/// A method with its object: 'a b'.split
struct Method : Object {
    Method(Runtime& runtime, Value object, std::string method_name)
        : Object(runtime.memory(), sizeof(Method)), self(std::move(object)), name(std::move(method_name)) {}
    const Value self;
    const std::string name;
};

/// Variables of a block. Blocks are nested, so a scope lives at least as long as those within it.
struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<std::string, Value>> variables{};

    void set(std::string_view name, Value value);
    /// Null if neither this scope nor one around it has the name.
    [[nodiscard]] const Value* find(std::string_view name) const;
};

struct Macro : Object {
    Macro(Runtime& runtime, const MacroStatement& statement, std::weak_ptr<Scope> scope)
        : Object(runtime.memory(), sizeof(Macro)), node(statement), around(std::move(scope)) {}
    const MacroStatement& node;
    /// Scope of the definition. Weak, because that scope holds the macro.
    const std::weak_ptr<Scope> around;
};

/// State of a for loop. Items are fetched one by one, since the filter of a loop may depend on what its body did.
struct Loop : Object {
    explicit Loop(Runtime& runtime) : Object(runtime.memory(), sizeof(Loop)) {}

    /// Goes on to the next item, `current`. Returns false at the end.
    bool advance();
    /// The item after the current one; null if there is none.
    const Value* peek();
    /// Number of items. Fetches them all if it is not known.
    std::int64_t length();

    /// Called when the loop statement ends. Drops the items, so that loops that templates keep cannot form long chains.
    void end();

    std::function<bool(Value&)> fetch;        ///< null once the loop has ended
    std::optional<std::int64_t> num_items{};  ///< if known
    std::int64_t index0 = -1;
    Value previous, current;

  private:
    Values fetched_;  ///< items after the current one that were fetched early
    std::size_t next_ = 0;
};

Value attribute_of_loop(Runtime& runtime, const Value& loop, std::string_view name);

}  // namespace longhaul::engine::jinja
