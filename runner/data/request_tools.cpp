#include "runner/data/request_tools.hpp"

#include <algorithm>
#include <array>

#include "engine/error.hpp"
#include "engine/tokenizer/jinja/value.hpp"
#include "runner/data/dataset_records.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view list_field = "tools", choice_field = "tool_choice", parallel_field = "parallel_tool_calls";

/// `place`: of the entry, in errors.
Tool tool_of(const Json& entry, const std::string& where, const std::string& place) {
    const Json* type = entry.is_object() ? engine::find_member(entry, "type", where, place) : nullptr;
    if (type == nullptr || *type != "function")
        throw InputError(where, place, R"({"type": "function", "function": {…}})", engine::describe(entry));
    const std::string within = place + ".function";
    const Json* function = engine::find_member(entry, "function", where, place);
    if (function == nullptr || !function->is_object())
        throw InputError(where, within, "an object with a name",
                         function == nullptr ? "nothing" : engine::describe(*function));
    Tool tool{.name = text_member(*function, "name", where + ": " + within), .parameters = {}};
    const Json* parameters = engine::find_member(*function, "parameters", where, within);
    if (parameters != nullptr && !parameters->is_object())
        throw InputError(where, within + ".parameters", "a JSON schema", engine::describe(*parameters));
    if (parameters != nullptr) tool.parameters = *parameters;
    return tool;
}

std::vector<Tool> tools_of(const Json& list, const std::string& where) {
    if (!list.is_array()) throw InputError(where, "body.tools", "an array of tools", engine::describe(list));
    std::vector<Tool> tools;
    for (const Json& entry : list)
        tools.push_back(tool_of(entry, where, "body.tools[" + std::to_string(tools.size()) + "]"));
    return tools;
}

/// The function that {"type": "function", "function": {"name": …}} names.
const Tool& named_tool(const Json& choice, const std::vector<Tool>& tools, const std::string& where) {
    const Json* function =
        choice.is_object() ? engine::find_member(choice, "function", where, "body.tool_choice") : nullptr;
    if (function == nullptr || !function->is_object())
        throw InputError(where, "body.tool_choice", R"("auto", "none", "required" or a function)",
                         engine::describe(choice));
    const std::string name = text_member(*function, "name", where + ": body.tool_choice.function");
    const auto found = std::find_if(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
    if (found == tools.end())
        throw InputError(where, "body.tool_choice.function.name", "the name of one of the tools",
                         "'" + engine::printable(name) + "'");
    return *found;
}

/// The schemas of the tools' arguments, with members in their order. A tool without one has no arguments.
std::vector<Ordered> schemas_of(const std::string& list, const std::string& where) {
    std::vector<Ordered> schemas;
    for (const Ordered& tool : engine::parse_ordered_json(list, where)) {
        const Ordered& function = tool["function"];
        const auto parameters = function.find("parameters");
        const bool has_any = parameters != function.end() && parameters->is_object() && !parameters->empty();
        schemas.push_back(has_any ? *parameters : Ordered{{"type", "object"}, {"properties", Ordered::object()}});
    }
    return schemas;
}

/// Makes references of a schema, which begin at its root, begin at that of another, where it is at `place`.
void move_references(Ordered& schema, const std::string& place) {
    if (schema.is_array()) {
        for (Ordered& entry : schema) move_references(entry, place);
    }
    if (!schema.is_object()) return;
    for (const auto& [name, value] : schema.items()) {
        const bool is_reference = name == "$ref" && value.is_string() && value.get<std::string>().starts_with('#');
        if (is_reference) {
            value = "#" + place + value.get<std::string>().substr(1);
        } else {
            move_references(value, place);
        }
    }
}

/// A list of at least one call, as vLLM demands it.
Ordered schema_of_calls(const std::vector<Tool>& tools, std::vector<Ordered> schemas, bool only_one) {
    Ordered calls = Ordered::array();
    for (std::size_t i = 0; i < tools.size(); ++i) {
        move_references(schemas[i], "/items/anyOf/" + std::to_string(i) + "/properties/parameters");
        const Ordered properties{{"name", {{"const", tools[i].name}}}, {"parameters", std::move(schemas[i])}};
        calls.push_back(
            {{"type", "object"}, {"properties", properties}, {"required", Ordered::array({"name", "parameters"})}});
    }
    Ordered list{{"type", "array"}, {"minItems", 1}};
    if (only_one) list["maxItems"] = 1;
    list["items"] = {{"anyOf", std::move(calls)}};
    return list;
}

/// The field by which a request itself says what its answer looks like; "" if it does not.
std::string own_format(const Json& body, const std::string& where) {
    for (const std::string& name : format_fields()) {
        const Json* value = engine::find_member(body, name, where, "body");
        if (value != nullptr && *value != Json{{"type", "text"}}) return name;
    }
    return "";
}

/// Has the answer be the call that tool_choice demands.
void demand_call(Settings& settings, const Json& choice, const std::vector<Tool>& tools, const std::string& list,
                 const std::string& where, RequestTools& request) {
    std::vector<Ordered> schemas = schemas_of(list, where);
    Ordered schema;
    if (choice == "required") {
        schema = schema_of_calls(tools, std::move(schemas), request.only_one);
    } else {
        const Tool& tool = named_tool(choice, tools, where);
        request.named = tool.name;
        schema = schemas[static_cast<std::size_t>(&tool - tools.data())];
    }
    set_generation_key(settings, "json-schema", Json(engine::json_text(schema)), where, "body.tools");
}

}  // namespace

bool is_tool_field(const std::string& name) {
    return name == list_field || name == choice_field || name == parallel_field;
}

RequestTools read_tools(Settings& settings, const Json& body, const MemberText& text_of, const std::string& where) {
    RequestTools request;
    const Json* list = engine::find_member(body, list_field, where, "body");
    const Json* choice = engine::find_member(body, choice_field, where, "body");
    request.only_one = !engine::get_bool_or(body, parallel_field, true, where, "body");
    std::vector<Tool> tools = list != nullptr ? tools_of(*list, where) : std::vector<Tool>();
    if (tools.empty()) {
        if (choice != nullptr && *choice != "none")
            throw InputError(where, "body.tool_choice", "\"none\" or null without tools", engine::describe(*choice));
        return request;
    }
    const std::array<std::string, 2> path{"body", "tools"};
    const std::string text = text_of(path);
    engine::jinja::value_of_json(text, where + ": body.tools");  // throws if a template could not see them
    settings.template_variable.push_back("tools=" + text);
    if (choice != nullptr && *choice == "none") return request;
    const std::string format = own_format(body, where);
    request.has_format = !format.empty() || settings.format.kind != engine::OutputFormat::Kind::any;
    if (choice != nullptr && *choice != "auto") {
        if (!format.empty())
            throw InputError(where, "body." + format, "none beside a tool_choice that demands a call", "one");
        demand_call(settings, *choice, tools, text, where, request);
    }
    request.callable = std::move(tools);
    return request;
}

ToolAnswer answer_with_tools(const std::string& answer, const RequestTools& tools) {
    if (tools.callable.empty()) return {answer, {}};
    if (!tools.named.empty()) return {"", {{tools.named, answer}}};
    ToolAnswer found = tool_calls_in(answer, tools.callable, !tools.has_format);
    if (tools.only_one && found.calls.size() > 1) found.calls.resize(1);
    return found;
}

}  // namespace longhaul::runner
