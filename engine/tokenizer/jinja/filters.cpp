// Filters of values and texts.
#include "engine/tokenizer/jinja/filters.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/tokenizer/jinja/names.hpp"
#include "engine/tokenizer/jinja/text.hpp"
#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine::jinja {
namespace {

/// The input of a filter of texts: str(input). A marked text would have to stay marked, which no template needs.
std::string text_input(Runtime& runtime, const Value& input) {
    if (input.is(Kind::text) && input.as_text().markup)
        runtime.fail("a string that was not marked by filter safe or escape", "a marked one");
    return text_of(runtime, input);
}

Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"chars"});
    const std::string text = text_input(runtime, input);
    std::optional<std::string_view> characters;
    if (parameters.has(0) && !parameters[0].is(Kind::none)) characters = parameters.text(0);
    runtime.work(characters ? text.size() * characters->size() : text.size());
    return runtime.text(std::string(stripped(text, characters)));
}

template <Case to>
Value change_case_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.text(in_case(runtime, text_input(runtime, input), to));
}

Value capitalize(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.text(capitalized(runtime, text_input(runtime, input)));
}

/// The first letter of each word in upper case, the rest in lower case; words begin after white space and - ( { [ <.
Value title(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    const std::string text = text_input(runtime, input);
    std::string result;
    bool at_start = true;
    for (const std::string_view character : characters_of(text)) {
        result += in_case(runtime, character, at_start ? Case::upper : Case::lower);
        at_start = is_space(unicode::first_char(character)) ||
                   std::string_view("-({[<").find(character.front()) != std::string_view::npos;
    }
    return runtime.text(std::move(result));
}

Value replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"old", "new", "count"}, 2);
    const bool all = !parameters.has(2) || parameters[2].is(Kind::none);
    return replace_in(runtime, text_of(runtime, input), text_of(runtime, parameters[0]),
                      text_of(runtime, parameters[1]), all ? -1 : parameters.integer(2, -1));
}

Value default_value(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"default_value", "boolean"});
    const bool used = input.is(Kind::undefined) || (parameters.truth(1) && !input.truth());
    if (!used) return input;
    return parameters.has(0) ? parameters[0] : runtime.text("");
}

Value string(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return input.is(Kind::text) ? input : runtime.text(text_of(runtime, input));
}

Value escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    if (input.is(Kind::text) && input.as_text().markup) return input;
    return runtime.text(html_escaped(text_of(runtime, input)), true);
}

Value safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.text(text_of(runtime, input), true);
}

Value indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"width", "first", "blank"});
    if (!input.is(Kind::text)) runtime.refuse("a string", input);
    const std::int64_t blanks = parameters.has(0) && parameters[0].is(Kind::text) ? 0 : parameters.integer(0, 4);
    runtime.check_text_bytes(static_cast<std::size_t>(std::max<std::int64_t>(blanks, 0)));
    const std::string margin = parameters.has(0) && parameters[0].is(Kind::text)
                                   ? parameters.text(0)
                                   : std::string(static_cast<std::size_t>(std::max<std::int64_t>(blanks, 0)), ' ');
    const std::string text = text_input(runtime, input) + "\n";
    Output output(runtime);
    if (parameters.truth(1)) output.append(margin);
    bool first = true;
    for (const std::string_view line : split_lines(text)) {
        if (!first) output.append("\n");
        if (!first && (parameters.truth(2) || !line.empty())) output.append(margin);
        output.append(line);
        first = false;
    }
    return runtime.text(output.take());
}

Value center(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"width"});
    const Value text = runtime.text(text_input(runtime, input));
    return call_method(runtime, text, "center", {{Value::integer(parameters.integer(0, 80))}, {}});
}

Value truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"length", "killwords", "end", "leeway"});
    if (!input.is(Kind::text)) runtime.refuse("a string", input);
    const std::string text = text_input(runtime, input);
    const std::string end = parameters.has(2) ? parameters.text(2) : "...";
    const std::int64_t length = parameters.integer(0, 255);
    const std::int64_t leeway = parameters.has(3) && !parameters[3].is(Kind::none) ? parameters.integer(3, 5) : 5;
    if (length < num_chars(end) || leeway < 0 || length > 1'000'000'000 || leeway > 1'000'000'000)
        runtime.fail("a length of at least that of the end, and no negative leeway", std::to_string(length));
    if (num_chars(text) <= length + leeway) return input;
    std::string cut = text.substr(0, offset_of_char(text, length - num_chars(end)));
    if (!parameters.truth(1)) cut.resize(std::min(cut.rfind(' '), cut.size()));
    return runtime.text(cut + end);
}

/// Python's float(text); nullopt if it is no number.
std::optional<double> parse_real(std::string_view text) {
    std::string digits(stripped(text));
    const auto is_digit = [&](std::size_t i) { return i < digits.size() && digits[i] >= '0' && digits[i] <= '9'; };
    for (std::size_t i = digits.find('_'); i != std::string::npos; i = digits.find('_')) {
        if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
        digits.erase(i, 1);
    }
    std::string_view body = digits;
    const bool negative = body.starts_with('-');
    if (negative || body.starts_with('+')) body.remove_prefix(1);
    std::string lower(body);
    for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    const double sign = negative ? -1 : 1;
    if (lower == "inf" || lower == "infinity") return sign * HUGE_VAL;
    if (lower == "nan") return std::nan("");
    if (lower.empty() || lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(lower.c_str(), &end);
    const bool plain = (lower.front() >= '0' && lower.front() <= '9') || lower.front() == '.';
    return plain && end == lower.c_str() + lower.size() ? std::optional(sign * value) : std::nullopt;
}

/// Python's int(text, base); nullopt if it is no integer. Throws if it has more than 64 bits.
std::optional<std::int64_t> parse_integer(Runtime& runtime, std::string_view text, int base) {
    text = stripped(text);
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    const auto has_prefix = [&](char letter) {
        return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter;
    };
    for (const auto& [letter, its_base] : {std::pair{'x', 16}, {'o', 8}, {'b', 2}}) {
        if (!has_prefix(letter) || (base != its_base && base != 0)) continue;
        base = its_base;
        text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
    if (base == 0) base = 10;
    std::string digits = negative ? "-" : "";
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '_') {
            digits += text[i];
        } else if (i == 0 || i + 1 == text.size() || text[i + 1] == '_') {
            return std::nullopt;
        }
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (text.empty() || text.front() == '-' || end != digits.data() + digits.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range) runtime.fail("an integer of 64 bits", "a larger one");
    return error == std::errc() ? std::optional(value) : std::nullopt;
}

Value integer_of_real(Runtime& runtime, double value, const Value& fallback) {
    if (std::isnan(value) || std::isinf(value)) return fallback;
    if (!(std::abs(value) < 9.2e18)) runtime.fail("an integer of 64 bits", "a larger one");
    return Value::integer(static_cast<std::int64_t>(value));
}

Value integer(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"default", "base"});
    Value fallback = parameters.has(0) ? parameters[0] : Value::integer(0);
    const std::int64_t base = parameters.integer(1, 10);
    if (base != 0 && (base < 2 || base > 36)) runtime.fail("a base from 2 to 36", std::to_string(base));
    runtime.require_defined(input);
    if (input.is_integer()) return Value::integer(input.as_integer());
    if (input.is(Kind::real)) {
        if (std::isinf(input.as_real())) runtime.fail("a finite number", "infinity");
        return integer_of_real(runtime, input.as_real(), fallback);
    }
    if (!input.is(Kind::text)) return fallback;
    if (const auto value = parse_integer(runtime, input.bytes(), static_cast<int>(base))) return Value::integer(*value);
    const auto real = parse_real(input.bytes());
    return real ? integer_of_real(runtime, *real, fallback) : fallback;
}

Value real(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"default"});
    Value fallback = parameters.has(0) ? parameters[0] : Value::real(0);
    runtime.require_defined(input);
    if (input.is_number()) return Value::real(input.as_real());
    if (!input.is(Kind::text)) return fallback;
    const auto value = parse_real(input.bytes());
    return value ? Value::real(*value) : fallback;
}

Value absolute(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    if (!input.is_number()) runtime.refuse("a number", input);
    if (!input.is_integer()) return Value::real(std::abs(input.as_real()));
    return input.as_integer() < 0 ? signed_value(runtime, Op::negate, input) : Value::integer(input.as_integer());
}

Value round_number(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"precision", "method"});
    const std::string method = parameters.has(1) ? parameters.text(1) : "common";
    const std::int64_t precision = parameters.integer(0, 0);
    if (!input.is_number()) runtime.refuse("a number", input);
    if (precision < 0 || precision > 300) runtime.fail("a precision from 0 to 300", std::to_string(precision));
    const double value = input.as_real();
    if (method == "common") {
        if (input.is_integer()) return Value::integer(input.as_integer());
        std::array<char, 700> buffer{};  // exact decimal digits, rounded to even as in Python
        std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(precision), value);
        return Value::real(std::strtod(buffer.data(), nullptr));
    }
    if (method != "ceil" && method != "floor") runtime.fail("method common, ceil or floor", in_quotes(method));
    const double factor = std::pow(10.0, static_cast<double>(precision));
    return Value::real((method == "ceil" ? std::ceil(value * factor) : std::floor(value * factor)) / factor);
}

Value format(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const std::string text = text_input(runtime, input);
    if (arguments.keyword.empty()) return runtime.text(formatted(runtime, text, runtime.tuple(arguments.positional)));
    if (!arguments.positional.empty()) runtime.fail("arguments with names or without", "both");
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [name, value] : arguments.keyword) items.emplace_back(runtime.text(name), value);
    return runtime.text(formatted(runtime, text, runtime.dict(std::move(items))));
}

Value attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"name"}, 1);
    runtime.require_defined(input);
    if (input.is(Kind::dict) && !has_method(input, parameters.text(0)))
        return runtime.undefined("attribute '" + parameters.text(0) + "' of a dict, which is undefined");
    return attribute_of(runtime, input, parameters.text(0));
}

constexpr Filter filters[] = {
    {"trim", trim},
    {"upper", change_case_filter<Case::upper>},
    {"lower", change_case_filter<Case::lower>},
    {"capitalize", capitalize},
    {"title", title},
    {"replace", replace},
    {"default", default_value},
    {"d", default_value},
    {"string", string},
    {"escape", escape},
    {"e", escape},
    {"safe", safe},
    {"indent", indent},
    {"center", center},
    {"truncate", truncate},
    {"int", integer},
    {"float", real},
    {"abs", absolute},
    {"round", round_number},
    {"format", format},
    {"attr", attribute},
    {"tojson", to_json},
};

constexpr std::string_view other_filters[] = {"filesizeformat", "forceescape", "groupby",   "pprint",
                                              "random",         "striptags",   "urlencode", "urlize",
                                              "wordcount",      "wordwrap",    "xmlattr"};

const Filter* find_filter(std::string_view name) {
    for (const std::span<const Filter> table : {value_filters(), sequence_filters()}) {
        for (const Filter& filter : table) {
            if (filter.name == name) return &filter;
        }
    }
    return nullptr;
}

}  // namespace

std::span<const Filter> value_filters() {
    return filters;
}

Support filter_support(std::string_view name) {
    if (find_filter(name) != nullptr) return Support::here;
    const bool known = std::find(std::begin(other_filters), std::end(other_filters), name) != std::end(other_filters);
    return known ? Support::only_jinja : Support::unknown;
}

Value apply_filter(Runtime& runtime, std::string_view name, const Value& input, const Arguments& arguments) {
    const Filter* filter = find_filter(name);
    if (filter == nullptr) runtime.fail("a filter of chat templates", unsupported_words(filter_support(name)));
    return filter->apply(runtime, input, arguments);
}

}  // namespace longhaul::engine::jinja
