// Structured outputs in requests of task openai-batch: `response_format` of OpenAI's API, and vLLM's fields.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>

#include "engine/json.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// Fields of a body that say what the answer must look like.
const std::set<std::string>& format_fields();
inline bool is_format_field(const std::string& name) {
    return format_fields().contains(name);
}

/// The text of a member of the request, by its path: a schema's members have an order, which Json does not keep.
using MemberText = std::function<std::string(std::span<const std::string> path)>;

/// Sets the key json-schema, regex, choice or grammar by a field of the body. Throws InputError.
void set_format(Settings& settings, const std::string& field, const engine::Json& value, const MemberText& text_of,
                const std::string& where);

}  // namespace longhaul::runner
