// The filters, in two files: of values and texts, and of sequences.
#pragma once

#include <span>
#include <string_view>

#include "engine/tokenizer/jinja/operations.hpp"

namespace longhaul::engine::jinja {

struct Filter {
    std::string_view name;
    Value (*apply)(Runtime& runtime, const Value& input, const Arguments& arguments);
};

std::span<const Filter> value_filters();
std::span<const Filter> sequence_filters();

/// Filter tojson, as transformers defines it.
Value to_json(Runtime& runtime, const Value& input, const Arguments& arguments);

}  // namespace longhaul::engine::jinja
