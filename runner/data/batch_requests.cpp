// The fields are those of OpenAI's API reference (chat completions, completions, batch) and of vLLM's extensions to it.
#include "runner/data/batch_requests.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/chat_messages.hpp"
#include "runner/data/request_format.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using Strings = std::vector<std::string>;

const std::string chat_url = "/v1/chat/completions", completions_url = "/v1/completions";
constexpr const char* field_list = "jobs/README.md lists the fields of a request";

/// Request fields that set a generation key of the item.
const std::map<std::string, std::string>& key_fields() {
    static const std::map<std::string, std::string> fields{{"max_tokens", "max-tokens"},
                                                           {"max_completion_tokens", "max-tokens"},
                                                           {"temperature", "temperature"},
                                                           {"top_p", "top-p"},
                                                           {"seed", "seed"},
                                                           {"stop", "stop"},
                                                           {"top_k", "top-k"},
                                                           {"min_p", "min-p"},
                                                           {"repetition_penalty", "repetition-penalty"},
                                                           {"presence_penalty", "presence-penalty"},
                                                           {"frequency_penalty", "frequency-penalty"},
                                                           {"ignore_eos", "ignore-eos"},
                                                           {"min_tokens", "min-tokens"},
                                                           {"stop_token_ids", "stop-token-ids"},
                                                           {"logit_bias", "logit-bias"},
                                                           {"thinking_token_budget", "max-reasoning-tokens"}};
    return fields;
}

/// Fields that do what this program does only with one value, their default.
const std::map<std::string, Json>& neutral_values() {
    static const std::map<std::string, Json> values{{"stream", false},
                                                    {"best_of", 1},
                                                    {"echo", false},
                                                    {"suffix", ""},
                                                    {"tools", Json::array()},  // of completions
                                                    {"tool_choice", "none"},
                                                    {"parallel_tool_calls", true},
                                                    {"functions", Json::array()},
                                                    {"function_call", "none"},
                                                    {"modalities", {"text"}},
                                                    {"bad_words", Json::array()},
                                                    {"include_stop_str_in_output", false},
                                                    {"skip_special_tokens", true},
                                                    {"spaces_between_special_tokens", true},
                                                    {"use_beam_search", false},
                                                    {"length_penalty", 1},
                                                    {"add_generation_prompt", true},
                                                    {"continue_final_message", false},
                                                    {"chat_template_kwargs", Json::object()},
                                                    {"include_reasoning", true},
                                                    {"documents", Json::array()},
                                                    {"return_token_ids", false},
                                                    {"return_tokens_as_token_ids", false}};
    return values;
}

/// Fields that never change an answer.
const std::set<std::string>& ignored_fields() {
    static const std::set<std::string> fields{"user",         "metadata",          "store",
                                              "service_tier", "safety_identifier", "prompt_cache_key",
                                              "priority",     "request_id",        "cache_salt"};
    return fields;
}

/// Fields that read_body looks at by name.
const std::set<std::string>& own_fields() {
    static const std::set<std::string> fields{"model", "messages", "prompt", "n", "logprobs", "top_logprobs"};
    return fields;
}

[[noreturn]] void refuse_field(const std::string& name, const Json& value, const std::string& where) {
    Strings names(own_fields().begin(), own_fields().end());
    for (const auto& entry : key_fields()) names.push_back(entry.first);
    for (const auto& entry : neutral_values()) names.push_back(entry.first);
    names.insert(names.end(), format_fields().begin(), format_fields().end());
    const std::string near = nearest_word(name, names);
    throw InputError(where, "body." + engine::printable(name), "no such field", engine::describe(value),
                     near.empty() ? field_list : "did you mean '" + near + "'?");
}

/// Variables of the chat template, which replace the job's of the same name.
void add_template_variables(Settings& settings, const Json& variables, const std::string& where) {
    if (!variables.is_object())
        throw InputError(where, "body.chat_template_kwargs", "an object", engine::describe(variables));
    for (const auto& [name, value] : variables.items()) {
        std::string text = name + "=" + value.dump();
        std::string parsed;
        try {
            parsed = engine::parse_template_variable(text).first;
        } catch (const InputError&) {  // refused below
        }
        if (parsed.empty() || parsed != name) {
            throw InputError(where, "body.chat_template_kwargs",
                             "names of variables other than messages and add_generation_prompt",
                             "'" + engine::printable(name) + "'");
        }
        settings.template_variable.push_back(std::move(text));
    }
}

void check_neutral(const std::string& name, const Json& value, bool chat, const std::string& where) {
    Json neutral;
    if (name == "add_special_tokens") {
        neutral = !chat;  // the chat template has its own
    } else if (const auto known = neutral_values().find(name); known != neutral_values().end()) {
        neutral = known->second;
    } else {
        refuse_field(name, value, where);
    }
    if (neutral == value) return;
    throw InputError(where, "body." + name, neutral.dump() + " or null", engine::describe(value),
                     "other values are not supported");
}

void check_members(const Json& message, const std::string& place) {
    static const std::set<std::string> known{"role",       "content",      "reasoning_content",
                                             "tool_calls", "tool_call_id", "name"};
    if (!message.is_object()) return;
    for (const auto& [name, value] : message.items()) {
        const bool is_empty = value.is_null() || (value.is_array() && value.empty());  // "annotations": []
        if (!known.contains(name) && !is_empty)
            throw InputError(place, engine::printable(name),
                             "only role, content, reasoning_content, tool_calls, tool_call_id and name",
                             engine::describe(value));
    }
}

/// Text parts of a message are joined by line ends, as vLLM does for chat templates that take strings.
std::vector<engine::ChatMessage> chat_messages(const Json& body, const MemberText& text_of, const std::string& where) {
    const Json* json = engine::find_member(body, "messages", where, "body");
    if (json == nullptr || !json->is_array() || json->empty())
        throw InputError(where, "body.messages", "an array of messages",
                         json == nullptr ? "nothing" : engine::describe(*json));
    for (std::size_t i = 0; i < json->size(); ++i)
        check_members((*json)[i], where + ": body.messages[" + std::to_string(i) + "]");
    Json list = *json;
    spell_arguments(list, [&] {
        const std::array<std::string, 2> path{"body", "messages"};
        return text_of(path);
    });
    std::vector<engine::ChatMessage> messages = messages_of(list, where, "body.messages");
    for (engine::ChatMessage& message : messages) {
        for (const std::string& part : message.parts)
            message.content += (&part == message.parts.data() ? "" : "\n") + part;
        message.parts.clear();
    }
    return messages;
}

/// Chat: "logprobs": true with "top_logprobs". Completions: "logprobs" is the number itself.
std::optional<std::int64_t> logprobs_of(const Json& body, bool chat, const std::string& where) {
    constexpr std::int64_t most = 20;  // OpenAI's limit for chats
    const auto count = [&](const char* name) { return engine::get_int_or(body, name, -1, 0, most, where, "body"); };
    if (!chat) {
        if (const Json* top = engine::find_member(body, "top_logprobs", where, "body"))
            throw InputError(where, "body.top_logprobs", "none with " + completions_url, engine::describe(*top),
                             "its logprobs is the number");
        const std::int64_t wanted = count("logprobs");
        return wanted < 0 ? std::nullopt : std::optional(wanted);
    }
    const bool wanted = engine::get_bool_or(body, "logprobs", false, where, "body");
    const std::int64_t top = count("top_logprobs");
    if (!wanted && top > 0) throw InputError(where, "body.top_logprobs", "\"logprobs\": true beside it", "it alone");
    return wanted ? std::optional(std::max<std::int64_t>(top, 0)) : std::nullopt;
}

void check_choices(const Json& body, const Settings& job, const std::string& where) {
    const Json* number = engine::find_member(body, "n", where, "body");
    if (number == nullptr || *number == job.samples) return;
    throw InputError(where, "body.n", std::to_string(job.samples) + ", the job's samples", engine::describe(*number),
                     "samples = N in the job gives N choices for every request");
}

void check_lengths(const Json& body, const std::string& where) {
    const Json* older = engine::find_member(body, "max_tokens", where, "body");
    const Json* newer = engine::find_member(body, "max_completion_tokens", where, "body");
    if (older == nullptr || newer == nullptr || *older == *newer) return;
    throw InputError(where, "body.max_tokens", "max_completion_tokens alone, or the same number",
                     engine::describe(*older));
}

/// A prompt given as token ids.
std::vector<std::int32_t> prompt_tokens(const Json& ids, const std::string& where) {
    std::vector<std::int32_t> tokens;
    for (const Json& id : ids) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
            throw InputError(where, "body.prompt[" + std::to_string(tokens.size()) + "]", "a token id",
                             engine::describe(id), "a request has one prompt: a string, or its token ids");
        tokens.push_back(id.get<std::int32_t>());
    }
    if (tokens.empty()) throw InputError(where, "body.prompt", "at least one token id", "none");
    return tokens;
}

/// The settings of an item: the job's, with the fields of the body but for those of tools.
std::shared_ptr<Settings> settings_of(const Json& body, bool chat, const Settings& job,
                                      const std::optional<std::int64_t>& top_logprobs, const MemberText& text_of,
                                      const std::string& where) {
    auto settings = std::make_shared<Settings>(job);
    for (const auto& [name, value] : body.items()) {
        if (value.is_null() || ignored_fields().contains(name) || own_fields().contains(name)) continue;
        if (chat && is_tool_field(name)) continue;
        const auto key = key_fields().find(name);
        const bool is_limit = name == "top_k" || name == "thinking_token_budget";
        const bool turned_off = is_limit && value == -1;  // as in vLLM
        if (chat && name == "chat_template_kwargs") {
            add_template_variables(*settings, value, where);
        } else if (chat && name == "reasoning_effort") {
            add_template_variables(*settings, {{name, value}}, where);
        } else if (name == "thinking_token_budget" && value == 0) {
            throw InputError(where, "body." + name, "at least 1, or -1 for no limit", "0");
        } else if (is_format_field(name)) {
            set_format(*settings, name, value, text_of, where);
        } else if (key == key_fields().end()) {
            check_neutral(name, value, chat, where);
        } else {
            set_generation_key(*settings, key->second, turned_off ? Json(0) : value, where, "body." + name);
        }
    }
    check_reasoning(*settings, where, "body.thinking_token_budget");
    // The engine reports the chosen token's log-probability only beside at least one other.
    if (top_logprobs) settings->logprobs = std::max<std::int64_t>(*top_logprobs, 1);
    return settings;
}

void read_body(BatchRequest& request, const Json& body, const MemberText& text_of, const Settings& job,
               const std::string& where) {
    request.model = engine::get_string_or(body, "model", "", where, "body");
    check_choices(body, job, where);
    check_lengths(body, where);
    request.top_logprobs = logprobs_of(body, request.chat, where);
    const auto settings = settings_of(body, request.chat, job, request.top_logprobs, text_of, where);
    if (request.chat) request.tools = read_tools(*settings, body, text_of, where);
    request.settings = settings;
    const char* const other = request.chat ? "prompt" : "messages";
    if (const Json* value = engine::find_member(body, other, where, "body")) {
        throw InputError(where, std::string("body.") + other,
                         "none with " + (request.chat ? chat_url : completions_url), engine::describe(*value));
    }
    if (request.chat) {
        request.messages = chat_messages(body, text_of, where);
    } else if (const Json* given = engine::find_member(body, "prompt", where, "body");
               given != nullptr && given->is_array()) {
        request.prompt_tokens = prompt_tokens(*given, where);
    } else {
        request.prompt = text_member(body, "prompt", where + ": body");
    }
}

class BatchRecords : public RecordSource {
  public:
    explicit BatchRecords(const Settings& settings) : requests_(settings) {}

    const Strings& field_names() const override { return names_; }
    std::int64_t size() const override { return lines().size(); }
    std::int64_t num_bytes(std::int64_t index) const override { return lines().num_bytes(index); }
    std::string id(std::int64_t index) const override { return lines().id(index); }
    std::string label(std::int64_t index) const override { return lines().label(index); }
    void add_to(engine::Hash& hash, bool) const override { lines().add_to(hash); }
    bool takes_messages() const override { return true; }
    bool has_messages() const override { return lines().has_member("messages"); }

    Record read(std::int64_t index) const override {
        BatchRequest request = requests_.read(index);
        Record record;
        record.settings = std::move(request.settings);
        record.messages = std::move(request.messages);
        record.tokens = std::move(request.prompt_tokens);
        if (!request.chat) record.fields = {std::move(request.prompt)};
        return record;
    }

    std::vector<std::string> notices() const override {
        std::set<std::string> models;
        for (std::int64_t index = 0; index < size(); ++index) {
            try {
                if (std::string model = requests_.read(index).model; !model.empty()) models.insert(std::move(model));
            } catch (const InputError&) {
            }
        }
        if (models.size() < 2) return {};
        return {"the requests name " + std::to_string(models.size()) + " models (" +
                engine::printable(*models.begin()) + ", " + engine::printable(*std::next(models.begin())) +
                (models.size() > 2 ? ", ..." : "") + "): the job's model answers all of them"};
    }

  private:
    [[nodiscard]] const LineSource& lines() const { return requests_.lines(); }

    Strings names_{"prompt"};
    BatchRequests requests_;
};

}  // namespace

BatchRequests::BatchRequests(const Settings& settings)
    : lines_(settings.data, LineFormat::json, settings.limit, settings.data.string(), "custom_id"),
      settings_(settings) {}

BatchRequest BatchRequests::read(std::int64_t index) const {
    const Json line = lines_.object(index);
    const std::string where = lines_.label(index);
    BatchRequest request;
    request.custom_id = text_member(line, "custom_id", where);
    if (const std::string method = text_member(line, "method", where); method != "POST")
        throw InputError(where, "method", "POST", "'" + engine::printable(method) + "'");
    const std::string url = text_member(line, "url", where);
    if (url != chat_url && url != completions_url) {
        throw InputError(where, "url", list_words({chat_url, completions_url}), "'" + engine::printable(url) + "'");
    }
    request.chat = url == chat_url;
    const Json* body = engine::find_member(line, "body", where);
    if (body == nullptr || !body->is_object())
        throw InputError(where, "body", "an object", body == nullptr ? "nothing" : engine::describe(*body));
    read_body(
        request, *body, [&](std::span<const std::string> path) { return lines_.text_of(index, path); }, settings_,
        where);
    return request;
}

std::unique_ptr<RecordSource> open_batch(const Settings& settings) {
    return std::make_unique<BatchRecords>(settings);
}

}  // namespace longhaul::runner
