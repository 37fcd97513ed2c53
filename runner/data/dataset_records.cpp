#include "runner/data/dataset_records.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/batch_requests.hpp"
#include "runner/data/chat_messages.hpp"
#include "runner/data/dataset_lines.hpp"
#include "runner/data/prompt_template.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using engine::Json;
using Strings = std::vector<std::string>;

/// A text that is not empty.
std::string needed_text(const Json& object, const std::string& key, const std::string& where) {
    std::string text = text_member(object, key, where);
    if (text.empty()) throw InputError(where, key, "a text", "an empty string");
    return text;
}

/// The members that a task reads from its objects, besides the id.
struct JsonFields {
    Strings names;
    std::vector<Strings> needed;  ///< at least one of each group
    /// What fields are called in published data; read where all of them are absent, unless `column` names any.
    std::vector<std::pair<std::string, std::string>> other_names = {};
    std::string type = "";  ///< of every field, for messages; "": as type_of says
};

/// The name of `field` in the data: as `column` says, else its own.
std::string column_of(const Settings& settings, const std::string& field) {
    for (const std::string& entry : settings.column) {
        if (entry.starts_with(field + "=")) return entry.substr(field.size() + 1);
    }
    return field;
}

void check_column_keys(const Settings& settings, const JsonFields& fields) {
    for (const std::string& entry : settings.column) {
        const std::string field = entry.substr(0, entry.find('='));
        if (field == "id" || std::find(fields.names.begin(), fields.names.end(), field) != fields.names.end()) continue;
        throw UsageError(InputError::format(
            settings.origins.of("column"), "column",
            "a field of task = " + settings.task + " (" + list_words(fields.names) + ") before the =", shown(field),
            ""));
    }
}

/// The other name of `field`; "" if there is none, or if `column` names one of the fields that have another.
std::string other_name_of(const Settings& settings, const JsonFields& fields, const std::string& field) {
    std::string found;
    for (const auto& [name, other] : fields.other_names) {
        if (column_of(settings, name) != name) return "";
        if (name == field) found = other;
    }
    return found;
}

std::unique_ptr<RowSource> open_rows(const Settings& settings, const JsonFields& fields) {
    check_column_keys(settings, fields);
    const std::string id = column_of(settings, "id");
    if (!is_table(settings.data))
        return std::make_unique<LineSource>(settings.data, LineFormat::json, settings.limit, settings.data.string(),
                                            id);
    TableColumns columns{.names = {id}, .needed = {}, .id = id};
    const auto add_names = [&](Strings& to, const std::string& field) {
        to.push_back(column_of(settings, field));
        if (std::string other = other_name_of(settings, fields, field); !other.empty()) to.push_back(std::move(other));
    };
    for (const std::string& name : fields.names) add_names(columns.names, name);
    for (const Strings& group : fields.needed) {
        TableColumns::Group needed{.any_of = {}, .fix = "column = " + group.front() + "=NAME names another"};
        for (const std::string& name : group) add_names(needed.any_of, name);
        columns.needed.push_back(std::move(needed));
    }
    return open_table(table_files(settings.data, settings.split), columns, settings.limit);
}

/// The value at "a.b" within nested objects, or at "a.0" within an array; null if there is none. A member "a.b" itself
/// comes first.
Json value_at(const Json& json, const std::string& column) {
    if (json.is_array()) {
        std::size_t index = 0;
        const auto [end, error] = std::from_chars(column.data(), column.data() + column.size(), index);
        if (error != std::errc() || index >= json.size()) return {};
        const std::string_view rest(end, column.data() + column.size() - end);
        if (rest.empty()) return json[index];
        return rest.starts_with('.') ? value_at(json[index], std::string(rest.substr(1))) : Json();
    }
    if (!json.is_object()) return {};
    if (const auto member = json.find(column); member != json.end()) return *member;
    const std::size_t dot = column.find('.');
    const auto outer = dot == std::string::npos ? json.end() : json.find(column.substr(0, dot));
    return outer != json.end() ? value_at(*outer, column.substr(dot + 1)) : Json();
}

/// "'id', 'text'": the members of an object, as far as a message should list them.
std::string member_names(const Json& object) {
    constexpr std::size_t max_names = 8;
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, value] : object.items()) {
        if (count++ == max_names) return names + ", …";
        names += (names.empty() ? "" : ", ") + in_quotes(name);
    }
    return names.empty() ? "no field" : names;
}

const char* type_of(const std::string& field) {
    return field == "length" ? "an integer" : field == "messages" ? "an array of messages" : "a string";
}

/// Refuses a line without the field that is called `column` there. `type`: what was expected
[[noreturn]] void refuse_absent(const Json& object, const std::string& field, const std::string& type,
                                const std::string& column, const std::string& where) {
    if (object.contains(column)) throw InputError(where, field, type, "null");
    Strings members;
    for (const auto& [name, value] : object.items()) members.push_back(name);
    std::string near = nearest_word(column, members);
    if (column.starts_with(near + ".")) near.clear();  // the line has it, but not what is named within it
    const bool is_path = column == field && field.find('.') != std::string::npos;  // its name is not in question
    throw InputError(where, field, type + (column == field ? "" : " in " + in_quotes(column)),
                     "nothing, the line has " + member_names(object),
                     is_path        ? ""
                     : near.empty() ? "column = " + field + "=NAME names another"
                                    : "did you mean column = " + field + "=" + engine::printable(near) + "?");
}

class JsonRecords : public RecordSource {
  public:
    JsonRecords(const Settings& settings, Strings names, const JsonFields& fields)
        : rows_(open_rows(settings, fields)),
          names_(std::move(names)),
          needed_(fields.needed),
          type_(fields.type),
          is_table_(is_table(settings.data)) {
        for (const std::string& name : fields.names) {
            const std::string column = column_of(settings, name);
            if (column != name || column.find('.') != std::string::npos) renamed_.emplace_back(name, column);
            if (std::string other = other_name_of(settings, fields, name); !other.empty())
                others_.emplace_back(name, std::move(other));
        }
    }

    const Strings& field_names() const override { return names_; }
    std::int64_t size() const override { return rows_->size(); }
    std::int64_t num_bytes(std::int64_t index) const override { return rows_->num_bytes(index); }
    std::string id(std::int64_t index) const override { return rows_->id(index); }
    std::string label(std::int64_t index) const override { return rows_->label(index); }
    void add_to(engine::Hash& hash, bool) const override { rows_->add_to(hash); }
    Record read(std::int64_t index) const override {
        const Json object = rows_->object(index);
        Json fields = object;
        for (const auto& [name, column] : renamed_) fields[name] = value_at(object, column);
        const bool has_own = std::any_of(others_.begin(), others_.end(), [&](const auto& other) {
            const auto found = fields.find(other.first);
            return found != fields.end() && !found->is_null();
        });
        for (const auto& [name, column] : others_) {
            if (!has_own) fields[name] = value_at(object, column);
        }
        check_needed(fields, object, rows_->label(index));
        spell_numbers(fields, index);
        spell_schema(fields, index);
        if (const auto messages = fields.find("messages"); messages != fields.end())
            spell_arguments(*messages, [&] { return text_of_column(source_of("messages"), index); });
        return record_of(fields, rows_->label(index));
    }

  protected:
    [[nodiscard]] const RowSource& rows() const { return *rows_; }

  private:
    [[nodiscard]] virtual Record record_of(const Json& object, const std::string& where) const = 0;
    /// Makes texts of the numbers in row `index` that become part of prompts.
    virtual void spell_numbers(Json& /*fields*/, std::int64_t /*index*/) const {}

    /// The column that a field is read from.
    [[nodiscard]] std::string source_of(const std::string& field) const {
        const auto renamed =
            std::find_if(renamed_.begin(), renamed_.end(), [&](const auto& entry) { return entry.first == field; });
        return renamed != renamed_.end() ? renamed->second : field;
    }
    /// The text of a column, which may be a path; "" if it has none.
    [[nodiscard]] std::string text_of_column(const std::string& column, std::int64_t index) const {
        const std::size_t dot = column.rfind('.');
        std::string text = rows_->text_of(index, std::span(&column, 1));
        if (!text.empty() || dot == std::string::npos) return text;
        return rows_->column_text(index, column.substr(0, dot), column.substr(dot + 1));
    }

    /// Makes a text of the schema among the options: its members have an order, which `fields` do not keep. (Those of a
    /// table's structs come by their names.)
    void spell_schema(Json& fields, std::int64_t index) const {
        const auto options = fields.find("options");
        const bool has_schema = options != fields.end() && options->is_object() && options->contains("json-schema");
        if (!has_schema || !(*options)["json-schema"].is_object()) return;
        const std::string text = rows_->column_text(index, source_of("options"), "json-schema");
        Json& schema = (*options)["json-schema"];
        schema = text.empty() ? engine::json_text(schema) : text;
    }

    /// Throws InputError if a needed field is absent. `object`: the line as it is, `fields`: by the names of the task.
    void check_needed(const Json& fields, const Json& object, const std::string& where) const {
        const auto is_there = [&](const std::string& name) {
            const auto found = fields.find(name);
            return found != fields.end() && !found->is_null();
        };
        for (const Strings& group : needed_) {
            if (std::any_of(group.begin(), group.end(), is_there)) continue;
            const std::string type = type_.empty() ? type_of(group.front()) : type_;
            // The columns of a table were found when it was opened.
            if (is_table_) throw InputError(where, group.front(), type, "nothing");
            const auto renamed = std::find_if(renamed_.begin(), renamed_.end(),
                                              [&](const auto& entry) { return entry.first == group.front(); });
            refuse_absent(object, group.front(), type, renamed == renamed_.end() ? group.front() : renamed->second,
                          where);
        }
    }

    std::unique_ptr<RowSource> rows_;
    Strings names_;
    std::vector<Strings> needed_;  ///< JsonFields::needed
    std::string type_;             ///< JsonFields::type
    bool is_table_;
    std::vector<std::pair<std::string, std::string>> renamed_;  ///< field and its name in the data
    std::vector<std::pair<std::string, std::string>> others_;   ///< JsonFields::other_names
};

/// {"id"?, "source", "reference"?}, or {"translation": {"de", "en"}} as Hugging Face's datasets of WMT have it
class WmtRecords : public JsonRecords {
  public:
    explicit WmtRecords(const Settings& settings)
        : JsonRecords(settings, {"source"},
                      {.names = {"source", "reference"},
                       .needed = {{"source"}},
                       .other_names = {{"source", "translation.de"}, {"reference", "translation.en"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "source", where)};
        record.reference = optional_text(object, "reference", where);
        return record;
    }
};

/// {"id"?, "document", "summary"}
class XsumRecords : public JsonRecords {
  public:
    explicit XsumRecords(const Settings& settings)
        : JsonRecords(settings, {"document"},
                      {.names = {"document", "summary"}, .needed = {{"document"}, {"summary"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "document", where)};
        record.reference = needed_text(object, "summary", where);
        return record;
    }
};

/// {"id"?, "instruction", "context"?, "response", "category"?}
class DollyRecords : public JsonRecords {
  public:
    explicit DollyRecords(const Settings& settings)
        : JsonRecords(settings, {"instruction", "context", "category"},
                      {.names = {"instruction", "context", "response", "category"},
                       .needed = {{"instruction"}, {"response"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "instruction", where),
                         optional_text(object, "context", where).value_or(""),
                         optional_text(object, "category", where).value_or("")};
        record.reference = needed_text(object, "response", where);
        return record;
    }
};

/// {"id"?, "prompt", "length", "type"?}
class LongWriterRecords : public JsonRecords {
  public:
    explicit LongWriterRecords(const Settings& settings)
        : JsonRecords(settings, {"prompt", "length", "type"},
                      {.names = {"prompt", "length", "type"}, .needed = {{"prompt"}, {"length"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        constexpr std::int64_t max_words = 10'000'000;
        Record record;
        record.required_words = engine::get_int(object, "length", 1, max_words, where);
        record.fields = {needed_text(object, "prompt", where), std::to_string(*record.required_words),
                         optional_text(object, "type", where).value_or("")};
        return record;
    }
};

/// The fields that the template of a job of prompts reads, if they are not the prompt alone.
std::vector<PromptTemplate::Field> fields_of_template(const Settings& settings) {
    if (settings.prompt_template.empty()) return {};
    std::vector<PromptTemplate::Field> fields = PromptTemplate::fields_in(settings.prompt_template);
    const bool prompt_alone = fields.size() == 1 && fields.front().name == "prompt";
    return prompt_alone ? std::vector<PromptTemplate::Field>() : fields;
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
        : JsonRecords(settings, names_of(fields), members_of(fields)), settings_(settings) {
        for (const std::string& name : field_names()) {
            if ((column_of(settings, name) + ".").starts_with(column_of(settings, "options") + "."))
                has_options_ = false;
        }
        for (const PromptTemplate::Field& field : fields) {
            if (!field.optional) check_known(field);
        }
    }

  private:
    /// Throws InputError if none of the first rows has the field: its name in the template is wrong, rather than the
    /// rows.
    void check_known(const PromptTemplate::Field& field) const {
        constexpr std::int64_t max_rows = 100;
        Json first;  // row that can be read
        for (std::int64_t index = 0; index < std::min(size(), max_rows); ++index) {
            try {
                const Json object = rows().object(index);
                if (!value_at(object, column_of(settings_, field.name)).is_null()) return;
                if (first.is_null()) first = object;
            } catch (const InputError&) {  // an item that fails
            }
        }
        if (first.is_null()) return;
        Strings members;
        for (const auto& [member, value] : first.items()) members.push_back(member);
        const std::string near = nearest_word(field.name, members);
        throw InputError(settings_.prompt_template.string() + ":" + std::to_string(field.line), "",
                         "fields of the data (" + member_names(first) + ")", in_quotes(field.name),
                         near.empty() ? "" : "did you mean '" + engine::printable(near) + "'?");
    }

    static Strings names_of(const std::vector<PromptTemplate::Field>& fields) {
        Strings names;
        for (const PromptTemplate::Field& field : fields) names.push_back(field.name);
        return names;
    }
    static JsonFields members_of(const std::vector<PromptTemplate::Field>& fields) {
        JsonFields members{.names = names_of(fields), .needed = {}, .type = text_or_number};
        for (const PromptTemplate::Field& field : fields) {
            if (!field.optional) members.needed.push_back({field.name});
        }
        for (const char* name : {"continuation", "options"}) {
            const auto& names = members.names;
            if (std::find(names.begin(), names.end(), name) == names.end()) members.names.emplace_back(name);
        }
        return members;
    }

    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        for (const std::string& name : field_names())
            record.fields.push_back(value_text(object, name, where, "{" + name + ".0} is its first element"));
        record.reference = reference_of(object, where);
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
        : JsonRecords(settings, {"prompt"}, fields_of(settings)), settings_(settings) {
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
        return {.names = names, .needed = {forms}};
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
        if (const Json* options = engine::find_member(object, "options", where))
            record.settings = with_options(*options, settings_, where);
        return record;
    }

    Settings settings_;
};

bool is_json(const fs::path& path) {
    return path.extension() == ".jsonl" || path.extension() == ".json";
}

}  // namespace

std::string text_member(const Json& object, const std::string& key, const std::string& where) {
    const Json* value = engine::find_member(object, key, where);
    if (value == nullptr || !value->is_string())
        throw InputError(where, key, "a string", value == nullptr ? "nothing" : engine::describe(*value));
    std::string text = value->get<std::string>();
    if (!is_text(text)) throw InputError(where, key, "text", "a NUL character");
    return text;
}

std::optional<std::string> optional_text(const Json& object, const std::string& key, const std::string& where) {
    if (engine::find_member(object, key, where) == nullptr) return std::nullopt;
    return text_member(object, key, where);
}

/// Throws UsageError for keys that only objects or tables have, and InputError for a table with a file of references.
static void check_data_keys(const Settings& settings, bool table, bool objects) {
    const auto refuse = [&](const char* key, const std::string& with, const std::string& got) {
        throw UsageError(InputError::format(settings.origins.of(key), key, "none with data of " + with, got, ""));
    };
    if (!objects && !settings.column.empty()) refuse("column", "lines of text", shown(settings.column.front()));
    if (!table && !settings.split.empty()) refuse("split", "one file or of lines", shown(settings.split));
    if (objects && !settings.reference.empty())
        refuse("reference", table ? "a table" : "JSON objects, which have theirs", shown(settings.reference.string()));
}

/// Throws InputError if the template of prompts that are lines of text names other fields than the line.
static void check_template_of_lines(const Settings& settings) {
    for (const PromptTemplate::Field& field : fields_of_template(settings)) {
        if (field.name == "prompt") continue;
        throw InputError(settings.prompt_template.string() + ":" + std::to_string(field.line), "", "the field prompt",
                         in_quotes(field.name), "lines of text have only {prompt}; other fields need JSONL or Parquet");
    }
}

std::unique_ptr<RecordSource> open_records(const Settings& settings) {
    std::error_code error;
    const std::string& task = settings.task;
    const bool table = is_table(settings.data);
    const bool folder = !table && fs::is_directory(settings.data, error);
    const bool lines = ((task == "wmt" || task == "xsum") && (folder || !is_json(settings.data))) ||
                       (task == "prompts" && settings.data.extension() == ".txt");
    check_data_keys(settings, table, table || !lines);
    if (task == "openai-batch" && (table || folder))
        throw InputError(settings.data.string(), "", "a .jsonl file of requests", table ? "a table" : "a folder");
    if (task == "openai-batch") return open_batch(settings);
    if (!table && lines && task != "prompts") return open_parallel(settings, task == "wmt" ? "source" : "document");
    if (!table && lines) {
        check_template_of_lines(settings);
        return open_prompt_lines(settings);
    }
    if (folder) {
        const char* const content = task == "dolly"        ? "instructions"
                                    : task == "longwriter" ? "prompts and lengths"
                                                           : "prompts";
        const char* const kinds =
            task == "prompts" ? "a .jsonl, .txt or .parquet file with " : "a .jsonl or .parquet file with ";
        throw InputError(settings.data.string(), "", std::string(kinds) + content, "a folder without tables");
    }
    if (task == "wmt") return std::make_unique<WmtRecords>(settings);
    if (task == "xsum") return std::make_unique<XsumRecords>(settings);
    if (task == "dolly") return std::make_unique<DollyRecords>(settings);
    if (task == "longwriter") return std::make_unique<LongWriterRecords>(settings);
    if (const auto fields = fields_of_template(settings); !fields.empty())
        return std::make_unique<TemplateRecords>(settings, fields);
    return std::make_unique<PromptRecords>(settings);
}

}  // namespace longhaul::runner
