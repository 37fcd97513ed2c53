// Items, attributes and slices of values; what a loop over a value gives.
#include <algorithm>
#include <limits>
#include <optional>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/objects.hpp"
#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/text.hpp"

namespace longhaul::engine::jinja {
namespace {

void require_hashable(Runtime& runtime, const Value& key) {
    const bool unhashable = key.is(Kind::list) || key.is(Kind::dict) || key.is(Kind::view);
    if (unhashable) runtime.fail("a key that can be hashed", key.kind_name());
    if (!key.is(Kind::tuple)) return;
    for (const Value& item : key.as_sequence().items) require_hashable(runtime, item);
}

Value undefined_item(Runtime& runtime, const Value& object, std::string_view what) {
    return runtime.undefined(std::string(what) + " of " + std::string(object.kind_name()) + ", which is undefined");
}

Value undefined_attribute(Runtime& runtime, const Value& object, std::string_view name) {
    return undefined_item(runtime, object, "attribute '" + printable(name) + "'");
}

/// object.name, nullopt if there is none.
std::optional<Value> find_attribute(Runtime& runtime, const Value& object, std::string_view name) {
    if (object.is(Kind::loop)) return attribute_of_loop(runtime, object, name);
    if (object.is(Kind::name_space)) {
        const Value* found = find_key(runtime, object.as_dict(), Value::text(std::string(name)));
        return found == nullptr ? std::nullopt : std::optional(*found);
    }
    if (object.is(Kind::macro) && name == "name")
        return runtime.text(static_cast<const Macro&>(*object.object()).node.name);
    if (is_unsafe_method(object, name))
        return runtime.undefined("method '" + std::string(name) + "' of " + std::string(object.kind_name()) +
                                 ", which templates may not use");
    if (!has_method(object, name)) return std::nullopt;
    return Value(Kind::method, std::make_shared<Method>(runtime, object, std::string(name)));
}

/// Position in a sequence of `length` from a Python index; nullopt if it is outside.
std::optional<std::int64_t> position_of(std::int64_t index, std::int64_t length) {
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    return index;
}

/// object[index], nullopt if Python raises a TypeError or LookupError.
std::optional<Value> find_item(Runtime& runtime, const Value& object, const Value& index) {
    if (object.is(Kind::dict)) {
        if (index.is(Kind::list) || index.is(Kind::dict)) return std::nullopt;
        const Value* found = find_key(runtime, object.as_dict(), index);
        return found == nullptr ? std::nullopt : std::optional(*found);
    }
    if (!index.is_integer()) return std::nullopt;
    if (object.is_sequence()) {
        const Values& items = object.as_sequence().items;
        const auto at = position_of(index.as_integer(), std::ssize(items));
        return at ? std::optional(items[static_cast<std::size_t>(*at)]) : std::nullopt;
    }
    if (!object.is(Kind::text)) return std::nullopt;
    const std::string& bytes = object.bytes();
    const auto at = position_of(index.as_integer(), length_of(runtime, object));
    if (!at) return std::nullopt;
    const std::size_t offset = object.as_text().ascii ? static_cast<std::size_t>(*at) : offset_of_char(bytes, *at);
    return runtime.text(bytes.substr(offset, offset_of_char(std::string_view(bytes).substr(offset), 1)));
}

/// The positions that a slice of a sequence of `length` selects: as slice.indices() of Python.
struct Range {
    std::int64_t start, stop, step;
};
Range range_of(Runtime& runtime, const Value& start, const Value& stop, const Value& step, std::int64_t length) {
    const auto number = [&](const Value& value, std::int64_t fallback) {
        if (value.is(Kind::none)) return fallback;
        if (!value.is_integer()) runtime.refuse("an integer or none in a slice", value);
        return std::max(value.as_integer(), -std::numeric_limits<std::int64_t>::max());
    };
    Range range{.start = 0, .stop = 0, .step = number(step, 1)};
    if (range.step == 0) runtime.fail("a step other than 0", "0");
    const std::int64_t low = range.step < 0 ? -1 : 0;
    const std::int64_t high = range.step < 0 ? length - 1 : length;
    const auto bound = [&](const Value& value, std::int64_t fallback) {
        std::int64_t at = number(value, fallback);
        if (value.is(Kind::none)) return fallback;
        if (at < 0) at += length;
        return std::clamp(at, low, high);
    };
    range.start = bound(start, range.step < 0 ? high : low);
    range.stop = bound(stop, range.step < 0 ? low : high);
    return range;
}

template <class Take>
void for_each_position(const Range& range, std::int64_t length, Take&& take) {
    // A step beyond the length selects one item at most, and must not overflow the position.
    const std::int64_t step = std::clamp(range.step, -length - 1, length + 1);
    for (std::int64_t at = range.start; step > 0 ? at < range.stop : at > range.stop; at += step)
        take(static_cast<std::size_t>(at));
}

Value text_slice(Runtime& runtime, const Value& text, const Value& start, const Value& stop, const Value& step) {
    const std::string_view bytes = text.bytes();
    const std::int64_t length = length_of(runtime, text);
    const Range range = range_of(runtime, start, stop, step, length);
    if (range.step == 1) {
        const auto offset = [&](std::int64_t index) {
            return text.as_text().ascii ? static_cast<std::size_t>(index) : offset_of_char(bytes, index);
        };
        if (range.stop <= range.start) return runtime.text("");
        const std::size_t begin = offset(range.start);
        return runtime.text(std::string(bytes.substr(begin, offset(range.stop) - begin)), text.as_text().markup);
    }
    runtime.work(bytes.size() * sizeof(std::string_view));
    const std::vector<std::string_view> characters = characters_of(bytes);
    std::string result;
    for_each_position(range, length, [&](std::size_t at) { result += characters[at]; });
    return runtime.text(std::move(result), text.as_text().markup);
}

}  // namespace

const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key) {
    require_hashable(runtime, key);
    const auto found = std::find_if(dict.items.begin(), dict.items.end(),
                                    [&](const auto& item) { return equal(runtime, item.first, key); });
    return found == dict.items.end() ? nullptr : &found->second;
}

Value make_dict(Runtime& runtime, const std::vector<std::pair<Value, Value>>& items) {
    std::vector<std::pair<Value, Value>> unique;
    for (const auto& item : items) {
        require_hashable(runtime, item.first);
        const auto known = std::find_if(unique.begin(), unique.end(),
                                        [&](const auto& other) { return equal(runtime, other.first, item.first); });
        if (known != unique.end()) {
            known->second = item.second;
        } else {
            unique.push_back(item);
        }
    }
    return runtime.dict(std::move(unique));
}

bool is_iterable(const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
        case Kind::text:
        case Kind::list:
        case Kind::tuple:
        case Kind::dict:
        case Kind::view:
        case Kind::iterator:
        case Kind::range:
        case Kind::loop:
            return true;
        default:
            return false;
    }
}

Values items_of(Runtime& runtime, const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
            return {};
        case Kind::list:
        case Kind::tuple:
        case Kind::view:
        case Kind::range:
            runtime.work(value.as_sequence().items.size() * sizeof(Value));
            return value.as_sequence().items;
        case Kind::iterator: {
            auto& iterator = static_cast<Sequence&>(*value.object());
            const auto first = iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.position);
            iterator.position = iterator.items.size();
            return {first, iterator.items.end()};
        }
        case Kind::dict: {
            Values keys;
            for (const auto& [key, item] : value.as_dict().items) keys.push_back(key);
            runtime.work(keys.size() * sizeof(Value));
            return keys;
        }
        case Kind::text: {
            Values characters;
            for (const std::string_view character : characters_of(value.bytes()))
                characters.push_back(runtime.text(std::string(character)));
            return characters;
        }
        default:
            runtime.refuse("a list, string or dict", value);
    }
}

std::int64_t length_of(Runtime& runtime, const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
            return 0;
        case Kind::text:
            if (value.as_text().ascii) return std::ssize(value.bytes());
            runtime.work(value.bytes().size());
            return num_chars(value.bytes());
        case Kind::list:
        case Kind::tuple:
        case Kind::view:
        case Kind::range:
            return std::ssize(value.as_sequence().items);
        case Kind::dict:
            return std::ssize(value.as_dict().items);
        case Kind::loop:
            return static_cast<Loop&>(*value.object()).length();
        default:
            runtime.refuse("a value with a length", value);
    }
}

Value attribute_of(Runtime& runtime, const Value& object, std::string_view name) {
    runtime.require_defined(object);
    if (auto found = find_attribute(runtime, object, name)) return *found;
    if (object.is(Kind::dict)) {
        for (const auto& [key, value] : object.as_dict().items) {
            runtime.work();
            if (key.is(Kind::text) && key.bytes() == name) return value;
        }
    }
    return undefined_attribute(runtime, object, name);
}

Value item_of(Runtime& runtime, const Value& object, const Value& index) {
    runtime.require_defined(object);
    if (auto found = find_item(runtime, object, index)) return *found;
    if (index.is(Kind::text)) {
        if (auto found = find_attribute(runtime, object, index.bytes())) return *found;
        return undefined_attribute(runtime, object, index.bytes());
    }
    const bool is_number = index.is_integer();
    return undefined_item(runtime, object, is_number ? "item " + std::to_string(index.as_integer()) : "an item");
}

Value slice_of(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
    if (object.is(Kind::text)) return text_slice(runtime, object, start, stop, step);
    if (!object.is(Kind::list) && !object.is(Kind::tuple)) runtime.refuse("a list, tuple or string to slice", object);
    const Values& items = object.as_sequence().items;
    const Range range = range_of(runtime, start, stop, step, std::ssize(items));
    Values selected;
    for_each_position(range, std::ssize(items), [&](std::size_t at) { selected.push_back(items[at]); });
    return runtime.sequence(object.kind(), std::move(selected));
}

Parameters::Parameters(Runtime& runtime, const Arguments& arguments, std::initializer_list<std::string_view> names,
                       std::size_t num_required)
    : runtime_(runtime), values_(names.size()), given_(names.size(), false) {
    if (arguments.positional.size() > names.size())
        runtime.fail("at most " + std::to_string(names.size()) + " arguments",
                     std::to_string(arguments.positional.size()));
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
        values_[i] = arguments.positional[i];
        given_[i] = true;
    }
    for (const auto& [name, value] : arguments.keyword) {
        const auto* found = std::find(names.begin(), names.end(), name);
        if (found == names.end()) runtime.fail("another argument", "'" + printable(name) + "'");
        const auto index = static_cast<std::size_t>(found - names.begin());
        if (given_[index]) runtime.fail("argument '" + name + "' once", "twice");
        values_[index] = value;
        given_[index] = true;
    }
    for (std::size_t i = 0; i < num_required; ++i) {
        if (!given_[i]) runtime.fail("argument '" + std::string(names.begin()[i]) + "'", "nothing");
    }
}

std::int64_t Parameters::integer(std::size_t index, std::int64_t fallback) const {
    if (!given_[index]) return fallback;
    if (!values_[index].is_integer()) runtime_.refuse("an integer", values_[index]);
    return values_[index].as_integer();
}

const std::string& Parameters::text(std::size_t index) const {
    if (!values_[index].is(Kind::text)) runtime_.refuse("a string", values_[index]);
    return values_[index].bytes();
}

}  // namespace longhaul::engine::jinja
