#include "engine/tokenizer/jinja/objects.hpp"

#include <algorithm>

#include "engine/tokenizer/jinja/operations.hpp"

namespace longhaul::engine::jinja {

void Scope::set(std::string_view name, Value value) {
    for (auto& [known, old] : variables) {
        if (known == name) {
            old = std::move(value);
            return;
        }
    }
    variables.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
        for (const auto& [known, value] : scope->variables) {
            if (known == name) return &value;
        }
    }
    return nullptr;
}

bool Loop::advance() {
    if (peek() == nullptr) return false;
    previous = std::exchange(current, std::move(fetched_[next_++]));
    if (next_ == fetched_.size()) {
        fetched_.clear();
        next_ = 0;
    }
    ++index0;
    return true;
}

const Value* Loop::peek() {
    if (next_ < fetched_.size()) return &fetched_[next_];
    Value item;
    if (!fetch || !fetch(item)) return nullptr;
    fetched_.clear();
    fetched_.push_back(std::move(item));
    next_ = 0;
    return &fetched_.front();
}

std::int64_t Loop::length() {
    if (!num_items) {
        for (Value item; fetch && fetch(item);) fetched_.push_back(item);
        num_items = index0 + 1 + static_cast<std::int64_t>(fetched_.size() - next_);
    }
    return *num_items;
}

void Loop::end() {
    fetch = nullptr;
    fetched_.clear();
    next_ = 0;
    previous = current = Value();
}

Value attribute_of_loop(Runtime& runtime, const Value& value, std::string_view name) {
    auto& loop = static_cast<Loop&>(*value.object());
    if (name == "index") return Value::integer(loop.index0 + 1);
    if (name == "index0") return Value::integer(loop.index0);
    if (name == "first") return Value::boolean(loop.index0 == 0);
    if (name == "last") return Value::boolean(loop.peek() == nullptr);
    if (name == "length") return Value::integer(loop.length());
    if (name == "revindex") return Value::integer(loop.length() - loop.index0);
    if (name == "revindex0") return Value::integer(loop.length() - loop.index0 - 1);
    if (name == "depth") return Value::integer(1);
    if (name == "depth0") return Value::integer(0);
    if (name == "previtem")
        return loop.index0 == 0 ? runtime.undefined("the item before the first one") : loop.previous;
    if (name == "nextitem") {
        const Value* next = loop.peek();
        return next == nullptr ? runtime.undefined("the item after the last one") : *next;
    }
    if (has_method(value, name)) return {Kind::method, std::make_shared<Method>(runtime, value, std::string(name))};
    return runtime.undefined("attribute '" + std::string(name) + "' of 'loop', which is undefined");
}

}  // namespace longhaul::engine::jinja
