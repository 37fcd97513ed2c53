// Python's operations on values. Each throws InputError if the values do not fit.
#pragma once

#include <string>
#include <string_view>

#include "engine/tokenizer/jinja/ast.hpp"
#include "engine/tokenizer/jinja/runtime.hpp"
#include "engine/tokenizer/jinja/text.hpp"

namespace longhaul::engine::jinja {

/// a op b for + - * / // % **.
Value arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b);
/// -a, +a
Value signed_value(Runtime& runtime, Op op, const Value& a);
/// a op b for == != < <= > >= in, not in.
bool compare(Runtime& runtime, Op op, const Value& a, const Value& b);
bool equal(Runtime& runtime, const Value& a, const Value& b);
bool less(Runtime& runtime, const Value& a, const Value& b);
bool contains(Runtime& runtime, const Value& container, const Value& item);

/// The items that a loop over `value` gives. Takes all that is left of an iterator.
Values items_of(Runtime& runtime, const Value& value);
std::int64_t length_of(Runtime& runtime, const Value& value);
bool is_iterable(const Value& value);

/// str(value) and repr(value).
std::string text_of(Runtime& runtime, const Value& value);
std::string repr_of(Runtime& runtime, const Value& value);
/// format % arguments, where `arguments` is a tuple, a dict or one value.
std::string formatted(Runtime& runtime, std::string_view format, const Value& arguments);
/// format.format(arguments)
std::string formatted(Runtime& runtime, std::string_view format, const Arguments& arguments);

/// Value of `key`; null if there is none. Throws for a key that Python cannot hash.
const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key);
/// A dict of these items; the last one with a key counts, in the place of the first.
Value make_dict(Runtime& runtime, const std::vector<std::pair<Value, Value>>& items);

/// object.name, as the sandbox looks it up: first an attribute, then an item.
Value attribute_of(Runtime& runtime, const Value& object, std::string_view name);
/// object[index]: first an item, then an attribute.
Value item_of(Runtime& runtime, const Value& object, const Value& index);
/// object[start:stop:step]; none for what is left out.
Value slice_of(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);

bool has_method(const Value& object, std::string_view name);
/// Whether Python has this method of `object`, but the sandbox refuses it because it changes the object.
bool is_unsafe_method(const Value& object, std::string_view name);
Value call_method(Runtime& runtime, const Value& self, std::string_view name, const Arguments& arguments);
Value call_function(Runtime& runtime, std::int64_t function, const Arguments& arguments);
/// Number of a global function for Value::function; -1: no such function.
std::int64_t find_function(std::string_view name);

/// The items of a dict, each a tuple of key and value.
Values pairs_of(Runtime& runtime, const Value& dict);
/// Throws if a field of a namespace cannot have this name.
void check_field_name(Runtime& runtime, std::string_view name);

// Methods of strings that are filters too.
std::string in_case(Runtime& runtime, std::string_view text, Case to);
std::string capitalized(Runtime& runtime, std::string_view text);
Value replace_in(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                 std::int64_t count);

Value apply_filter(Runtime& runtime, std::string_view name, const Value& input, const Arguments& arguments);
bool apply_test(Runtime& runtime, std::string_view name, const Value& input, const Arguments& arguments);

/// Arguments by the names of their parameters; one that is not given is undefined.
class Parameters {
  public:
    /// Throws if there are too many arguments or unknown ones, or if one of the first `num_required` is missing.
    Parameters(Runtime& runtime, const Arguments& arguments, std::initializer_list<std::string_view> names,
               std::size_t num_required = 0);

    [[nodiscard]] bool has(std::size_t index) const { return given_[index]; }
    [[nodiscard]] const Value& operator[](std::size_t index) const { return values_[index]; }
    [[nodiscard]] bool truth(std::size_t index) const { return values_[index].truth(); }
    // Each throws if the argument is given and of another kind.
    [[nodiscard]] std::int64_t integer(std::size_t index, std::int64_t fallback) const;
    [[nodiscard]] const std::string& text(std::size_t index) const;

  private:
    Runtime& runtime_;
    Values values_;
    std::vector<bool> given_;
};

}  // namespace longhaul::engine::jinja
