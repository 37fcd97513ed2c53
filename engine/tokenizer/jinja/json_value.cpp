// value_of_json: JSON text as a value. The parser of engine/json.hpp checks the text; it sorts the members of objects,
// so a second pass reads them in the order of the text.
#include "engine/json.hpp"

#include "engine/error.hpp"
#include "engine/tokenizer/jinja/value.hpp"

namespace longhaul::engine::jinja {
namespace {

Value value_of(const nlohmann::ordered_json& json, std::string_view file) {
    switch (json.type()) {
        case nlohmann::ordered_json::value_t::boolean:
            return Value::boolean(json.get<bool>());
        case nlohmann::ordered_json::value_t::number_integer:
            return Value::integer(json.get<std::int64_t>());
        case nlohmann::ordered_json::value_t::number_unsigned:
            if (!std::in_range<std::int64_t>(json.get<std::uint64_t>()))
                throw InputError(file, "", "integers of 64 bits", json.dump());
            return Value::integer(json.get<std::int64_t>());
        case nlohmann::ordered_json::value_t::number_float:
            return Value::real(json.get<double>());
        case nlohmann::ordered_json::value_t::string:
            return Value::text(json.get_ref<const std::string&>());
        case nlohmann::ordered_json::value_t::array: {
            std::vector<Value> items;
            for (const auto& item : json) items.push_back(value_of(item, file));
            return Value::list(std::move(items));
        }
        case nlohmann::ordered_json::value_t::object: {
            std::vector<std::pair<Value, Value>> items;
            for (const auto& [key, item] : json.items()) items.emplace_back(Value::text(key), value_of(item, file));
            return Value::dict(std::move(items));
        }
        default:
            return Value::none();
    }
}

}  // namespace

Value value_of_json(std::string_view text, std::string_view file) {
    parse_json(text, file, max_depth - 1);
    return value_of(nlohmann::ordered_json::parse(text), file);
}

}  // namespace longhaul::engine::jinja
