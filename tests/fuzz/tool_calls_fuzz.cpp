// Arbitrary bytes as a model's answer must give calls of the tools that there are, with JSON objects as arguments, or
// the answer as it is, soon.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/tool_calls_fuzz.cpp
//       runner/data/tool_calls.cpp engine/json.cpp engine/grammar/reasoning_end.cpp -o tool_calls_fuzz
//   ./tool_calls_fuzz -max_len=4096
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runner/data/tool_calls.hpp"

namespace {

using namespace longhaul;

void require(bool holds) {
    if (!holds) std::abort();
}

const std::vector<runner::Tool>& tools() {
    static const std::vector<runner::Tool> all = {
        {"weather", engine::parse_json(R"({"type": "object", "properties": {"town": {"type": "string"},
            "days": {"type": ["integer", "null"]}, "flag": {"type": "boolean"}}})",
                                       "weather")},
        {"clock", {}}};
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view answer(reinterpret_cast<const char*>(data), size);
    for (const bool bare : {true, false}) {
        const runner::ToolAnswer found = runner::tool_calls_in(answer, tools(), bare);
        if (found.calls.empty()) require(found.content == answer);
        for (const runner::ToolCall& call : found.calls) {
            require(std::any_of(tools().begin(), tools().end(),
                                [&](const runner::Tool& tool) { return tool.name == call.name; }));
            require(engine::try_parse_json(call.arguments).is_object());
        }
    }
    return 0;
}
