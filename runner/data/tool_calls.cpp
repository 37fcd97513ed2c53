#include "runner/data/tool_calls.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/error.hpp"
#include "engine/grammar/reasoning_end.hpp"

namespace longhaul::runner {
namespace {

using Ordered = nlohmann::ordered_json;
using engine::without_space;
using Calls = std::vector<ToolCall>;

constexpr std::string_view call_begin = "<tool_call>", call_end = "</tool_call>",
                           function_begin = "<function=", function_end = "</function>";

const Tool* find_tool(const std::vector<Tool>& tools, std::string_view name) {
    const auto found = std::find_if(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
    return found == tools.end() ? nullptr : &*found;
}

std::optional<Ordered> parsed(std::string_view json) {
    try {
        return engine::parse_ordered_json(json, "answer");
    } catch (const InputError&) {
        return std::nullopt;
    }
}

/// Removes what stands before `mark` in `text`, and `mark`; returns it, or nullopt if there is no mark.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
    const std::size_t at = text.find(mark);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view before = text.substr(0, at);
    text.remove_prefix(at + mark.size());
    return before;
}

/// Removes `mark` where `text` begins with it, perhaps behind white space.
bool take(std::string_view& text, std::string_view mark) {
    const std::string_view rest = without_space(text);
    if (!rest.starts_with(mark)) return false;
    text = rest.substr(mark.size());
    return true;
}

/// Some schemas have the names of Python.
std::string type_name(const std::string& name) {
    static const std::map<std::string, std::string> of_python{{"str", "string"},   {"int", "integer"},
                                                              {"float", "number"}, {"bool", "boolean"},
                                                              {"dict", "object"},  {"list", "array"}};
    const auto found = of_python.find(name);
    return found == of_python.end() ? name : found->second;
}

/// Types that a schema allows; empty: any.
std::set<std::string> types_of(const engine::Json& schema) {
    std::set<std::string> types;
    if (!schema.is_object()) return types;
    if (const auto type = schema.find("type"); type != schema.end()) {
        for (const engine::Json& one : type->is_array() ? *type : engine::Json::array({*type})) {
            if (one.is_string()) types.insert(type_name(one.get<std::string>()));
        }
        return types;
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
        if (!schema.contains(keyword) || !schema[keyword].is_array()) continue;
        for (const engine::Json& alternative : schema[keyword]) {
            const std::set<std::string> more = types_of(alternative);
            if (more.empty()) return {};
            types.insert(more.begin(), more.end());
        }
    }
    const auto values = schema.find("enum");
    const bool are_texts = values != schema.end() && values->is_array() && !values->empty() &&
                           std::all_of(values->begin(), values->end(), [](const auto& of) { return of.is_string(); });
    if (are_texts || (schema.contains("const") && schema["const"].is_string())) types.insert("string");
    return types;
}

bool is_of_type(const Ordered& value, const std::set<std::string>& types) {
    if (types.empty()) return true;
    if (value.is_number_integer() && types.contains("integer")) return true;
    if (value.is_number()) return types.contains("number");
    return types.contains(value.type_name());
}

/// A value that stands between marks. Some models write those of Python: True, None.
Ordered value_of(const Tool& tool, const std::string& key, std::string_view text) {
    std::set<std::string> types;
    const auto properties = tool.parameters.find("properties");
    if (properties != tool.parameters.end() && properties->is_object() && properties->contains(key))
        types = types_of((*properties)[key]);
    if (types == std::set<std::string>{"string"}) return std::string(text);
    const std::string_view word = without_space(text);
    if (types.contains("null") && word == "None") return nullptr;
    if (types.contains("boolean") && (word == "True" || word == "False")) return word == "True";
    const auto value = parsed(word);
    if (value && is_of_type(*value, types)) return *value;
    if (types.empty() || types.contains("string") || !value) return std::string(text);
    return *value;
}

/// {"name": …, "arguments" or "parameters": {…}, or the text of that}. `bare`: without marks, so it must have them, and
/// nothing else.
bool add_object(const Ordered& object, const std::vector<Tool>& tools, bool bare, Calls& calls) {
    if (!object.is_object() || !object.contains("name") || !object["name"].is_string()) return false;
    const auto name = object["name"].get<std::string>();
    const char* const key = object.contains("arguments") ? "arguments" : "parameters";
    if (find_tool(tools, name) == nullptr || (bare && !object.contains(key))) return false;
    const auto is_known = [&](const auto& member) {
        return member.key() == "name" || member.key() == key || member.key() == "id" || member.key() == "type";
    };
    for (const auto& member : object.items()) {
        if (bare && !is_known(member)) return false;
    }
    Ordered arguments = object.contains(key) ? object[key] : Ordered::object();
    if (arguments.is_string()) arguments = parsed(arguments.get<std::string>()).value_or(Ordered());
    if (!arguments.is_object()) return false;
    calls.push_back({name, engine::json_text(arguments)});
    return true;
}

/// NAME><parameter=KEY>VALUE</parameter>…</function>, behind <function=.
bool add_function(std::string_view& text, const std::vector<Tool>& tools, Calls& calls) {
    const auto name = take_until(text, ">");
    const Tool* tool = name ? find_tool(tools, without_space(*name)) : nullptr;
    if (tool == nullptr) return false;
    Ordered arguments = Ordered::object();
    while (take(text, "<parameter=")) {
        const auto key = take_until(text, ">");
        auto value = take_until(text, "</parameter>");
        if (!key || !value) {  // the answer was cut: all that follows is the value
            text = {};
            return false;
        }
        if (value->starts_with('\n')) value->remove_prefix(1);
        if (value->ends_with('\n')) value->remove_suffix(1);
        arguments[std::string(*key)] = value_of(*tool, std::string(*key), *value);
    }
    if (!take(text, function_end)) return false;
    calls.push_back({tool->name, engine::json_text(arguments)});
    return true;
}

/// NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…, behind <tool_call>.
bool add_pairs(std::string_view& text, const std::vector<Tool>& tools, Calls& calls) {
    text = without_space(text);
    const std::size_t end_of_name = std::min(text.find_first_of("<\n"), text.size());
    const Tool* tool = find_tool(tools, without_space(text.substr(0, end_of_name)));
    if (tool == nullptr) return false;
    text.remove_prefix(end_of_name);
    Ordered arguments = Ordered::object();
    while (take(text, "<arg_key>")) {
        const auto key = take_until(text, "</arg_key>");
        if (!key || !take(text, "<arg_value>")) return false;
        const auto value = take_until(text, "</arg_value>");
        if (!value) {
            text = {};
            return false;
        }
        const std::string name(without_space(*key));
        arguments[name] = value_of(*tool, name, *value);
    }
    if (!take(text, call_end) && !without_space(text).empty()) return false;
    calls.push_back({tool->name, engine::json_text(arguments)});
    return true;
}

/// Length of the JSON object or array that `text` begins with; nullopt if it does not end.
std::optional<std::size_t> length_of_value(std::string_view text) {
    std::int64_t depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string && c == '\\') {
            ++i;
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == '{' || c == '[')) {
            ++depth;
        } else if (!in_string && (c == '}' || c == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return std::nullopt;
}

/// The JSON value that `text` begins with, which it loses.
std::optional<Ordered> take_value(std::string_view& text) {
    const auto length = length_of_value(text);
    if (!length) return std::nullopt;
    auto value = parsed(text.substr(0, *length));
    text.remove_prefix(*length);
    return value;
}

/// Where the first mark is; npos: nowhere.
std::size_t find_mark(std::string_view text) {
    std::size_t at = text.find('<');
    while (at != std::string_view::npos && !text.substr(at).starts_with(call_begin) &&
           !text.substr(at).starts_with(function_begin))
        at = text.find('<', at + 1);
    return at;
}

/// Calls between marks. What is no call is skipped.
Calls marked_calls(std::string_view text, const std::vector<Tool>& tools) {
    Calls calls;
    while (true) {
        const std::size_t mark = find_mark(text);
        if (mark == std::string_view::npos) return calls;
        text.remove_prefix(mark);
        if (take(text, function_begin)) {
            add_function(text, tools, calls);
            continue;
        }
        take(text, call_begin);
        text = without_space(text);
        if (text.starts_with(function_begin)) continue;
        if (text.starts_with('{')) {
            if (!length_of_value(text)) return calls;  // all that follows is within it
            if (const auto value = take_value(text)) add_object(*value, tools, false, calls);
        } else {
            add_pairs(text, tools, calls);
        }
    }
}

/// NAME{…}
bool add_named(std::string_view& text, const std::vector<Tool>& tools, Calls& calls) {
    const std::string_view name = without_space(text.substr(0, std::min(text.find('{'), text.size())));
    if (find_tool(tools, name) == nullptr || !take(text, name)) return false;
    text = without_space(text);
    const auto arguments = take_value(text);
    if (!arguments || !arguments->is_object()) return false;
    calls.push_back({std::string(name), engine::json_text(*arguments)});
    return true;
}

/// JSON without marks, from the first character to the last.
Calls bare_calls(std::string_view text, const std::vector<Tool>& tools) {
    Calls calls;
    for (text = without_space(text); !text.empty(); text = without_space(text)) {
        if (text.starts_with('{') || text.starts_with('[')) {
            const auto value = take_value(text);
            if (!value) return {};
            const auto add = [&](const Ordered& one) { return add_object(one, tools, true, calls); };
            if (value->is_array() ? !std::all_of(value->begin(), value->end(), add) : !add(*value)) return {};
        } else if (!add_named(text, tools, calls)) {
            return {};
        }
        take(text, ";");
    }
    return calls;
}

}  // namespace

ToolAnswer tool_calls_in(std::string_view answer, const std::vector<Tool>& tools, bool bare) {
    Calls calls = bare ? bare_calls(answer, tools) : Calls();
    if (!calls.empty()) return {"", std::move(calls)};
    calls = marked_calls(answer, tools);
    if (calls.empty()) return {std::string(answer), {}};
    return {std::string(without_space(answer.substr(0, find_mark(answer)))), std::move(calls)};
}

}  // namespace longhaul::runner
