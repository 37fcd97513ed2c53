// Arithmetic and comparison.
#include <cmath>
#include <compare>

#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/text.hpp"

namespace longhaul::engine::jinja {
namespace {

[[noreturn]] void refuse_pair(Runtime& runtime, const Value& a, const Value& b) {
    runtime.require_defined(a);
    runtime.require_defined(b);
    runtime.fail("values that go together", std::string(a.kind_name()) + " and " + std::string(b.kind_name()));
}

Value checked(Runtime& runtime, bool overflow, std::int64_t result) {
    if (overflow) runtime.fail("a result of 64 bits", "a larger one");
    return Value::integer(result);
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
    const std::int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(Runtime& runtime, std::int64_t base, std::int64_t exponent) {
    std::int64_t result = 1;
    bool overflow = false;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0) overflow = overflow || __builtin_mul_overflow(result, base, &result);
        if (exponent > 1) {
            const bool too_large = __builtin_mul_overflow(base, base, &base);
            overflow = overflow || too_large;
        }
        if (overflow) break;
    }
    return checked(runtime, overflow, result);
}

Value integer_arithmetic(Runtime& runtime, Op op, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    const bool divides = op == Op::divide || op == Op::floor_divide || op == Op::modulo;
    if (divides && b == 0) runtime.fail("a divisor other than 0", "0");
    switch (op) {
        case Op::add: {
            const bool overflow = __builtin_add_overflow(a, b, &result);
            return checked(runtime, overflow, result);
        }
        case Op::subtract: {
            const bool overflow = __builtin_sub_overflow(a, b, &result);
            return checked(runtime, overflow, result);
        }
        case Op::multiply: {
            const bool overflow = __builtin_mul_overflow(a, b, &result);
            return checked(runtime, overflow, result);
        }
        case Op::divide:
            return Value::real(static_cast<double>(a) / static_cast<double>(b));
        case Op::floor_divide:
            if (b == -1) return integer_arithmetic(runtime, Op::subtract, 0, a);
            return Value::integer(floor_quotient(a, b));
        case Op::modulo:
            return Value::integer(b == -1 ? 0 : a - floor_quotient(a, b) * b);
        default:
            if (b >= 0) return integer_power(runtime, a, b);
            if (a == 0) runtime.fail("a base other than 0", "0 to a negative power");
            return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
}

/// Remainder with the sign of the divisor.
double real_modulo(double a, double b) {
    double result = std::fmod(a, b);
    if (result != 0 && (b < 0) != (result < 0)) result += b;
    return result == 0 ? std::copysign(0.0, b) : result;
}

/// Quotient rounded down, exact where a / b is rounded up to the next integer.
double real_floor_quotient(double a, double b) {
    double remainder = std::fmod(a, b);
    double quotient = (a - remainder) / b;
    if (remainder != 0 && (b < 0) != (remainder < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(0.0, a / b);
    const double down = std::floor(quotient);
    return quotient - down > 0.5 ? down + 1 : down;
}

Value real_arithmetic(Runtime& runtime, Op op, double a, double b) {
    const bool divides = op == Op::divide || op == Op::floor_divide || op == Op::modulo;
    if (divides && b == 0) runtime.fail("a divisor other than 0", "0");
    switch (op) {
        case Op::add:
            return Value::real(a + b);
        case Op::subtract:
            return Value::real(a - b);
        case Op::multiply:
            return Value::real(a * b);
        case Op::divide:
            return Value::real(a / b);
        case Op::floor_divide:
            return Value::real(real_floor_quotient(a, b));
        case Op::modulo:
            return Value::real(real_modulo(a, b));
        default: {
            if (a == 0 && b < 0) runtime.fail("a base other than 0", "0 to a negative power");
            const double result = std::pow(a, b);
            if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) runtime.fail("a real result", "a complex one");
            if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
                runtime.fail("a result in the range of floats", "a larger one");
            return Value::real(result);
        }
    }
}

Value joined_texts(Runtime& runtime, const Value& a, const Value& b) {
    const bool markup = a.as_text().markup || b.as_text().markup;
    const auto part = [&](const Value& value) {
        return markup && !value.as_text().markup ? html_escaped(value.bytes()) : value.bytes();
    };
    runtime.check_text_bytes(a.bytes().size() + b.bytes().size());
    return runtime.text(part(a) + part(b), markup);
}

Value repeated(Runtime& runtime, const Value& value, std::int64_t count) {
    count = std::max<std::int64_t>(count, 0);
    constexpr std::int64_t max_count = std::int64_t{1} << 40;
    if (count > max_count) runtime.fail("at most 2^40 repetitions", std::to_string(count));
    const auto times = static_cast<std::size_t>(count);
    if (value.is(Kind::text)) {
        const std::string& bytes = value.bytes();
        if (bytes.empty()) return value;
        runtime.check_text_bytes(times > runtime.max_text_bytes() ? times : times * bytes.size());
        std::string result;
        result.reserve(times * bytes.size());
        if (times > 0) result = bytes;
        while (result.size() < times * bytes.size())
            result.append(result, 0, std::min(result.size(), times * bytes.size() - result.size()));
        return runtime.text(std::move(result), value.as_text().markup);
    }
    const Values& items = value.as_sequence().items;
    if (items.empty()) return value;
    runtime.check_text_bytes(times > runtime.max_text_bytes() ? times : times * items.size() * sizeof(Value));
    Values result;
    for (std::size_t i = 0; i < times; ++i) result.insert(result.end(), items.begin(), items.end());
    return runtime.sequence(value.kind(), std::move(result));
}

bool can_repeat(const Value& value) {
    return value.is(Kind::text) || value.is(Kind::list) || value.is(Kind::tuple);
}

Value joined_sequences(Runtime& runtime, const Value& a, const Value& b) {
    Values items = a.as_sequence().items;
    items.insert(items.end(), b.as_sequence().items.begin(), b.as_sequence().items.end());
    return runtime.sequence(a.kind(), std::move(items));
}

/// Order of two numbers, exact also between large integers and reals.
std::partial_ordering numeric_order(const Value& a, const Value& b) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() <=> b.as_integer();
    const auto wide = [](const Value& value) {
        return value.is_integer() ? static_cast<long double>(value.as_integer())
                                  : static_cast<long double>(value.as_real());
    };
    return wide(a) <=> wide(b);
}

bool equal_items(Runtime& runtime, const Values& a, const Values& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!equal(runtime, a[i], b[i])) return false;
    }
    return true;
}

bool equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
    if (a.items.size() != b.items.size()) return false;
    for (const auto& [key, value] : a.items) {
        const Value* other = find_key(runtime, b, key);
        if (other == nullptr || !equal(runtime, value, *other)) return false;
    }
    return true;
}

}  // namespace

Value arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b) {
    if (a.is_integer() && b.is_integer()) return integer_arithmetic(runtime, op, a.as_integer(), b.as_integer());
    if (a.is_number() && b.is_number()) return real_arithmetic(runtime, op, a.as_real(), b.as_real());
    if (op == Op::add && a.is(Kind::text) && b.is(Kind::text)) return joined_texts(runtime, a, b);
    if (op == Op::add && a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple)))
        return joined_sequences(runtime, a, b);
    if (op == Op::multiply && can_repeat(a) && b.is_integer()) return repeated(runtime, a, b.as_integer());
    if (op == Op::multiply && a.is_integer() && can_repeat(b)) return repeated(runtime, b, a.as_integer());
    if (op == Op::modulo && a.is(Kind::text)) return runtime.text(formatted(runtime, a.bytes(), b));
    refuse_pair(runtime, a, b);
}

Value signed_value(Runtime& runtime, Op op, const Value& a) {
    if (a.is_integer())
        return integer_arithmetic(runtime, op == Op::negate ? Op::subtract : Op::add, 0, a.as_integer());
    if (!a.is_number()) runtime.refuse("a number", a);
    return op == Op::negate ? Value::real(-a.as_real()) : a;
}

bool equal(Runtime& runtime, const Value& a, const Value& b) {
    runtime.work();
    if (a.is_number() && b.is_number()) return std::is_eq(numeric_order(a, b));
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
        case Kind::undefined:
        case Kind::none:
            return true;
        case Kind::text:
            runtime.work(a.bytes().size() == b.bytes().size() ? a.bytes().size() : 0);
            return a.bytes() == b.bytes();
        case Kind::list:
        case Kind::tuple:
        case Kind::range:
            return equal_items(runtime, a.as_sequence().items, b.as_sequence().items);
        case Kind::dict:
            return equal_dicts(runtime, a.as_dict(), b.as_dict());
        case Kind::view:
            runtime.fail("values that can be compared", "views of a dict");
        case Kind::function:
            return a.as_integer() == b.as_integer();
        default:
            return a.object() == b.object();
    }
}

bool less(Runtime& runtime, const Value& a, const Value& b) {
    runtime.work();
    if (a.is_number() && b.is_number()) return std::is_lt(numeric_order(a, b));
    if (a.is(Kind::text) && b.is(Kind::text)) {  // the order of code points is that of UTF-8 bytes
        runtime.work(std::min(a.bytes().size(), b.bytes().size()));
        return a.bytes() < b.bytes();
    }
    if (a.kind() != b.kind() || (!a.is(Kind::list) && !a.is(Kind::tuple))) refuse_pair(runtime, a, b);
    const Values& left = a.as_sequence().items;
    const Values& right = b.as_sequence().items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
        if (!equal(runtime, left[i], right[i])) return less(runtime, left[i], right[i]);
    }
    return left.size() < right.size();
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
    if (container.is(Kind::text)) {
        if (!item.is(Kind::text)) runtime.refuse("a string to look for in a string", item);
        runtime.work(container.bytes().size());
        return find_part(container.bytes(), item.bytes()) != std::string_view::npos;
    }
    if (container.is(Kind::dict)) return find_key(runtime, container.as_dict(), item) != nullptr;
    if (container.is(Kind::iterator)) {
        auto& iterator = static_cast<Sequence&>(*container.object());
        while (iterator.position < iterator.items.size()) {
            if (equal(runtime, iterator.items[iterator.position++], item)) return true;
        }
        return false;
    }
    if (!is_iterable(container)) runtime.refuse("a list, string or dict to look in", container);
    if (container.is(Kind::undefined)) return false;
    const Values& items = container.as_sequence().items;
    return std::any_of(items.begin(), items.end(), [&](const Value& value) { return equal(runtime, value, item); });
}

bool compare(Runtime& runtime, Op op, const Value& a, const Value& b) {
    const bool numbers = a.is_number() && b.is_number();
    switch (op) {
        case Op::equal:
            return equal(runtime, a, b);
        case Op::not_equal:
            return !equal(runtime, a, b);
        case Op::less:
            return less(runtime, a, b);
        case Op::greater:
            return less(runtime, b, a);
        case Op::less_equal:
            return numbers ? std::is_lteq(numeric_order(a, b)) : !less(runtime, b, a);
        case Op::greater_equal:
            return numbers ? std::is_gteq(numeric_order(a, b)) : !less(runtime, a, b);
        case Op::in:
            return contains(runtime, b, a);
        default:
            return !contains(runtime, b, a);
    }
}

}  // namespace longhaul::engine::jinja
