#include "runner/data/json_records.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/error.hpp"
#include "runner/data/chat_messages.hpp"
#include "runner/data/dataset_lines.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {

using engine::Json;
using Strings = std::vector<std::string>;

namespace {

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

const char* type_of(const std::string& field) {
    return field == "length"     ? "an integer"
           : field == "messages" ? "an array of messages"
           : field == "choices"  ? "an array of texts"
                                 : "a string";
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

}  // namespace

std::string column_of(const Settings& settings, const std::string& field) {
    for (const std::string& entry : settings.column) {
        if (entry.starts_with(field + "=")) return entry.substr(field.size() + 1);
    }
    return field;
}

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

std::string needed_text(const Json& object, const std::string& key, const std::string& where) {
    std::string text = text_member(object, key, where);
    if (text.empty()) throw InputError(where, key, "a text", "an empty string");
    return text;
}

JsonRecords::JsonRecords(const Settings& settings, Strings names, const JsonFields& fields)
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

Record JsonRecords::read(std::int64_t index) const {
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

void JsonRecords::check_known(const Settings& settings, const std::string& field, const std::string& place) const {
    constexpr std::int64_t max_rows = 100;
    const std::string column = column_of(settings, field);
    Json first;  // row that can be read
    for (std::int64_t index = 0; index < std::min(size(), max_rows); ++index) {
        try {
            const Json object = rows_->object(index);
            if (!value_at(object, column).is_null()) return;
            if (first.is_null()) first = object;
        } catch (const InputError&) {  // an item that fails
        }
    }
    if (first.is_null()) return;
    Strings members;
    for (const auto& [member, value] : first.items()) members.push_back(member);
    const std::string near = nearest_word(column, members);
    const bool for_messages = field == "prompt" && !value_at(first, column_of(settings, "messages")).is_null();
    throw InputError(place, "", "fields of the data (" + member_names(first) + ")", in_quotes(column),
                     for_messages   ? "with messages, template, introduction, few-shot-group and choice name no field"
                     : near.empty() ? ""
                                    : "did you mean '" + engine::printable(near) + "'?");
}

/// The column that a field is read from.
std::string JsonRecords::source_of(const std::string& field) const {
    const auto renamed =
        std::find_if(renamed_.begin(), renamed_.end(), [&](const auto& entry) { return entry.first == field; });
    return renamed != renamed_.end() ? renamed->second : field;
}
/// The text of a column, which may be a path; "" if it has none.
std::string JsonRecords::text_of_column(const std::string& column, std::int64_t index) const {
    const std::size_t dot = column.rfind('.');
    std::string text = rows_->text_of(index, std::span(&column, 1));
    if (!text.empty() || dot == std::string::npos) return text;
    return rows_->column_text(index, column.substr(0, dot), column.substr(dot + 1));
}

/// Makes a text of the schema among the options: its members have an order, which `fields` do not keep. (Those of a
/// table's structs come by their names.)
void JsonRecords::spell_schema(Json& fields, std::int64_t index) const {
    const auto options = fields.find("options");
    const bool has_schema = options != fields.end() && options->is_object() && options->contains("json-schema");
    if (!has_schema || !(*options)["json-schema"].is_object()) return;
    const std::string text = rows_->column_text(index, source_of("options"), "json-schema");
    Json& schema = (*options)["json-schema"];
    schema = text.empty() ? engine::json_text(schema) : text;
}

/// Throws InputError if a needed field is absent. `object`: the line as it is, `fields`: by the names of the task.
void JsonRecords::check_needed(const Json& fields, const Json& object, const std::string& where) const {
    const auto is_there = [&](const std::string& name) {
        const auto found = fields.find(name);
        return found != fields.end() && !found->is_null();
    };
    for (const Strings& group : needed_) {
        if (std::any_of(group.begin(), group.end(), is_there)) continue;
        const bool is_own = type_.empty() || group.front() == "choices";
        const std::string type = is_own ? type_of(group.front()) : type_;
        // The columns of a table were found when it was opened.
        if (is_table_) throw InputError(where, group.front(), type, "nothing");
        const auto renamed = std::find_if(renamed_.begin(), renamed_.end(),
                                          [&](const auto& entry) { return entry.first == group.front(); });
        refuse_absent(object, group.front(), type, renamed == renamed_.end() ? group.front() : renamed->second, where);
    }
}

}  // namespace longhaul::runner
