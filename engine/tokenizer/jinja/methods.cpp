// Methods of strings, lists and dicts, and the global functions.
#include <algorithm>
#include <array>
#include <ctime>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/objects.hpp"
#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/text.hpp"
#include "engine/tokenizer/json_view.hpp"

namespace longhaul::engine::jinja {
namespace {

using Call = Value (*)(Runtime&, const Value& self, const Arguments&);
struct Entry {
    std::string_view name;
    Call call;
};

const std::string_view bytes_of(const Value& self) {
    return self.bytes();
}

Value integer_or_minus_one(std::size_t offset, std::string_view text) {
    return Value::integer(offset == std::string_view::npos ? -1 : num_chars(text.substr(0, offset)));
}

Value text_list(Runtime& runtime, const std::vector<std::string_view>& parts) {
    Values items;
    for (const std::string_view part : parts) items.push_back(runtime.text(std::string(part)));
    return runtime.list(std::move(items));
}

/// The optional argument of strip(), split(): none stands for white space.
std::optional<std::string_view> text_or_none(const Parameters& parameters, std::size_t index) {
    if (!parameters.has(index) || parameters[index].is(Kind::none)) return std::nullopt;
    return parameters.text(index);
}

using Strip = std::string_view (*)(std::string_view, std::optional<std::string_view>);
template <Strip strip>
Value strip_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"chars"});
    const auto characters = text_or_none(parameters, 0);
    if (characters) runtime.work(self.bytes().size() * characters->size());
    return runtime.text(std::string(strip(bytes_of(self), characters)));
}

using Split = std::vector<std::string_view> (*)(std::string_view, std::optional<std::string_view>, std::int64_t);
template <Split do_split>
Value split_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"sep", "maxsplit"});
    const auto separator = text_or_none(parameters, 0);
    if (separator && separator->empty()) runtime.fail("a separator", "an empty string");
    const bool from_right = do_split == split_right;
    runtime.work(self.bytes().size() * (separator && from_right ? separator->size() : 1));
    return text_list(runtime, do_split(bytes_of(self), separator, parameters.integer(1, -1)));
}

Value split_text_lines(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"keepends"});
    runtime.work(self.bytes().size());
    return text_list(runtime, split_lines(bytes_of(self), parameters.truth(0)));
}

/// A part of the text from code point `start` to `stop`, for find() and its like: at which byte it begins, and it.
struct Part {
    std::size_t offset;
    std::string_view text;
    bool valid;  ///< start is not beyond the end
};
Part part_of(Runtime& runtime, const Value& self, const Parameters& parameters) {
    const std::string_view text = self.bytes();
    const std::int64_t length = length_of(runtime, self);
    const auto bound = [&](std::size_t index, std::int64_t fallback) {
        if (parameters.has(index) && parameters[index].is(Kind::none)) return fallback;
        const std::int64_t at = parameters.integer(index, fallback);
        return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
    };
    const std::int64_t start = bound(1, 0);
    const std::int64_t stop = std::min(bound(2, length), length);
    if (start > length || start > stop) return {0, "", false};
    const std::size_t begin = offset_of_char(text, start);
    return {begin, text.substr(begin, offset_of_char(text, stop) - begin), true};
}

template <bool from_right>
Value find_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"sub", "start", "end"}, 1);
    const Part part = part_of(runtime, self, parameters);
    if (!part.valid) return Value::integer(-1);
    const std::string& wanted = parameters.text(0);
    runtime.work(part.text.size() * (from_right ? wanted.size() : 1));
    const std::size_t at = from_right ? part.text.rfind(wanted) : find_part(part.text, wanted);
    return integer_or_minus_one(at == std::string_view::npos ? at : at + part.offset, bytes_of(self));
}

template <bool from_right>
Value index_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    Value at = find_text<from_right>(runtime, self, arguments);
    if (at.as_integer() < 0) runtime.fail("a string that contains the other one", "another one");
    return at;
}

std::int64_t count_parts(std::string_view text, std::string_view wanted) {
    if (wanted.empty()) return num_chars(text) + 1;
    std::int64_t count = 0;
    for (std::size_t at = find_part(text, wanted); at != std::string_view::npos;
         at = find_part(text, wanted, at + wanted.size()))
        ++count;
    return count;
}

Value count_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"sub", "start", "end"}, 1);
    const Part part = part_of(runtime, self, parameters);
    runtime.work(part.text.size());
    return Value::integer(part.valid ? count_parts(part.text, parameters.text(0)) : 0);
}

template <bool at_end>
Value has_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"prefix", "start", "end"}, 1);
    const Part part = part_of(runtime, self, parameters);
    const auto matches = [&](const Value& affix) {
        if (!affix.is(Kind::text)) runtime.refuse("a string or a tuple of strings", affix);
        runtime.work(affix.bytes().size());
        return part.valid && (at_end ? part.text.ends_with(affix.bytes()) : part.text.starts_with(affix.bytes()));
    };
    const Value& affix = parameters[0];
    if (!affix.is(Kind::tuple)) return Value::boolean(matches(affix));
    const Values& all = affix.as_sequence().items;
    return Value::boolean(std::any_of(all.begin(), all.end(), matches));
}

template <bool at_end>
Value remove_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"prefix"}, 1);
    std::string_view text = self.bytes();
    const std::string& affix = parameters.text(0);
    if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
    if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
    return runtime.text(std::string(text));
}

template <Case to>
Value change_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.text(in_case(runtime, bytes_of(self), to));
}

Value capitalize_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.text(capitalized(runtime, bytes_of(self)));
}

/// str.title(): letters after letters in lower case, others in title case.
Value title_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    std::string result;
    bool after_letter = false;
    for (const std::string_view character : characters_of(bytes_of(self))) {
        result += in_case(runtime, character, after_letter ? Case::lower : Case::title);
        after_letter = is_text_of(character, TextClass::upper) || is_text_of(character, TextClass::lower);
    }
    return runtime.text(std::move(result));
}

Value swap_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    std::string result;
    for (const std::string_view character : characters_of(bytes_of(self)))
        result += in_case(runtime, character, is_text_of(character, TextClass::upper) ? Case::lower : Case::upper);
    return runtime.text(std::move(result));
}

template <TextClass which>
Value is_class(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    runtime.work(self.bytes().size());
    return Value::boolean(is_text_of(bytes_of(self), which));
}

Value replace_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"old", "new", "count"}, 2);
    return replace_in(runtime, bytes_of(self), parameters.text(0), parameters.text(1), parameters.integer(2, -1));
}

Value join_texts(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"iterable"}, 1);
    Output output(runtime);
    bool first = true;
    for (const Value& item : items_of(runtime, parameters[0])) {
        if (!item.is(Kind::text)) runtime.refuse("strings to join", item);
        if (!std::exchange(first, false)) output.append(bytes_of(self));
        output.append(item.bytes());
    }
    return runtime.text(output.take());
}

enum class Side { left, right, both };
/// str.ljust, rjust, center.
template <Side side>
Value justify_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"width", "fillchar"}, 1);
    const std::string fill = parameters.has(1) ? parameters.text(1) : " ";
    if (num_chars(fill) != 1) runtime.fail("one character to fill with", std::to_string(num_chars(fill)));
    const std::int64_t width = parameters.integer(0, 0);
    const std::int64_t missing = std::max<std::int64_t>(width - length_of(runtime, self), 0);
    runtime.check_text_bytes(static_cast<std::size_t>(missing));
    const std::int64_t left = side == Side::left    ? 0
                              : side == Side::right ? missing
                                                    : missing / 2 + (missing & width & 1);
    std::string result;
    for (std::int64_t i = 0; i < left; ++i) result += fill;
    result += bytes_of(self);
    for (std::int64_t i = left; i < missing; ++i) result += fill;
    return runtime.text(std::move(result));
}

Value zero_fill(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"width"}, 1);
    std::string text = self.bytes();
    const std::int64_t missing = parameters.integer(0, 0) - length_of(runtime, self);
    if (missing <= 0) return self;
    runtime.check_text_bytes(static_cast<std::size_t>(missing));
    const bool has_sign = text.starts_with('+') || text.starts_with('-');
    return runtime.text(text.insert(has_sign ? 1 : 0, static_cast<std::size_t>(missing), '0'));
}

template <bool from_right>
Value partition_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"sep"}, 1);
    const std::string_view text = self.bytes();
    const std::string& separator = parameters.text(0);
    if (separator.empty()) runtime.fail("a separator", "an empty string");
    runtime.work(text.size() * (from_right ? separator.size() : 1));
    const std::size_t at = from_right ? text.rfind(separator) : find_part(text, separator);
    const auto made = [&](std::string_view part) { return runtime.text(std::string(part)); };
    if (at == std::string_view::npos)
        return from_right ? runtime.tuple({made(""), made(""), self}) : runtime.tuple({self, made(""), made("")});
    return runtime.tuple({made(text.substr(0, at)), made(separator), made(text.substr(at + separator.size()))});
}

Value format_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
    return runtime.text(formatted(runtime, bytes_of(self), arguments));
}

constexpr Entry text_methods[] = {
    {"strip", strip_text<stripped>},
    {"lstrip", strip_text<stripped_left>},
    {"rstrip", strip_text<stripped_right>},
    {"split", split_text<split>},
    {"rsplit", split_text<split_right>},
    {"splitlines", split_text_lines},
    {"startswith", has_affix<false>},
    {"endswith", has_affix<true>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"find", find_text<false>},
    {"rfind", find_text<true>},
    {"index", index_text<false>},
    {"rindex", index_text<true>},
    {"count", count_text},
    {"replace", replace_text},
    {"join", join_texts},
    {"upper", change_case<Case::upper>},
    {"lower", change_case<Case::lower>},
    {"capitalize", capitalize_text},
    {"title", title_text},
    {"swapcase", swap_case},
    {"ljust", justify_text<Side::left>},
    {"rjust", justify_text<Side::right>},
    {"center", justify_text<Side::both>},
    {"zfill", zero_fill},
    {"partition", partition_text<false>},
    {"rpartition", partition_text<true>},
    {"isalpha", is_class<TextClass::alpha>},
    {"isdigit", is_class<TextClass::digit>},
    {"isdecimal", is_class<TextClass::decimal>},
    {"isnumeric", is_class<TextClass::numeric>},
    {"isalnum", is_class<TextClass::alnum>},
    {"isspace", is_class<TextClass::space>},
    {"isupper", is_class<TextClass::upper>},
    {"islower", is_class<TextClass::lower>},
    {"isascii", is_class<TextClass::ascii>},
    {"isprintable", is_class<TextClass::printable>},
    {"format", format_text},
    {"format_map", nullptr},
    {"encode", nullptr},
    {"casefold", nullptr},
    {"expandtabs", nullptr},
    {"isidentifier", nullptr},
    {"istitle", nullptr},
    {"maketrans", nullptr},
    {"translate", nullptr},
};

Value index_in_list(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"value"}, 1);
    const Values& items = self.as_sequence().items;
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (equal(runtime, items[i], parameters[0])) return Value::integer(static_cast<std::int64_t>(i));
    }
    runtime.fail("a list that contains the value", "another one");
}

Value count_in_list(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"value"}, 1);
    const Values& items = self.as_sequence().items;
    return Value::integer(std::count_if(items.begin(), items.end(),
                                        [&](const Value& item) { return equal(runtime, item, parameters[0]); }));
}

Value copy(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return self;
}

constexpr Entry list_methods[] = {{"index", index_in_list}, {"count", count_in_list}, {"copy", copy}};
constexpr Entry tuple_methods[] = {{"index", index_in_list}, {"count", count_in_list}};

Value get_item(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"key", "default"}, 1);
    if (const Value* found = find_key(runtime, self.as_dict(), parameters[0])) return *found;
    return parameters.has(1) ? parameters[1] : Value::none();
}

Value keys_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.sequence(Kind::view, items_of(runtime, self), "dict_keys");
}

Value values_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    Values items;
    for (const auto& [key, value] : self.as_dict().items) items.push_back(value);
    return runtime.sequence(Kind::view, std::move(items), "dict_values");
}

Value items_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.sequence(Kind::view, pairs_of(runtime, self), "dict_items");
}

constexpr Entry dict_methods[] = {{"get", get_item},     {"keys", keys_view}, {"values", values_view},
                                  {"items", items_view}, {"copy", copy},      {"fromkeys", nullptr}};

Value cycle(Runtime& runtime, const Value& self, const Arguments& arguments) {
    if (arguments.positional.empty() || !arguments.keyword.empty()) runtime.fail("values to cycle through", "none");
    const auto index = static_cast<std::size_t>(static_cast<const Loop&>(*self.object()).index0);
    return arguments.positional[index % arguments.positional.size()];
}

constexpr Entry loop_methods[] = {{"cycle", cycle}, {"changed", nullptr}};

// Methods that change their object are refused by the sandbox: they are undefined.
constexpr std::string_view list_changers[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
constexpr std::string_view dict_changers[] = {"clear", "pop", "popitem", "setdefault", "update"};

std::span<const Entry> methods_of(const Value& object) {
    switch (object.kind()) {
        case Kind::text:
            return text_methods;
        case Kind::list:
            return list_methods;
        case Kind::tuple:
            return tuple_methods;
        case Kind::dict:
            return dict_methods;
        case Kind::loop:
            return loop_methods;
        default:
            return {};
    }
}

const Entry* find_entry(std::span<const Entry> entries, std::string_view name) {
    const auto found =
        std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.name == name; });
    return found == entries.end() ? nullptr : &*found;
}

}  // namespace

Values pairs_of(Runtime& runtime, const Value& dict) {
    Values pairs;
    for (const auto& [key, value] : dict.as_dict().items) pairs.push_back(runtime.tuple({key, value}));
    return pairs;
}

bool is_unsafe_method(const Value& object, std::string_view name) {
    const auto listed = [&](std::span<const std::string_view> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    return (object.is(Kind::list) && listed(list_changers)) || (object.is(Kind::dict) && listed(dict_changers));
}

bool has_method(const Value& object, std::string_view name) {
    return find_entry(methods_of(object), name) != nullptr;
}

Value call_method(Runtime& runtime, const Value& self, std::string_view name, const Arguments& arguments) {
    const Entry* entry = find_entry(methods_of(self), name);
    if (entry->call == nullptr) runtime.fail("a method of chat templates", "one that is not supported");
    if (self.is(Kind::text) && self.as_text().markup)
        runtime.fail("a string that was not marked by filter safe or escape", "a marked one");
    return entry->call(runtime, self, arguments);
}

std::string in_case(Runtime& runtime, std::string_view text, Case to) {
    runtime.work(4 * text.size());
    if (auto changed = with_case(text, to)) return *std::move(changed);
    runtime.fail("text whose characters have one form in the other case each", in_quotes(text));
}

std::string capitalized(Runtime& runtime, std::string_view text) {
    const std::size_t first = offset_of_char(text, 1);
    return in_case(runtime, text.substr(0, first), Case::title) + in_case(runtime, text.substr(first), Case::lower);
}

Value replace_in(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                 std::int64_t count) {
    runtime.work(2 * text.size());
    std::int64_t times = count_parts(text, from);
    if (count >= 0) times = std::min(times, count);
    runtime.check_text_bytes(text.size());
    if (!to.empty()) {
        const std::size_t max_times = runtime.max_text_bytes() / to.size();
        runtime.check_text_bytes(static_cast<std::size_t>(times) > max_times
                                     ? runtime.max_text_bytes() + 1
                                     : text.size() + static_cast<std::size_t>(times) * to.size());
    }
    return runtime.text(replaced(text, from, to, count));
}

}  // namespace longhaul::engine::jinja
