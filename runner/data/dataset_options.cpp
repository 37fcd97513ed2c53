// Generation keys of one item, as JSON: the "options" of task prompts, and the request fields of task openai-batch.
#include <algorithm>

#include "engine/error.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;

enum class Type { number, numbers, by_number, boolean, text };

/// The keys that an item may set, in the order of --help.
const std::vector<std::pair<std::string, Type>>& item_keys() {
    static const std::vector<std::pair<std::string, Type>> keys{{"seed", Type::number},
                                                                {"max-tokens", Type::number},
                                                                {"min-tokens", Type::number},
                                                                {"ignore-eos", Type::boolean},
                                                                {"stop", Type::text},
                                                                {"stop-token-ids", Type::numbers},
                                                                {"json-schema", Type::text},
                                                                {"regex", Type::text},
                                                                {"choice", Type::text},
                                                                {"grammar", Type::text},
                                                                {"reasoning-end", Type::text},
                                                                {"max-reasoning-tokens", Type::number},
                                                                {"stop-loops", Type::number},
                                                                {"logprobs", Type::number},
                                                                {"logit-bias", Type::by_number},
                                                                {"temperature", Type::number},
                                                                {"top-k", Type::number},
                                                                {"top-p", Type::number},
                                                                {"min-p", Type::number},
                                                                {"eta", Type::number},
                                                                {"repetition-penalty", Type::number},
                                                                {"penalty-window", Type::number},
                                                                {"presence-penalty", Type::number},
                                                                {"frequency-penalty", Type::number},
                                                                {"dry-multiplier", Type::number},
                                                                {"dry-base", Type::number},
                                                                {"dry-allowed-length", Type::number},
                                                                {"dry-window", Type::number},
                                                                {"dry-breakers", Type::text}};
    return keys;
}

Type type_of_key(const std::string& key, const std::string& where) {
    std::vector<std::string> names;
    for (const auto& [name, type] : item_keys()) {
        if (name == key) return type;
        names.push_back(name);
    }
    const std::string shown = "'" + engine::printable(key) + "'";
    if (find_key(key) != nullptr) {
        throw InputError(where, "options." + key, "an option of generation (" + list_words(names) + ")",
                         "a key of the whole job");
    }
    const std::string near = nearest_word(key, names);
    throw InputError(where, "options", "options of generation (" + list_words(names) + ")", shown,
                     near.empty() ? "" : "did you mean '" + near + "'?");
}

/// A JSON value as a job file would write it.
std::string value_text(const Json& value, Type type, const std::string& where, const std::string& field) {
    if (type == Type::boolean && value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (type == Type::text && value.is_string()) return quote_text(value.get<std::string>());
    type = type == Type::text || type == Type::boolean ? type : Type::number;
    if (type == Type::number && value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
    if (type == Type::number && value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
    if (type == Type::number && value.is_number()) return format_number(value.get<double>());
    const char* const expected = type == Type::boolean ? "true or false" : type == Type::text ? "a string" : "a number";
    throw InputError(where, field, expected, engine::describe(value));
}

/// `text`: the value as a job file would write it.
void set_text(Settings& settings, const std::string& key, const std::string& text, const Json& value,
              const std::string& where, const std::string& field) {
    try {
        find_key(key)->set(settings, text, {});
    } catch (const BadValue& bad) {
        throw InputError(where, field, bad.expected, engine::describe(value), bad.fix);
    }
}

void set_value(Settings& settings, const std::string& key, Type type, const Json& value, const std::string& where,
               const std::string& field) {
    set_text(settings, key, value_text(value, type, where, field), value, where, field);
}

bool sets_format(const std::string& key) {
    return key == "json-schema" || key == "regex" || key == "choice" || key == "grammar";
}

/// {"1234": -100}
void set_by_number(Settings& settings, const std::string& key, const Json& values, const std::string& where,
                   const std::string& field) {
    if (!values.is_object())
        throw InputError(where, field, "an object of numbers by token id", engine::describe(values));
    for (const auto& [id, value] : values.items()) {
        const std::string of_id = field + "." + engine::printable(id);
        set_text(settings, key, id + "=" + value_text(value, Type::number, where, of_id), value, where, of_id);
    }
}

}  // namespace

void set_generation_key(Settings& settings, const std::string& key, const Json& value, const std::string& where,
                        const std::string& field) {
    const Type type = type_of_key(key, where);
    if (key == "max-tokens") settings.own_max_tokens = true;
    // The item's lists replace the job's.
    if (key == "stop") settings.stop.clear();
    if (key == "dry-breakers") settings.dry_breakers.emplace();
    if (key == "stop-token-ids") settings.stop_token_ids.clear();
    if (key == "logit-bias") settings.logit_bias.clear();
    if (sets_format(key)) {
        if (settings.own_format) throw InputError(where, field, "one format", "a second one");
        settings.format = {};
        settings.own_format = true;
        if (key == "choice" && value == Json::array()) throw InputError(where, field, "at least one text", "none");
    }
    const bool is_list = key == "choice" || !sets_format(key);
    if ((type == Type::text || type == Type::numbers) && value.is_array() && is_list) {
        for (const Json& one : value) set_value(settings, key, type, one, where, field);
    } else if (type == Type::by_number) {
        set_by_number(settings, key, value, where, field);
    } else {
        set_value(settings, key, type, value, where, field);
    }
}

void check_reasoning(const Settings& settings, const std::string& where, const std::string& field) {
    if (settings.max_reasoning_tokens > 0 && settings.reasoning_end.empty())
        throw InputError(where, field, "0 without reasoning-end", std::to_string(settings.max_reasoning_tokens),
                         "the job's reasoning-end = </think>, or what the model writes");
}

std::string option_called(std::string name) {
    if (name == "max_completion_tokens" || name == "max_new_tokens") return "max-tokens";
    std::replace(name.begin(), name.end(), '_', '-');
    const auto found =
        std::find_if(item_keys().begin(), item_keys().end(), [&](const auto& entry) { return entry.first == name; });
    const bool is_column = name == "choice" || name == "regex" || name == "grammar";  // of data, as likely
    return found == item_keys().end() || is_column ? "" : name;
}

std::shared_ptr<const Settings> with_options(const Json& options, const Settings& job, const std::string& where) {
    if (!options.is_object()) throw InputError(where, "options", "an object", engine::describe(options));
    auto settings = std::make_shared<Settings>(job);
    for (const auto& [key, value] : options.items()) set_generation_key(*settings, key, value, where, "options." + key);
    const bool own_limit = options.contains("max-reasoning-tokens");
    if (settings->reasoning_end.empty() && !own_limit) settings->max_reasoning_tokens = 0;  // the job's
    check_reasoning(*settings, where, "options.max-reasoning-tokens");
    return settings;
}

}  // namespace longhaul::runner
