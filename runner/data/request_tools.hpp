// Tools in chat requests of task openai-batch: `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's API.
#pragma once

#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/data/request_format.hpp"
#include "runner/data/tool_calls.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// The tools of a request, and which of them its answer may call.
struct RequestTools {
    std::vector<Tool> callable{};  ///< empty: an answer is a text
    std::string named;             ///< the answer is the arguments of this tool; "": the model decides
    bool only_one = false;         ///< parallel_tool_calls is false
    bool has_format = false;       ///< the request says what its answer looks like: JSON is no call
};

/// Fields of a chat's body that are read here.
bool is_tool_field(const std::string& name);

/// Reads the fields. Gives the tools to the chat template, and, where tool_choice demands a call, an answer its format.
/// Throws InputError.
RequestTools read_tools(Settings& settings, const engine::Json& body, const MemberText& text_of,
                        const std::string& where);

/// The calls in an answer to the request.
ToolAnswer answer_with_tools(const std::string& answer, const RequestTools& tools);

}  // namespace longhaul::runner
