// The records of task prompts: {"id"?, "prompt" or "messages"}, or the fields that the job's template names.
#include <algorithm>

#include "engine/error.hpp"
#include "runner/data/chat_messages.hpp"
#include "runner/data/json_records.hpp"
#include "runner/data/prompt_template.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using Strings = std::vector<std::string>;

/// The fields that a job of prompts reads for its template and its own choices, if they are not the prompt alone.
std::vector<PromptTemplate::Field> fields_of_template(const Settings& settings) {
    std::vector<PromptTemplate::Field> fields{{.name = "prompt", .place = settings.data.string()}};
    if (!settings.prompt_template.empty()) fields = PromptTemplate::fields_in(settings.prompt_template);
    std::vector<PromptTemplate::Field> others = fields_of_choices(settings);
    for (PromptTemplate::Field& field :
         PromptTemplate::fields_in_value(settings.introduction, settings.origins.of("introduction") + ": introduction"))
        others.push_back(std::move(field));
    if (!settings.few_shot_group.empty())
        others.push_back({settings.few_shot_group, settings.origins.of("few-shot-group") + ": few-shot-group"});
    for (PromptTemplate::Field& field : others) {
        const auto same = std::find_if(fields.begin(), fields.end(),
                                       [&](const PromptTemplate::Field& other) { return other.name == field.name; });
        if (same == fields.end()) fields.push_back(std::move(field));
    }
    const bool prompt_alone = fields.size() == 1 && fields.front().name == "prompt";
    return prompt_alone ? std::vector<PromptTemplate::Field>() : fields;
}

/// Adds what a job of multiple-choice questions reads of its data besides the prompt.
void add_choices(JsonFields& fields, const Settings& settings) {
    if (settings.mode != Mode::multiple_choice) return;
    for (const char* name : {"choices", "answer"}) {
        if (std::find(fields.names.begin(), fields.names.end(), name) == fields.names.end())
            fields.names.emplace_back(name);
    }
    if (!has_own_choices(settings)) fields.needed.push_back({"choices"});
}

/// Whether `column` says what the answers of questions are called.
bool names_answers(const Settings& settings) {
    return settings.mode == Mode::multiple_choice && column_of(settings, "answer") != "answer";
}

/// Whether a member called as `options` may be those of generation: it is none of the fields that are read. Many data
/// sets call the choices of a question so.
bool may_have_options(const Settings& settings, Strings fields) {
    fields.emplace_back("continuation");
    if (settings.mode == Mode::multiple_choice) fields.insert(fields.end(), {"choices", "answer"});
    const std::string options = column_of(settings, "options") + ".";
    return std::none_of(fields.begin(), fields.end(), [&](const std::string& field) {
        return (column_of(settings, field) + ".").starts_with(options);
    });
}

constexpr const char* text_or_number = "a text, number or boolean";

/// A text, or what is not one as JSON has it; "" if it is absent. `element`: says how to name the first of an array
std::string value_text(const Json& object, const std::string& key, const std::string& where,
                       const std::string& element) {
    const Json* value = engine::find_member(object, key, where);
    if (value == nullptr) return "";
    if (value->is_string()) return text_member(object, key, where);
    if (value->is_number() || value->is_boolean()) return engine::json_text(*value);
    throw InputError(where, key, text_or_number, engine::describe(*value), value->is_array() ? element : "");
}

/// Any fields of an object, as the job's template names them; "continuation"?, "options"?. Options of generation are an
/// object that the template does not name: many data sets call the answers to choose from so.
class TemplateRecords : public JsonRecords {
  public:
    TemplateRecords(const Settings& settings, const std::vector<PromptTemplate::Field>& fields)
        : JsonRecords(settings, names_of(fields), members_of(fields, settings)), settings_(settings) {
        has_options_ = may_have_options(settings, field_names());
        for (const PromptTemplate::Field& field : fields) {
            if (!field.optional) check_known(settings, field.name, field.place);
        }
        if (names_answers(settings)) check_known(settings, "answer", settings.origins.of("column") + ": column");
    }

  private:
    static Strings names_of(const std::vector<PromptTemplate::Field>& fields) {
        Strings names;
        for (const PromptTemplate::Field& field : fields) names.push_back(field.name);
        return names;
    }
    static JsonFields members_of(const std::vector<PromptTemplate::Field>& fields, const Settings& settings) {
        JsonFields members{.names = names_of(fields), .needed = {}, .type = text_or_number};
        for (const PromptTemplate::Field& field : fields) {
            if (!field.optional) members.needed.push_back({field.name});
        }
        for (const char* name : {"continuation", "options"}) {
            const auto& names = members.names;
            if (std::find(names.begin(), names.end(), name) == names.end()) members.names.emplace_back(name);
        }
        add_choices(members, settings);
        return members;
    }

    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        for (const std::string& name : field_names())
            record.fields.push_back(value_text(object, name, where, "{" + name + ".0} is its first element"));
        record.reference = reference_of(object, where);
        if (settings_.mode == Mode::multiple_choice) record.choices = read_choices(object, settings_, where);
        const Json* options = has_options_ ? engine::find_member(object, "options", where) : nullptr;
        const bool is_chosen = column_of(settings_, "options") != "options";
        if (options != nullptr && (options->is_object() || is_chosen))
            record.settings = with_options(*options, settings_, where);
        return record;
    }

    std::optional<std::string> reference_of(const Json& object, const std::string& where) const {
        if (engine::find_member(object, "continuation", where) == nullptr) return std::nullopt;
        const std::string fix =
            "column = continuation=" + column_of(settings_, "continuation") + ".0 names its first element";
        try {
            return value_text(object, "continuation", where, fix);
        } catch (const InputError&) {
            if (wants_continuation(settings_)) throw;  // otherwise no result depends on it
            return std::nullopt;
        }
    }

    void spell_numbers(Json& fields, std::int64_t index) const override {
        Strings names = field_names();
        names.emplace_back("continuation");
        Json spelled;
        for (const std::string& name : names) {
            const auto field = fields.find(name);
            if (field == fields.end() || !field->is_number()) continue;
            if (spelled.is_null()) spelled = rows().spelled(index);
            if (spelled.is_null()) return;  // a table
            *field = value_at(spelled, column_of(settings_, name));
        }
    }

    Settings settings_;
    bool has_options_ = true;  ///< whether a member "options" may be those of generation
};

/// {"id"?, "prompt" or "messages", "continuation"?, "options"?}
class PromptRecords : public JsonRecords {
  public:
    explicit PromptRecords(const Settings& settings)
        : JsonRecords(settings, {"prompt"}, fields_of(settings)),
          settings_(settings),
          has_options_(may_have_options(settings, {"prompt", "messages"})) {
        if (names_answers(settings)) check_known(settings, "answer", settings.origins.of("column") + ": column");
        const bool both = rows().has_member(column_of(settings, "prompt")) && has_messages();
        if (is_table(settings.data) && both && fields_of(settings).needed.front().size() > 1)
            throw InputError(settings.data.string(), "", "a column prompt or messages", "both",
                             "choose one: column = prompt=prompt, or messages=messages");
    }
    bool takes_messages() const override { return true; }
    bool has_messages() const override { return rows().has_member(column_of(settings_, "messages")); }
    std::vector<std::string> notices() const override {
        constexpr std::int64_t max_rows = 100;  // an option is in every line, or in none
        for (std::int64_t index = 0; index < std::min(size(), max_rows) && !is_table(settings_.data); ++index) {
            try {
                if (std::string notice = notice_of(index); !notice.empty()) return {std::move(notice)};
            } catch (const InputError&) {  // an item that fails
            }
        }
        return {};
    }

  private:
    /// A line for the user if the item has options beside its prompt, where vLLM's users write them.
    [[nodiscard]] std::string notice_of(std::int64_t index) const {
        const Json object = rows().object(index);
        Json ignored = Json::object();
        std::string names;
        for (const auto& [name, value] : object.items()) {
            const std::string option = option_called(name);
            const std::string as_column = "=" + name;
            const bool read = std::any_of(settings_.column.begin(), settings_.column.end(),
                                          [&](const std::string& entry) { return entry.ends_with(as_column); });
            if (option.empty() || read || value.is_null()) continue;
            ignored[option] = value;
            names += (names.empty() ? "" : ", ") + name;
        }
        if (names.empty()) return "";
        const bool one = ignored.size() == 1;
        return rows().label(index) + ": " + names + (one ? " is" : " are") +
               " ignored; \"options\": " + engine::printable(engine::json_text(ignored), 200) + " sets " +
               (one ? "it" : "them");
    }

    /// If `column` names only one of prompt and messages, the other is not read.
    static JsonFields fields_of(const Settings& settings) {
        Strings forms{"prompt", "messages"};
        const auto named = [&](const std::string& field) {
            return std::any_of(settings.column.begin(), settings.column.end(),
                               [&](const std::string& entry) { return entry.starts_with(field + "="); });
        };
        if (named("prompt") != named("messages")) forms = {named("prompt") ? "prompt" : "messages"};
        Strings names = forms;
        names.insert(names.end(), {"continuation", "options"});
        JsonFields fields{.names = names, .needed = {forms}};
        add_choices(fields, settings);
        return fields;
    }

    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        const Json* messages = engine::find_member(object, "messages", where);
        if (messages == nullptr) {
            record.fields = {text_member(object, "prompt", where)};
        } else if (engine::find_member(object, "prompt", where) != nullptr) {
            throw InputError(where, "messages", "one of \"prompt\" and \"messages\"", "both");
        } else {
            record.messages = messages_of(*messages, where, "messages");
            if (record.messages.empty()) throw InputError(where, "messages", "at least one message", "none");
        }
        record.reference = optional_text(object, "continuation", where);
        if (settings_.mode == Mode::multiple_choice) record.choices = read_choices(object, settings_, where);
        const Json* options = has_options_ ? engine::find_member(object, "options", where) : nullptr;
        if (options != nullptr) record.settings = with_options(*options, settings_, where);
        return record;
    }

    Settings settings_;
    bool has_options_;  ///< whether a member "options" may be those of generation
};

/// Throws InputError if the template of prompts that are lines of text names other fields than the line.
void check_template_of_lines(const Settings& settings) {
    for (const PromptTemplate::Field& field : fields_of_template(settings)) {
        if (field.name == "prompt") continue;
        throw InputError(field.place, "", "the field prompt", in_quotes(field.name),
                         "lines of text have only {prompt}; other fields need JSONL or Parquet");
    }
}

}  // namespace

std::optional<PromptTemplate> open_template(const Settings& settings, const std::vector<std::string>& fields) {
    if (!settings.prompt_template.empty()) return PromptTemplate::read(settings.prompt_template, fields);
    if (settings.task == "prompts" || settings.task == "openai-batch") return std::nullopt;
    const std::string name = settings.task + (settings.chat ? "-chat" : "");
    return PromptTemplate::parse(built_in_template(name), "jobs/templates/" + name + ".txt", fields);
}

std::unique_ptr<RecordSource> open_prompts(const Settings& settings) {
    if (const auto fields = fields_of_template(settings); !fields.empty())
        return std::make_unique<TemplateRecords>(settings, fields);
    return std::make_unique<PromptRecords>(settings);
}

std::unique_ptr<RecordSource> open_prompts_of_lines(const Settings& settings) {
    check_template_of_lines(settings);
    return open_prompt_lines(settings);
}

}  // namespace longhaul::runner
