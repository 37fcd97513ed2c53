#include "runner/data/chat_messages.hpp"

#include <optional>
#include <utility>

#include "engine/error.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {

using engine::Json;

namespace {

/// The arguments of a call, the text of a JSON object; "{}" if there are none.
std::string arguments_of(const Json& function, const std::string& place) {
    std::string arguments = optional_text(function, "arguments", place).value_or("");
    if (arguments.empty()) return "{}";
    const std::string field = place + ": arguments";
    if (!engine::parse_json(arguments, field).is_object())
        throw InputError(place, "arguments", "the text of a JSON object", "'" + engine::printable(arguments) + "'");
    return arguments;
}

/// One of tool_calls, {"id"?, "type", "function": {"name", "arguments"}}, as JSON with the arguments themselves.
std::string call_of(const Json& call, const std::string& place) {
    const Json* function = call.is_object() ? engine::find_member(call, "function", place) : nullptr;
    if (function == nullptr || !function->is_object())
        throw InputError(place, "", R"({"type": "function", "function": {"name", "arguments"}})",
                         engine::describe(call));
    const std::string within = place + ": function", name = text_member(*function, "name", within);
    std::string json = "{";
    if (const auto id = optional_text(call, "id", place)) json += R"("id":)" + engine::json_text(Json(*id)) + ",";
    json += R"("type":"function","function":{"name":)" + engine::json_text(Json(name));
    json += R"(,"arguments":)" + arguments_of(*function, within) + "}}";
    return json;
}

/// ChatMessage::more. As in vLLM, a name that is no text does not count.
std::vector<std::pair<std::string, std::string>> further_fields(const Json& json, const std::string& place) {
    std::vector<std::pair<std::string, std::string>> fields;
    if (const Json* calls = engine::find_member(json, "tool_calls", place)) {
        if (!calls->is_array()) throw InputError(place, "tool_calls", "an array of calls", engine::describe(*calls));
        std::string list;
        std::size_t number = 0;
        for (const Json& call : *calls) {
            list += (number > 0 ? "," : "") + call_of(call, place + ": tool_calls[" + std::to_string(number) + "]");
            ++number;
        }
        if (number > 0) fields.emplace_back("tool_calls", "[" + list + "]");
    }
    if (const auto id = optional_text(json, "tool_call_id", place))
        fields.emplace_back("tool_call_id", engine::json_text(Json(*id)));
    const Json* name = engine::find_member(json, "name", place);
    if (name != nullptr && name->is_string()) fields.emplace_back("name", engine::json_text(*name));
    return fields;
}

/// Calls visit(message, call, arguments) for arguments that are objects; the first two are numbers.
template <typename Visit>
void each_argument_object(Json& list, const Visit& visit) {
    for (std::size_t m = 0; list.is_array() && m < list.size(); ++m) {
        if (!list[m].is_object() || !list[m].contains("tool_calls") || !list[m]["tool_calls"].is_array()) continue;
        Json& calls = list[m]["tool_calls"];
        for (std::size_t c = 0; c < calls.size(); ++c) {
            if (!calls[c].is_object() || !calls[c].contains("function") || !calls[c]["function"].is_object()) continue;
            const auto arguments = calls[c]["function"].find("arguments");
            if (arguments != calls[c]["function"].end() && arguments->is_object()) visit(m, c, *arguments);
        }
    }
}

engine::ChatMessage message_of(const Json& json, const std::string& place) {
    engine::ChatMessage message{.role = text_member(json, "role", place),
                                .content = {},
                                .reasoning_content = optional_text(json, "reasoning_content", place),
                                .more = further_fields(json, place)};
    const auto content = json.find("content");
    const bool has_calls = !message.more.empty() && message.more.front().first == "tool_calls";
    const bool may_be_null = message.reasoning_content || has_calls;
    if (engine::find_member(json, "content", place) == nullptr && may_be_null) return message;
    if (content == json.end() || !content->is_array()) {
        message.content = text_member(json, "content", place);
        return message;
    }
    for (const Json& part : *content) {
        const std::string where = place + ": content[" + std::to_string(message.parts.size()) + "]";
        if (!part.is_object())
            throw InputError(where, "", "an object with \"type\" and \"text\"", engine::describe(part));
        if (text_member(part, "type", where) != "text")
            throw InputError(where, "type", "\"text\"", engine::describe(part.at("type")));
        message.parts.push_back(text_member(part, "text", where));
    }
    if (message.parts.empty()) throw InputError(place, "content", "at least one part", "none");
    return message;
}

}  // namespace

std::vector<engine::ChatMessage> messages_of(const Json& list, const std::string& where, const std::string& field) {
    if (!list.is_array()) throw InputError(where, field, "an array of messages", engine::describe(list));
    const std::string all = where + ": " + field;
    std::vector<engine::ChatMessage> messages;
    for (const Json& message : list) {
        const std::string place = all + "[" + std::to_string(messages.size()) + "]";
        if (!message.is_object())
            throw InputError(place, "", "an object with \"role\" and \"content\"", engine::describe(message));
        messages.push_back(message_of(message, place));
    }
    return messages;
}

void spell_arguments(Json& list, const std::function<std::string()>& text_of_list) {
    bool has_any = false;
    each_argument_object(list, [&](std::size_t, std::size_t, const Json&) { has_any = true; });
    if (!has_any) return;
    const std::string text = text_of_list();
    const bool is_its_text = engine::try_parse_json(text) == list;
    nlohmann::ordered_json ordered;
    if (is_its_text) ordered = engine::parse_ordered_json(text, "messages");
    each_argument_object(list, [&](std::size_t m, std::size_t c, Json& arguments) {
        arguments = is_its_text ? engine::json_text(ordered[m]["tool_calls"][c]["function"]["arguments"])
                                : engine::json_text(arguments);
    });
}

}  // namespace longhaul::runner
