#include "runner/data/request_format.hpp"

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* any_object = R"({"type":"object"})";

void set_schema(Settings& settings, const OrderedJson& schema, const std::string& field, const std::string& where) {
    const std::string text = schema.is_string() ? schema.get<std::string>() : engine::json_text(schema);
    set_generation_key(settings, "json-schema", Json(text), where, field);
}

/// {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": …}}
void set_response_format(Settings& settings, const OrderedJson& format, const std::string& where) {
    const std::string field = "body.response_format";
    const std::string type = format.is_object() && format.contains("type") && format["type"].is_string()
                                 ? format["type"].get<std::string>()
                                 : "";
    if (type == "text") return;
    if (type == "json_object") return set_schema(settings, OrderedJson(any_object), field, where);
    if (type != "json_schema")
        throw InputError(
            where, field + ".type", "\"text\", \"json_object\" or \"json_schema\"",
            engine::describe(format.is_object() && format.contains("type") ? Json(format["type"]) : Json(format)));
    const auto outer = format.find("json_schema");
    const bool has_schema = outer != format.end() && outer->is_object() && outer->contains("schema");
    if (!has_schema || !(*outer)["schema"].is_object())
        throw InputError(where, field + ".json_schema.schema", "a JSON schema",
                         has_schema ? engine::describe(Json((*outer)["schema"])) : "nothing");
    set_schema(settings, (*outer)["schema"], field + ".json_schema.schema", where);
}

/// vLLM's: an object with one of json, json_object, regex and choice.
void set_structured_outputs(Settings& settings, const OrderedJson& outputs, const std::string& where) {
    const std::string field = "body.structured_outputs";
    if (!outputs.is_object()) throw InputError(where, field, "an object", engine::describe(Json(outputs)));
    for (const auto& [name, value] : outputs.items()) {
        if (value.is_null()) continue;
        const std::string place = field + "." + engine::printable(name);
        if (name == "json") {
            set_schema(settings, value, place, where);
        } else if (name == "json_object" && value == true) {
            set_schema(settings, OrderedJson(any_object), place, where);
        } else if (name == "regex" || name == "choice") {
            set_generation_key(settings, name, Json(value), where, place);
        } else if (name != "json_object" || value != false) {
            throw InputError(where, place, "json, json_object, regex or choice", engine::describe(Json(value)),
                             "others are not supported");
        }
    }
}

}  // namespace

const std::set<std::string>& format_fields() {
    static const std::set<std::string> fields{"response_format", "structured_outputs", "guided_json", "guided_regex",
                                              "guided_choice"};
    return fields;
}

void set_format(Settings& settings, const std::string& field, const OrderedJson& value, const std::string& where) {
    if (field == "response_format") return set_response_format(settings, value, where);
    if (field == "structured_outputs") return set_structured_outputs(settings, value, where);
    if (field == "guided_json") return set_schema(settings, value, "body." + field, where);
    set_generation_key(settings, field == "guided_regex" ? "regex" : "choice", Json(value), where, "body." + field);
}

}  // namespace longhaul::runner
