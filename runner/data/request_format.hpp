// Structured outputs in requests of task openai-batch: `response_format` of OpenAI's API, and vLLM's fields.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "runner/job/job.hpp"

namespace longhaul::runner {

/// Fields of a body that say what the answer must look like.
const std::set<std::string>& format_fields();
inline bool is_format_field(const std::string& name) {
    return format_fields().contains(name);
}

/// Sets the key json-schema, regex or choice by a field of the body. `value`: with its members in their order. Throws
/// InputError.
void set_format(Settings& settings, const std::string& field, const nlohmann::ordered_json& value,
                const std::string& where);

}  // namespace longhaul::runner
