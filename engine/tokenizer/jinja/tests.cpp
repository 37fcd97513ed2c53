// The tests: value is NAME.
#include <algorithm>
#include <array>

#include "engine/tokenizer/jinja/names.hpp"
#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/text.hpp"

namespace longhaul::engine::jinja {
namespace {

using Check = bool (*)(const Value&);
using Comparison = Op;

bool has_items(const Value& value) {
    return value.is_sequence() || value.is(Kind::text) || value.is(Kind::dict) || value.is(Kind::undefined);
}

bool is_callable(const Value& value) {
    return value.is(Kind::macro) || value.is(Kind::function) || value.is(Kind::method) || value.is(Kind::loop) ||
           value.is(Kind::undefined);
}

/// Tests without arguments.
constexpr std::array<std::pair<std::string_view, Check>, 15> checks{{
    {"defined", [](const Value& value) { return !value.is(Kind::undefined); }},
    {"undefined", [](const Value& value) { return value.is(Kind::undefined); }},
    {"none", [](const Value& value) { return value.is(Kind::none); }},
    {"string", [](const Value& value) { return value.is(Kind::text); }},
    {"mapping", [](const Value& value) { return value.is(Kind::dict); }},
    {"sequence", has_items},
    {"iterable", is_iterable},
    {"number", [](const Value& value) { return value.is_number(); }},
    {"integer", [](const Value& value) { return value.is(Kind::integer); }},
    {"float", [](const Value& value) { return value.is(Kind::real); }},
    {"boolean", [](const Value& value) { return value.is(Kind::boolean); }},
    {"true", [](const Value& value) { return value.is(Kind::boolean) && value.as_bool(); }},
    {"false", [](const Value& value) { return value.is(Kind::boolean) && !value.as_bool(); }},
    {"callable", is_callable},
    {"escaped", [](const Value& value) { return value.is(Kind::text) && value.as_text().markup; }},
}};

/// Tests that compare with an argument.
constexpr std::array<std::pair<std::string_view, Op>, 16> comparisons_by_name{{{"eq", Op::equal},
                                                                               {"equalto", Op::equal},
                                                                               {"==", Op::equal},
                                                                               {"ne", Op::not_equal},
                                                                               {"!=", Op::not_equal},
                                                                               {"lt", Op::less},
                                                                               {"lessthan", Op::less},
                                                                               {"<", Op::less},
                                                                               {"le", Op::less_equal},
                                                                               {"<=", Op::less_equal},
                                                                               {"gt", Op::greater},
                                                                               {"greaterthan", Op::greater},
                                                                               {">", Op::greater},
                                                                               {"ge", Op::greater_equal},
                                                                               {">=", Op::greater_equal},
                                                                               {"in", Op::in}}};

constexpr std::array<std::string_view, 8> other_tests{"odd",  "even",  "divisibleby", "sameas",
                                                      "test", "lower", "upper",       "filter"};

template <class Table>
auto find_in(const Table& table, std::string_view name) {
    return std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == name; });
}

/// value % divisor == wanted
bool has_remainder(Runtime& runtime, const Value& value, const Value& divisor, std::int64_t wanted) {
    return equal(runtime, arithmetic(runtime, Op::modulo, value, divisor), Value::integer(wanted));
}

bool is_same(Runtime& runtime, const Value& a, const Value& b) {
    if (a.kind() != b.kind()) return false;
    if (a.object() || b.object()) return a.object() == b.object();
    return equal(runtime, a, b);
}

bool apply_other(Runtime& runtime, std::string_view name, const Value& input, const Arguments& arguments) {
    if (name == "divisibleby" || name == "sameas") {
        const Parameters parameters(runtime, arguments, {name == "sameas" ? "other" : "num"}, 1);
        return name == "sameas" ? is_same(runtime, input, parameters[0])
                                : has_remainder(runtime, input, parameters[0], 0);
    }
    const Parameters none(runtime, arguments, {});
    if (name == "odd" || name == "even") return has_remainder(runtime, input, Value::integer(2), name == "odd" ? 1 : 0);
    if (name == "lower" || name == "upper")
        return is_text_of(text_of(runtime, input), name == "lower" ? TextClass::lower : TextClass::upper);
    if (!input.is(Kind::text)) return false;
    return (name == "test" ? test_support(input.bytes()) : filter_support(input.bytes())) != Support::unknown;
}

}  // namespace

Support test_support(std::string_view name) {
    const bool known = find_in(checks, name) != checks.end() ||
                       find_in(comparisons_by_name, name) != comparisons_by_name.end() ||
                       std::find(other_tests.begin(), other_tests.end(), name) != other_tests.end();
    return known ? Support::here : Support::unknown;
}

bool apply_test(Runtime& runtime, std::string_view name, const Value& input, const Arguments& arguments) {
    if (const auto check = find_in(checks, name); check != checks.end()) {
        const Parameters none(runtime, arguments, {});
        return check->second(input);
    }
    if (const auto comparison = find_in(comparisons_by_name, name); comparison != comparisons_by_name.end()) {
        const Parameters parameters(runtime, arguments, {"other"}, 1);
        return compare(runtime, comparison->second, input, parameters[0]);
    }
    if (test_support(name) != Support::here) runtime.fail("a test of chat templates", "an unknown one");
    return apply_other(runtime, name, input, arguments);
}

}  // namespace longhaul::engine::jinja
