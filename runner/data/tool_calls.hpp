// Calls of tools in the answers of chats: what a model wrote in the form that it was trained on, as OpenAI's API gives
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/json.hpp"

namespace longhaul::runner {

/// A function that a request offers.
struct Tool {
    std::string name;
    engine::Json parameters;  ///< JSON schema of the arguments; null: none was given
};

struct ToolCall {
    std::string name;
    std::string arguments;  ///< the text of a JSON object
    friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

/// An answer's text and its calls.
struct ToolAnswer {
    std::string content;
    std::vector<ToolCall> calls;  ///< empty: `content` is the whole answer
};

/// Finds the calls of `tools` in an answer, in these forms, of which a model writes its own:
///   <tool_call>{"name": …, "arguments": {…}}</tool_call>                    Hermes, Qwen2.5 and 3
///   <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…             Qwen3-Coder, Qwen3.5, Nemotron 3
///   <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…      GLM-4.5 to 4.7
///   {"name": …, "parameters": {…}}, several behind one another or in a list Llama 3, Mistral
///   NAME{…}                                                                 Mistral, newer
/// A VALUE is JSON, or a text where the tool's schema allows or wants one. Without marks the whole answer is calls, or
/// none of it, and `bare` must be true; with marks the text before the first is the content, what is behind or between
/// is dropped, and so are calls that name no tool. If none is left, the answer is a text.
ToolAnswer tool_calls_in(std::string_view answer, const std::vector<Tool>& tools, bool bare = true);

}  // namespace longhaul::runner
