#include "engine/tokenizer/jinja/template.hpp"

#include "engine/tokenizer/jinja/interpreter.hpp"
#include "engine/tokenizer/jinja/parser.hpp"

namespace longhaul::engine::jinja {
namespace {

/// Bytes of all texts in a value, which limits grow with.
std::size_t num_bytes(const Value& value) {
    std::size_t total = sizeof(Value);
    if (value.is(Kind::text)) total += value.bytes().size();
    if (value.is_sequence()) {
        for (const Value& item : value.as_sequence().items) total += num_bytes(item);
    }
    if (value.is(Kind::dict)) {
        for (const auto& [key, item] : value.as_dict().items) total += num_bytes(key) + num_bytes(item);
    }
    return total;
}

}  // namespace

Template Template::parse(std::string_view source, std::string file) {
    auto body = std::make_shared<const Body>(parse_template(source, file));
    return {std::move(file), std::move(body)};
}

std::string Template::render(const Variables& variables, const RenderOptions& options) const {
    std::size_t input_bytes = 0;
    for (const auto& [name, value] : variables) input_bytes += num_bytes(value);
    Runtime runtime(file_, options, input_bytes);
    return Interpreter(runtime, variables).run(*body_);
}

}  // namespace longhaul::engine::jinja
