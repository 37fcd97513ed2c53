// Filters of lists and other sequences.
#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "engine/tokenizer/jinja/filters.hpp"
#include "engine/tokenizer/jinja/text.hpp"
#include "engine/tokenizer/json_view.hpp"

namespace longhaul::engine::jinja {
namespace {

/// A path of attributes: "a.b.0".
Values attribute_path(Runtime& runtime, const Value& attribute) {
    if (attribute.is(Kind::none) || attribute.is(Kind::undefined)) return {};
    if (!attribute.is(Kind::text)) return {attribute};
    Values path;
    for (const std::string_view part : split(attribute.bytes(), ".", -1)) {
        std::int64_t number = 0;
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
        const bool is_number =
            is_text_of(part, TextClass::decimal) && error == std::errc() && end == part.data() + part.size();
        path.push_back(is_number ? Value::integer(number) : runtime.text(std::string(part)));
    }
    return path;
}

Value follow(Runtime& runtime, const Values& path, Value item, const Value* fallback = nullptr) {
    for (const Value& part : path) {
        item = item_of(runtime, item, part);
        if (fallback != nullptr && item.is(Kind::undefined)) item = *fallback;
    }
    return item;
}

Value without_case(Runtime& runtime, const Value& value) {
    return value.is(Kind::text) ? runtime.text(in_case(runtime, value.bytes(), Case::lower)) : value;
}

/// What sort, unique, min and max compare: the item or its attribute, without case unless `case_sensitive`.
std::function<Value(const Value&)> key_of(Runtime& runtime, const Value& attribute, bool case_sensitive) {
    return [&runtime, path = attribute_path(runtime, attribute), case_sensitive](const Value& item) {
        const Value key = follow(runtime, path, item);
        return case_sensitive ? key : without_case(runtime, key);
    };
}

/// Sorts items by their keys, stably, as sorted(…, reverse=…) does.
Values sorted(Runtime& runtime, const Values& items, const Values& keys, bool reverse) {
    std::vector<std::size_t> order(items.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return reverse ? less(runtime, keys[b], keys[a]) : less(runtime, keys[a], keys[b]);
    });
    Values result;
    for (const std::size_t index : order) result.push_back(items[index]);
    return result;
}

Value length(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return Value::integer(length_of(runtime, input));
}

Value list(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    return runtime.list(items_of(runtime, input));
}

Value first(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    if (input.is(Kind::iterator)) {
        auto& iterator = static_cast<Sequence&>(*input.object());
        if (iterator.position < iterator.items.size()) return iterator.items[iterator.position++];
    } else if (const Values items = items_of(runtime, input); !items.empty()) {
        return items.front();
    }
    return runtime.undefined("the first item of an empty sequence");
}

Value last(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    if (input.is(Kind::iterator)) runtime.refuse("a sequence with an end", input);
    const Values items = items_of(runtime, input);
    return items.empty() ? runtime.undefined("the last item of an empty sequence") : items.back();
}

Value join(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"d", "attribute"});
    const std::string separator = parameters.has(0) ? text_of(runtime, parameters[0]) : "";
    const Values path = attribute_path(runtime, parameters[1]);
    Output output(runtime);
    bool at_start = true;
    for (const Value& item : items_of(runtime, input)) {
        if (!std::exchange(at_start, false)) output.append(separator);
        output.append(text_of(runtime, follow(runtime, path, item)));
    }
    return runtime.text(output.take());
}

Value items(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    if (input.is(Kind::undefined)) return runtime.iterator({});
    if (!input.is(Kind::dict)) runtime.refuse("a dict", input);
    return runtime.iterator(pairs_of(runtime, input));
}

Value sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"reverse", "case_sensitive", "attribute"});
    std::vector<std::function<Value(const Value&)>> getters;
    if (parameters[2].is(Kind::text)) {
        for (const std::string_view part : split(parameters[2].bytes(), ",", -1))
            getters.push_back(key_of(runtime, runtime.text(std::string(part)), parameters.truth(1)));
    } else {
        getters.push_back(key_of(runtime, parameters[2], parameters.truth(1)));
    }
    const Values all = items_of(runtime, input);
    Values keys;
    for (const Value& item : all) {
        Values parts;
        for (const auto& getter : getters) parts.push_back(getter(item));
        keys.push_back(runtime.list(std::move(parts)));
    }
    return runtime.list(sorted(runtime, all, keys, parameters.truth(0)));
}

Value sort_dict(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"case_sensitive", "by", "reverse"});
    const std::string by = parameters.has(1) ? parameters.text(1) : "key";
    if (by != "key" && by != "value") runtime.fail("by = 'key' or 'value'", in_quotes(by));
    if (!input.is(Kind::dict)) runtime.refuse("a dict", input);
    Values keys;
    for (const auto& [key, value] : input.as_dict().items) {
        const Value& chosen = by == "key" ? key : value;
        keys.push_back(parameters.truth(0) ? chosen : without_case(runtime, chosen));
    }
    return runtime.list(sorted(runtime, pairs_of(runtime, input), keys, parameters.truth(2)));
}

Value unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"case_sensitive", "attribute"});
    const auto getter = key_of(runtime, parameters[1], parameters.truth(0));
    Dict seen(nullptr);
    Values result;
    for (const Value& item : items_of(runtime, input)) {
        Value key = getter(item);
        if (find_key(runtime, seen, key) != nullptr) continue;
        seen.items.emplace_back(std::move(key), Value::none());
        result.push_back(item);
    }
    return runtime.iterator(std::move(result));
}

template <bool maximum>
Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"case_sensitive", "attribute"});
    const auto getter = key_of(runtime, parameters[1], parameters.truth(0));
    const Values all = items_of(runtime, input);
    if (all.empty()) return runtime.undefined("the extreme of an empty sequence");
    std::size_t best = 0;
    Value best_key = getter(all[0]);
    for (std::size_t i = 1; i < all.size(); ++i) {
        Value key = getter(all[i]);
        if (maximum ? !less(runtime, best_key, key) : !less(runtime, key, best_key)) continue;
        best = i;
        best_key = std::move(key);
    }
    return all[best];
}

Value sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"attribute", "start"});
    const Values path = attribute_path(runtime, parameters[0]);
    Value total = parameters.has(1) ? parameters[1] : Value::integer(0);
    if (total.is(Kind::text)) runtime.refuse("a start that is no string", total);
    for (const Value& item : items_of(runtime, input))
        total = arithmetic(runtime, Op::add, total, follow(runtime, path, item));
    return total;
}

Value reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters none(runtime, arguments, {});
    Values all = items_of(runtime, input);
    std::reverse(all.begin(), all.end());
    if (input.is(Kind::iterator)) return runtime.list(std::move(all));
    if (!input.is(Kind::text)) return runtime.iterator(std::move(all));
    std::string text;
    for (const Value& character : all) text += character.bytes();
    return runtime.text(std::move(text));
}

Value map(Runtime& runtime, const Value& input, const Arguments& arguments) {
    Values result;
    if (!input.truth()) return runtime.iterator({});
    if (arguments.positional.empty()) {
        const Parameters parameters(runtime, arguments, {"attribute", "default"}, 1);
        const Values path = attribute_path(runtime, parameters[0]);
        const bool has_default = parameters.has(1) && !parameters[1].is(Kind::none);
        for (const Value& item : items_of(runtime, input))
            result.push_back(follow(runtime, path, item, has_default ? &parameters[1] : nullptr));
        return runtime.iterator(std::move(result));
    }
    if (!arguments.positional[0].is(Kind::text)) runtime.refuse("the name of a filter", arguments.positional[0]);
    const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.keyword};
    for (const Value& item : items_of(runtime, input))
        result.push_back(apply_filter(runtime, arguments.positional[0].bytes(), item, rest));
    return runtime.iterator(std::move(result));
}

/// select, reject, selectattr and rejectattr.
template <bool keep, bool by_attribute>
Value select(Runtime& runtime, const Value& input, const Arguments& arguments) {
    if (!input.truth()) return runtime.iterator({});
    const std::size_t name_at = by_attribute ? 1 : 0;
    const Values& positional = arguments.positional;
    if (positional.size() < name_at) runtime.fail("the name of an attribute", "nothing");
    const Values path = by_attribute ? attribute_path(runtime, positional[0]) : Values();
    const bool has_test = positional.size() > name_at;
    if (has_test && !positional[name_at].is(Kind::text)) runtime.refuse("the name of a test", positional[name_at]);
    Arguments rest{{}, arguments.keyword};
    if (has_test)
        rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(name_at) + 1, positional.end());
    Values result;
    for (const Value& item : items_of(runtime, input)) {
        const Value tested = follow(runtime, path, item);
        const bool holds = has_test ? apply_test(runtime, positional[name_at].bytes(), tested, rest) : tested.truth();
        if (holds == keep) result.push_back(item);
    }
    return runtime.iterator(std::move(result));
}

Value batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"linecount", "fill_with"}, 1);
    const std::int64_t size = parameters.integer(0, 1);
    if (size < 1 || size > 100000) runtime.fail("1 to 100000 items per batch", std::to_string(size));
    const Values all = items_of(runtime, input);
    Values result;
    for (std::size_t begin = 0; begin < all.size(); begin += static_cast<std::size_t>(size)) {
        const std::size_t end = std::min(all.size(), begin + static_cast<std::size_t>(size));
        Values part(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
        if (parameters.has(1) && !parameters[1].is(Kind::none))
            part.resize(static_cast<std::size_t>(size), parameters[1]);
        result.push_back(runtime.list(std::move(part)));
    }
    return runtime.iterator(std::move(result));
}

Value slice(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"slices", "fill_with"}, 1);
    const std::int64_t count = parameters.integer(0, 1);
    if (count < 1 || count > 100000) runtime.fail("1 to 100000 slices", std::to_string(count));
    const Values all = items_of(runtime, input);
    const auto slices = static_cast<std::size_t>(count);
    Values result;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < slices; ++i) {
        const bool extra = i < all.size() % slices;
        const std::size_t end = begin + all.size() / slices + (extra ? 1 : 0);
        Values part(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
        if (!extra && parameters.has(1) && !parameters[1].is(Kind::none)) part.push_back(parameters[1]);
        result.push_back(runtime.list(std::move(part)));
        begin = end;
    }
    return runtime.iterator(std::move(result));
}

constexpr Filter filters_of_sequences[] = {
    {"length", length},
    {"count", length},
    {"list", list},
    {"first", first},
    {"last", last},
    {"join", join},
    {"items", items},
    {"sort", sort},
    {"dictsort", sort_dict},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"reverse", reverse},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
    {"batch", batch},
    {"slice", slice},
};

}  // namespace

std::span<const Filter> sequence_filters() {
    return filters_of_sequences;
}

}  // namespace longhaul::engine::jinja
