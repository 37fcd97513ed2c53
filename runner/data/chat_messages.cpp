#include "runner/data/chat_messages.hpp"

#include "engine/error.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {

using engine::Json;

static engine::ChatMessage message_of(const Json& json, const std::string& place) {
    engine::ChatMessage message{.role = text_member(json, "role", place),
                                .content = {},
                                .reasoning_content = optional_text(json, "reasoning_content", place)};
    const auto content = json.find("content");
    if (engine::find_member(json, "content", place) == nullptr && message.reasoning_content) return message;
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

}  // namespace longhaul::runner
