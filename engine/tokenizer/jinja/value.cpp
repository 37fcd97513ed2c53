#include "engine/tokenizer/jinja/value.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

namespace longhaul::engine::jinja {

Object::Object(Memory* where, std::size_t num_bytes) : memory_(where), bytes_(num_bytes) {
    if (memory_ != nullptr) memory_->live_bytes += bytes_;
}

Object::~Object() {
    if (memory_ != nullptr) memory_->live_bytes -= bytes_;
}

Text::Text(Memory* memory, std::string text, bool is_markup)
    : Object(memory, sizeof(Text) + text.size()),
      bytes(std::move(text)),
      ascii(std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })),
      markup(is_markup) {}

Sequence::Sequence(Memory* memory, std::vector<Value> values, std::string_view text)
    : Object(memory, sizeof(Sequence) + values.size() * sizeof(Value)), items(std::move(values)), label(text) {
    for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
}

Dict::Dict(Memory* memory, std::vector<std::pair<Value, Value>> values)
    : Object(memory, sizeof(Dict) + values.size() * sizeof(values[0])), items(std::move(values)) {
    for (const auto& [key, value] : items) depth = std::max({depth, key.depth() + 1, value.depth() + 1});
}

Value Value::real(double value) {
    return {Kind::real, std::bit_cast<std::int64_t>(value)};
}

Value Value::text(std::string bytes) {
    return {Kind::text, std::make_shared<Text>(nullptr, std::move(bytes))};
}

Value Value::list(std::vector<Value> items) {
    return {Kind::list, std::make_shared<Sequence>(nullptr, std::move(items))};
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
    return {Kind::dict, std::make_shared<Dict>(nullptr, std::move(items))};
}

double Value::as_real() const {
    return is(Kind::real) ? std::bit_cast<double>(integer_) : static_cast<double>(integer_);
}

const Text& Value::as_text() const {
    return static_cast<const Text&>(*object_);
}

const std::string& Value::bytes() const {
    return as_text().bytes;
}

const Sequence& Value::as_sequence() const {
    return static_cast<const Sequence&>(*object_);
}

const Dict& Value::as_dict() const {
    return static_cast<const Dict&>(*object_);
}

bool Value::truth() const {
    switch (kind_) {
        case Kind::undefined:
        case Kind::none:
            return false;
        case Kind::boolean:
        case Kind::integer:
            return integer_ != 0;
        case Kind::real:
            return as_real() != 0;
        case Kind::text:
            return !bytes().empty();
        case Kind::list:
        case Kind::tuple:
        case Kind::view:
        case Kind::range:
            return !as_sequence().items.empty();
        case Kind::dict:
            return !as_dict().items.empty();
        default:
            return true;
    }
}

int Value::depth() const {
    switch (kind_) {
        case Kind::list:
        case Kind::tuple:
        case Kind::view:
        case Kind::range:
        case Kind::iterator:
            return as_sequence().depth;
        case Kind::dict:
            return as_dict().depth;
        default:
            return 0;
    }
}

std::string_view Value::kind_name() const {
    switch (kind_) {
        case Kind::undefined:
            return "an undefined value";
        case Kind::none:
            return "none";
        case Kind::boolean:
            return "a boolean";
        case Kind::integer:
            return "an integer";
        case Kind::real:
            return "a float";
        case Kind::text:
            return "a string";
        case Kind::list:
            return "a list";
        case Kind::tuple:
            return "a tuple";
        case Kind::dict:
            return "a dict";
        case Kind::view:
            return "a view of a dict";
        case Kind::iterator:
            return "an iterator";
        case Kind::range:
            return "a range";
        case Kind::name_space:
            return "a namespace";
        case Kind::loop:
            return "the variable 'loop'";
        case Kind::macro:
            return "a macro";
        case Kind::function:
            return "a function";
        case Kind::method:
            return "a method";
    }
    return "a value";
}

std::string real_text(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
    const std::string_view all(buffer, static_cast<std::size_t>(end - buffer));
    const std::size_t e = all.find('e');
    int exponent = 0;
    const std::size_t digits_at = all[e + 1] == '+' ? e + 2 : e + 1;  // from_chars takes no '+'
    std::from_chars(all.data() + digits_at, end, exponent);
    if (exponent < -4 || exponent >= 16) return std::string(all);
    const bool negative = all.front() == '-';
    std::string digits;
    for (const char c : all.substr(0, e)) {
        if (c >= '0' && c <= '9') digits += c;
    }
    const auto point = static_cast<std::size_t>(std::max(exponent, 0) + 1);
    if (exponent < 0) digits.insert(0, static_cast<std::size_t>(-exponent), '0');
    if (digits.size() < point + 1) digits.append(point + 1 - digits.size(), '0');
    digits.insert(point, ".");
    return (negative ? "-" : "") + digits;
}

}  // namespace longhaul::engine::jinja
