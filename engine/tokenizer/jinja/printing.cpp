// Values as text: str() and repr().
#include "engine/json.hpp"
#include "engine/tokenizer/jinja/operations.hpp"
#include "engine/tokenizer/jinja/text.hpp"

namespace longhaul::engine::jinja {
namespace {

void append_repr(Runtime& runtime, const Value& value, std::string& result);

void append_items(Runtime& runtime, const Values& items, std::string_view open, std::string_view close,
                  std::string& result) {
    result += open;
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) result += ", ";
        append_repr(runtime, items[i], result);
    }
    result += close;
}

void append_dict(Runtime& runtime, const Dict& dict, std::string& result) {
    result += "{";
    for (std::size_t i = 0; i < dict.items.size(); ++i) {
        if (i > 0) result += ", ";
        append_repr(runtime, dict.items[i].first, result);
        result += ": ";
        append_repr(runtime, dict.items[i].second, result);
    }
    result += "}";
}

void append_sequence(Runtime& runtime, const Value& value, std::string& result) {
    const Sequence& sequence = value.as_sequence();
    switch (value.kind()) {
        case Kind::range:
            result += sequence.label;
            return;
        case Kind::view:
            return append_items(runtime, sequence.items, sequence.label + "([", "])", result);
        case Kind::tuple:
            return append_items(runtime, sequence.items, "(", sequence.items.size() == 1 ? ",)" : ")", result);
        default:
            return append_items(runtime, sequence.items, "[", "]", result);
    }
}

void append_repr(Runtime& runtime, const Value& value, std::string& result) {
    runtime.work();
    runtime.check_text_bytes(result.size());
    switch (value.kind()) {
        case Kind::undefined:
            result += "Undefined";
            return;
        case Kind::none:
            result += "None";
            return;
        case Kind::boolean:
            result += value.as_bool() ? "True" : "False";
            return;
        case Kind::integer:
            result += std::to_string(value.as_integer());
            return;
        case Kind::real:
            result += real_text(value.as_real());
            return;
        case Kind::text:
            runtime.work(4 * value.bytes().size());
            result +=
                value.as_text().markup ? "Markup(" + repr_of_text(value.bytes()) + ")" : repr_of_text(value.bytes());
            return;
        case Kind::dict:
            return append_dict(runtime, value.as_dict(), result);
        case Kind::list:
        case Kind::tuple:
        case Kind::range:
        case Kind::view:
            return append_sequence(runtime, value, result);
        default:
            runtime.refuse("a value that has a text", value);
    }
}

}  // namespace

std::string text_of(Runtime& runtime, const Value& value) {
    if (value.is(Kind::text)) return value.bytes();
    if (value.is(Kind::undefined)) return "";
    return repr_of(runtime, value);
}

std::string repr_of(Runtime& runtime, const Value& value) {
    std::string result;
    append_repr(runtime, value, result);
    return result;
}

}  // namespace longhaul::engine::jinja
