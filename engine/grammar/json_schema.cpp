#include "engine/grammar/json_schema.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/grammar/json_pieces.hpp"
#include "engine/grammar/output_grammar.hpp"
#include "engine/grammar/regex_grammar.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

using Piece = GrammarBuilder::Piece;
using OrderedJson = nlohmann::ordered_json;
using Names = std::set<std::string>;

constexpr std::size_t max_excluded = 1 << 14;  // bytes of names that other members may not have

/// Keywords that say nothing about a value.
const Names annotations{"title",    "description", "default",       "examples",    "$schema",
                        "$id",      "$comment",    "$defs",         "definitions", "deprecated",
                        "readOnly", "writeOnly",   "discriminator", "$anchor",     "format"};
const std::map<std::string, Names> keywords_of_type{
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"pattern", "minLength", "maxLength"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"boolean", {}},
    {"null", {}}};

class Compiler {
  public:
    Compiler(GrammarBuilder& builder, const OrderedJson& root) : builder_(builder), json_(builder), root_(root) {}

    Piece compile() {
        Piece whole = schema(root_, "");
        // One after another, for a chain of references may be long.
        while (!undefined_.empty()) {
            const std::string pointer = undefined_.back();
            undefined_.pop_back();
            builder_.define(rules_[pointer],
                            schema(root_.at(OrderedJson::json_pointer(pointer.substr(1))), "." + printable(pointer)));
        }
        return whole;
    }

  private:
    /// `path`: of the schema within the whole one, for messages.
    Piece schema(const OrderedJson& schema, const std::string& path) {
        if (schema.is_boolean() && schema.get<bool>()) return json_.value();
        if (!schema.is_object()) refuse(path, "a schema is an object, or true");
        if (const auto* ref = member(schema, "$ref")) {
            check_keywords(schema, {"$ref"}, path);
            return reference(*ref, path + ".$ref");
        }
        if (const auto* value = member(schema, "const")) {
            check_keywords(schema, {"const", "type"}, path);
            return one_of(schema, {*value}, path);
        }
        if (const auto* values = member(schema, "enum")) {
            check_keywords(schema, {"enum", "type"}, path);
            if (!values->is_array() || values->empty()) refuse(path, "enum is a list of values");
            return one_of(schema, {values->begin(), values->end()}, path);
        }
        for (const char* keyword : {"anyOf", "oneOf"}) {
            if (const auto* ways = member(schema, keyword)) {
                check_keywords(schema, {keyword}, path);
                return any_of(*ways, path + "." + keyword);
            }
        }
        if (const auto* all = member(schema, "allOf")) {
            check_keywords(schema, {"allOf"}, path);
            if (!all->is_array() || all->size() != 1) refuse(path, "allOf is supported with one schema");
            return this->schema(all->front(), path + ".allOf[0]");
        }
        return typed(schema, path);
    }

    [[noreturn]] static void refuse(const std::string& path, const std::string& fault) {
        throw BadFormat{(path.empty() ? "" : path.substr(1) + ": ") + fault};
    }

    static const OrderedJson* member(const OrderedJson& object, const std::string& name) {
        const auto found = object.find(name);
        return found == object.end() ? nullptr : &*found;
    }

    static void check_keywords(const OrderedJson& schema, const Names& known, const std::string& path) {
        for (const auto& [name, value] : schema.items()) {
            if (!known.contains(name) && !annotations.contains(name))
                refuse(path, printable(name) + " is not supported here");
        }
    }

    /// Those of `values` that have the schema's type.
    Piece one_of(const OrderedJson& schema, const std::vector<OrderedJson>& values, const std::string& path) {
        const std::vector<std::string> types = types_of(schema, path);
        std::vector<std::string> texts;
        for (const OrderedJson& value : values) {
            const auto fits = [&](const std::string& type) { return is_of_type(value, type); };
            if (types.empty() || std::any_of(types.begin(), types.end(), fits)) texts.push_back(json_text(value));
        }
        if (texts.empty()) refuse(path, "none of its values has its type");
        return builder_.one_of(texts);
    }

    static bool is_of_type(const OrderedJson& value, const std::string& type) {
        if (type == "integer")
            return value.is_number_integer() ||
                   (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
        if (type == "number") return value.is_number();
        return value.type_name() == type;
    }

    Piece any_of(const OrderedJson& ways, const std::string& path) {
        if (!ways.is_array() || ways.empty()) refuse(path, "it is a list of schemas");
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < ways.size(); ++i)
            pieces.push_back(schema(ways[i], path + "[" + std::to_string(i) + "]"));
        return builder_.either(std::move(pieces));
    }

    /// A schema within this one by its JSON pointer. Each becomes a rule, for it may contain itself.
    Piece reference(const OrderedJson& ref, const std::string& path) {
        const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
        if (pointer != "#" && !pointer.starts_with("#/"))
            refuse(path, "only references within the schema are supported");
        if (const auto known = rules_.find(pointer); known != rules_.end()) return builder_.call(known->second);
        try {
            (void)root_.at(OrderedJson::json_pointer(pointer.substr(1)));
        } catch (const OrderedJson::exception&) {
            refuse(path, "there is no " + printable(pointer));
        }
        undefined_.push_back(pointer);
        return builder_.call(rules_[pointer] = builder_.new_rule());
    }

    Piece typed(const OrderedJson& schema, const std::string& path) {
        std::vector<std::string> types = types_of(schema, path);
        if (types.empty()) types.push_back(implied_type(schema));
        if (types.size() == 1) return of_type(schema, types.front(), path);
        Names known{"type"};
        for (const std::string& type : types)
            known.insert(keywords_of_type.at(type).begin(), keywords_of_type.at(type).end());
        check_keywords(schema, known, path);
        std::vector<Piece> ways;
        for (const std::string& type : types) {
            OrderedJson of_one = OrderedJson::object();
            for (const auto& [name, value] : schema.items())
                if (keywords_of_type.at(type).contains(name) || annotations.contains(name)) of_one[name] = value;
            ways.push_back(of_type(of_one, type, path));
        }
        return builder_.either(std::move(ways));
    }

    /// None if the schema names none.
    static std::vector<std::string> types_of(const OrderedJson& schema, const std::string& path) {
        const OrderedJson* type = member(schema, "type");
        if (type == nullptr) return {};
        std::vector<std::string> types;
        for (const OrderedJson& one : type->is_array() ? *type : OrderedJson::array({*type})) {
            const std::string name = one.is_string() ? one.get<std::string>() : "";
            if (!keywords_of_type.contains(name))
                refuse(path, "type is one of array, boolean, integer, null, number, object, string");
            if (std::find(types.begin(), types.end(), name) != types.end())
                refuse(path, "type names " + name + " twice");
            types.push_back(name);
        }
        if (types.empty()) refuse(path, "type is a list of types");
        return types;
    }

    /// Of a schema without a type: of the values that it allows, those that its keywords are about.
    static std::string implied_type(const OrderedJson& schema) {
        for (const char* type : {"object", "array", "string", "number"}) {
            for (const std::string& keyword : keywords_of_type.at(type)) {
                if (schema.contains(keyword)) return type;
            }
        }
        return JsonPieces::expression_of_format(text_of(schema, "format")).empty() ? "" : "string";
    }

    Piece of_type(const OrderedJson& schema, const std::string& type, const std::string& path) {
        Names known{"type"};
        if (!type.empty()) known.insert(keywords_of_type.at(type).begin(), keywords_of_type.at(type).end());
        check_keywords(schema, known, path);
        if (type == "object") return object(schema, path);
        if (type == "array") return array(schema, path);
        if (type == "string") return string(schema, path);
        if (type == "integer" || type == "number") return number(schema, type == "integer", path);
        if (type == "boolean") return builder_.either({builder_.text("true"), builder_.text("false")});
        return type == "null" ? builder_.text("null") : json_.value();
    }

    Piece object(const OrderedJson& schema, const std::string& path) {
        const OrderedJson none = OrderedJson::object();
        const OrderedJson* given = member(schema, "properties");
        const OrderedJson& properties = given != nullptr ? *given : none;
        if (!properties.is_object()) refuse(path, "properties is an object of schemas");
        const Names required = required_names(schema, path);
        std::vector<JsonPieces::Member> members;
        Names names;
        for (const auto& [name, value] : properties.items()) {
            members.push_back(
                {name, this->schema(value, path + ".properties." + printable(name)), required.contains(name)});
            names.insert(name);
        }
        const OrderedJson* more = member(schema, "additionalProperties");
        std::optional<Piece> others;
        if (more != nullptr && *more != false) others = this->schema(*more, path + ".additionalProperties");
        if (more == nullptr && given == nullptr) others = json_.value();
        for (const std::string& name : required) {
            if (!names.insert(name).second) continue;
            if (more != nullptr && !others)
                refuse(path, "it requires " + printable(name) + ", which it does not allow");
            members.push_back({name, more != nullptr ? *others : json_.value(), true});
        }
        std::size_t num_bytes = 0;
        for (const std::string& name : names) num_bytes += name.size();
        if (others && num_bytes > max_excluded)
            refuse(path, "additionalProperties is supported beside at most " + std::to_string(max_excluded) +
                             " bytes of names");
        return json_.object(members, others);
    }

    static Names required_names(const OrderedJson& schema, const std::string& path) {
        Names names;
        const OrderedJson* required = member(schema, "required");
        if (required == nullptr) return names;
        if (!required->is_array()) refuse(path, "required is a list of names");
        for (const OrderedJson& name : *required) {
            if (!name.is_string()) refuse(path, "required is a list of names");
            names.insert(name.get<std::string>());
        }
        return names;
    }

    std::int64_t count(const OrderedJson& schema, const char* name, std::int64_t fallback, const std::string& path) {
        const OrderedJson* value = member(schema, name);
        if (value == nullptr) return fallback;
        if (!value->is_number_unsigned() || value->get<std::uint64_t>() > GrammarBuilder::max_repeats)
            refuse(path, std::string(name) + " is an integer from 0 to " + std::to_string(GrammarBuilder::max_repeats));
        return value->get<std::int64_t>();
    }

    Piece array(const OrderedJson& schema, const std::string& path) {
        std::vector<Piece> first;
        if (const OrderedJson* prefix = member(schema, "prefixItems")) {
            if (!prefix->is_array()) refuse(path, "prefixItems is a list of schemas");
            for (std::size_t i = 0; i < prefix->size(); ++i)
                first.push_back(this->schema((*prefix)[i], path + ".prefixItems[" + std::to_string(i) + "]"));
        }
        std::int64_t max_count = count(schema, "maxItems", -1, path);
        const std::int64_t all_first =
            max_count < 0 ? std::ssize(first) : std::min<std::int64_t>(max_count, std::ssize(first));
        const std::int64_t min_count = count(schema, "minItems", all_first, path);
        const OrderedJson* items = member(schema, "items");
        std::optional<Piece> rest;
        if (items != nullptr && *items != false) rest = this->schema(*items, path + ".items");
        if (items == nullptr && first.empty()) rest = json_.value();
        if (!rest) max_count = max_count < 0 ? std::ssize(first) : std::min<std::int64_t>(max_count, std::ssize(first));
        if (max_count >= 0 && max_count < min_count)
            refuse(path, "it allows no array: more items are needed than may be");
        return json_.array(first, rest, min_count, max_count);
    }

    Piece string(const OrderedJson& schema, const std::string& path) {
        const std::int64_t min_count = count(schema, "minLength", 0, path),
                           max_count = count(schema, "maxLength", -1, path);
        if (max_count >= 0 && max_count < min_count) refuse(path, "maxLength is less than minLength");
        const bool has_length = min_count > 0 || max_count >= 0;
        const OrderedJson* pattern = member(schema, "pattern");
        std::string expression = JsonPieces::expression_of_format(text_of(schema, "format"));
        if (pattern != nullptr) {
            if (!pattern->is_string()) refuse(path, "pattern is a regular expression");
            expression = pattern->get<std::string>();
        }
        if (expression.empty() && pattern == nullptr) return json_.string(min_count, max_count);
        if (has_length) refuse(path, "a length is not supported beside a pattern or a format");
        try {
            return json_.quoted(regex_piece(builder_, expression, Spelling::json, pattern != nullptr));
        } catch (const BadFormat& bad) {
            refuse(path + ".pattern", bad.fault);
        }
    }

    static std::string text_of(const OrderedJson& schema, const char* name) {
        const OrderedJson* value = member(schema, name);
        return value != nullptr && value->is_string() ? value->get<std::string>() : "";
    }

    Piece number(const OrderedJson& schema, bool integer, const std::string& path) {
        NumberRange range;
        const auto limit = [&](const char* name, std::optional<std::int64_t>& bound, bool& open, bool is_open) {
            const OrderedJson* value = member(schema, name);
            if (value == nullptr) return;
            if (bound) refuse(path, std::string(name) + " is not supported beside the other bound of this side");
            const double number = value->is_number() ? value->get<double>() : 0.5;
            if (std::abs(number) > 1e15 || number != std::trunc(number))
                refuse(path, std::string(name) + " is supported as an integer from -10^15 to 10^15");
            bound = static_cast<std::int64_t>(number);
            open = is_open;
        };
        limit("minimum", range.low, range.low_open, false);
        limit("exclusiveMinimum", range.low, range.low_open, true);
        limit("maximum", range.high, range.high_open, false);
        limit("exclusiveMaximum", range.high, range.high_open, true);
        const std::optional<Piece> piece = integer ? json_.integer(range) : json_.number(range);
        if (!piece) refuse(path, "its bounds allow no number");
        return *piece;
    }

    GrammarBuilder& builder_;
    JsonPieces json_;
    const OrderedJson& root_;
    std::map<std::string, std::int32_t> rules_;  ///< of references
    std::vector<std::string> undefined_;         ///< references whose rules are not defined yet
};

}  // namespace

GrammarBuilder::Piece json_schema_piece(GrammarBuilder& builder, std::string_view schema) {
    OrderedJson root;
    try {
        root = parse_ordered_json(schema, "");
    } catch (const InputError& error) {
        throw BadFormat{std::string("it is not JSON") + error.what()};
    }
    return Compiler(builder, root).compile();
}

}  // namespace longhaul::engine
