#include "runner/data/request_format.hpp"

#include <vector>

#include "engine/error.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using Path = std::vector<std::string>;

constexpr const char* any_object = R"({"type":"object"})";

/// Sets what the fields of one request say.
class FormatSetter {
  public:
    FormatSetter(Settings& settings, const MemberText& text_of, const std::string& where)
        : settings_(settings), text_of_(text_of), where_(where) {}

    /// {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": …}}
    void set_response_format(const Json& format) {
        const Path path{"body", "response_format"};
        const Json* type = engine::find_member(format, "type", where_, "body.response_format");
        if (type != nullptr && *type == "text") {
            if (!settings_.own_format) settings_.format = {};
        } else if (type != nullptr && *type == "json_object") {
            set("json-schema", any_object, "body.response_format");
        } else if (type != nullptr && *type == "json_schema") {
            const std::string place = "body.response_format.json_schema";
            const Json* outer = engine::find_member(format, "json_schema", where_, "body.response_format");
            const Json* schema = outer != nullptr ? engine::find_member(*outer, "schema", where_, place) : nullptr;
            if (schema == nullptr || !schema->is_object())
                throw InputError(where_, place + ".schema", "a JSON schema",
                                 schema != nullptr ? engine::describe(*schema) : "nothing");
            set_schema(*schema, {"body", "response_format", "json_schema", "schema"});
        } else {
            throw InputError(where_, "body.response_format.type", R"("text", "json_object" or "json_schema")",
                             type != nullptr ? engine::describe(*type) : "nothing");
        }
    }

    /// vLLM's: an object with one of json, json_object, regex, choice and grammar (GBNF).
    void set_structured_outputs(const Json& outputs) {
        const std::string field = "body.structured_outputs";
        if (!outputs.is_object()) throw InputError(where_, field, "an object", engine::describe(outputs));
        for (const auto& [name, value] : outputs.items()) {
            const std::string place = field + "." + engine::printable(name);
            if (value.is_null() || (name == "json_object" && value == false)) continue;
            if (name == "json") {
                set_schema(value, {"body", "structured_outputs", "json"});
            } else if (name == "json_object" && value == true) {
                set("json-schema", any_object, place);
            } else if (name == "regex" || name == "choice" || name == "grammar") {
                set(name, value, place);
            } else {
                throw InputError(where_, place, "json, json_object, regex, choice or grammar", engine::describe(value),
                                 "others are not supported");
            }
        }
    }

    void set_schema(const Json& schema, const Path& path) {
        std::string place;
        for (const std::string& name : path) place += (place.empty() ? "" : ".") + name;
        set("json-schema", schema.is_object() ? Json(text_of_(path)) : schema, place);
    }
    void set(const std::string& key, const Json& value, const std::string& place) {
        set_generation_key(settings_, key, value, where_, place);
    }

  private:
    Settings& settings_;
    const MemberText& text_of_;
    const std::string& where_;
};

}  // namespace

const std::set<std::string>& format_fields() {
    static const std::set<std::string> fields{"response_format", "structured_outputs", "guided_json",
                                              "guided_regex",    "guided_choice",      "guided_grammar"};
    return fields;
}

void set_format(Settings& settings, const std::string& field, const Json& value, const MemberText& text_of,
                const std::string& where) {
    FormatSetter setter(settings, text_of, where);
    if (field == "response_format") return setter.set_response_format(value);
    if (field == "structured_outputs") return setter.set_structured_outputs(value);
    if (field == "guided_json") return setter.set_schema(value, {"body", field});
    setter.set(field.substr(std::string("guided_").size()), value, "body." + field);
}

}  // namespace longhaul::runner
