// Tools in chats of task openai-batch: what requests say of them, what the chat template sees, and calls in answers.
#include <gtest/gtest.h>

#include "engine/json.hpp"
#include "runner/data/tool_calls.hpp"
#include "tests/runner/batch_fixture.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;

const std::string weather =
    R"({"type": "function", "function": {"name": "weather", "description": "Says what it is like", "parameters": )"
    R"({"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, )"
    R"("required": ["town"]}}})";
const std::string clock_tool = R"({"type": "function", "function": {"name": "clock"}})";

std::vector<Tool> tools() {
    return {{"weather", Json::parse(weather)["function"]["parameters"]}, {"clock", {}}};
}

/// "content | name arguments | …"
std::string calls_in(const std::string& answer) {
    const ToolAnswer found = tool_calls_in(answer, tools());
    std::string text = found.content;
    for (const ToolCall& call : found.calls) text += " | " + call.name + " " + call.arguments;
    return text;
}

TEST(ToolCalls, HermesAndQwen) {
    EXPECT_EQ(
        calls_in("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Ulm\", \"days\": 2}}\n</tool_call>"),
        R"( | weather {"town":"Ulm","days":2})")
        << "arguments in their order";
    EXPECT_EQ(calls_in("I look it up.\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>\n"
                       "<tool_call>{\"name\": \"weather\", \"arguments\": {\"town\": \"</b>\"}}"),
              R"(I look it up. | clock {} | weather {"town":"</b>"})")
        << "the last may lack its end";
    EXPECT_EQ(calls_in(R"(<tool_call>{"name": "weather", "arguments": "{\"town\": \"Ulm\"}"}</tool_call>)"),
              R"( | weather {"town":"Ulm"})");
}

TEST(ToolCalls, Qwen3CoderAndNemotron) {
    const std::string call =
        "<function=weather>\n<parameter=town>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=more>\n[1, {\"b\": 2, \"a\": 1}]\n</parameter>\n</function>\n";
    const std::string expected = R"( | weather {"town":"12","days":3,"more":[1,{"b":2,"a":1}]})";
    EXPECT_EQ(calls_in("<tool_call>\n" + call + "</tool_call>"), expected) << "the schema says which are strings";
    EXPECT_EQ(calls_in("Well.\n" + call + "</tool_call>"), "Well." + expected) << "some leave out the beginning";
    EXPECT_EQ(calls_in("<tool_call><function=clock></function></tool_call>"), " | clock {}");
    EXPECT_EQ(
        calls_in("<tool_call><function=weather><parameter=town>\n two\nlines \n</parameter></function></tool_call>"),
        R"( | weather {"town":" two\nlines "})");
}

TEST(ToolCalls, Glm) {
    EXPECT_EQ(
        calls_in("<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n"
                 "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>"),
        R"( | weather {"town":"12","days":3} | clock {})");
}

TEST(ToolCalls, LlamaAndMistral) {
    EXPECT_EQ(calls_in(R"({"name": "weather", "parameters": {"town": "Ulm"}})"), R"( | weather {"town":"Ulm"})");
    EXPECT_EQ(calls_in(R"( {"name": "clock", "parameters": {}}; {"name": "weather", "parameters": {"town": "}\"{"}} )"),
              R"( | clock {} | weather {"town":"}\"{"})");
    EXPECT_EQ(calls_in(R"([{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"town": "Ulm"}}])"),
              R"( | clock {} | weather {"town":"Ulm"})");
    EXPECT_EQ(calls_in(R"(weather{"town": "Ulm"}clock{})"), R"( | weather {"town":"Ulm"} | clock {})");
}

TEST(ToolCalls, WhatIsNoCallIsText) {
    for (const std::string text :
         {"It is warm.",
          "",
          "{",
          "[]",
          "weather",
          "{\"town\": \"Ulm\"}",
          R"({"name": "other", "parameters": {}})",
          R"({"name": "clock", "parameters": []})",
          R"({"name": "clock", "parameters": {}} and more)",
          R"({"name": "clock", "price": 3})",
          R"({"name": "clock", "arguments": {}, "price": 3})",
          R"(<tool_call>{"name": "other", "arguments": {}}</tool_call>)",
          R"(<tool_call>{"name": "other", "arguments": {"text": "<function=clock></function>"}}</tool_call>)",
          "<tool_call></tool_call>",
          R"(<tool_call>{"name": "clock", "arguments": {}</tool_call>)",
          "<tool_call>other\n</tool_call>",
          "<tool_call><function=clock></tool_call>",
          "<function=weather><parameter=town>\n<function=clock></function>",
          "<tool_call>weather<arg_key>town</arg_key><arg_value><tool_call>clock</tool_call>",
          "<tool_call><function=weather><parameter=town>x</function></tool_call>",
          R"(clock{"a": )",
          "<tool_call>weather<arg_key>town</arg_key></tool_call>"})
        EXPECT_EQ(calls_in(text), text);
    const std::string json = R"({"name": "clock", "arguments": {}})";
    EXPECT_EQ(tool_calls_in(json, tools(), false).content, json) << "the format that the request asked for";
}

TEST(ToolCalls, WhatIsBetweenMarkedCallsIsDropped) {
    const std::string call = R"(<tool_call>{"name": "clock", "arguments": {}}</tool_call>)";
    EXPECT_EQ(calls_in("First " + call + " then <tool_call>{\"name\": \"other\"}</tool_call>, " + call + " and more"),
              "First | clock {} | clock {}");
    EXPECT_EQ(calls_in(R"([{"name": "weather", "arguments": {"town": "<tool_call>"}}])"),
              R"( | weather {"town":"<tool_call>"})")
        << "a mark in a text is none";
    EXPECT_EQ(calls_in(R"(<tool_call>{"name": "weather", "arguments": {"town": "</tool_call>"}}</tool_call>)"),
              R"( | weather {"town":"</tool_call>"})");
}

TEST(ToolCalls, ValuesHaveTheTypesOfTheSchema) {
    const Json schema = Json::parse(R"({"type": "object", "properties": {
        "text": {"type": ["string", "null"]}, "choice": {"enum": ["1", "2"]}, "flag": {"type": "boolean"},
        "name": {"type": "str"}, "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "real": {"type": "number"}}})");
    const auto value = [&](const std::string& key, const std::string& text) {
        const ToolAnswer found = tool_calls_in(
            "<function=f><parameter=" + key + ">\n" + text + "\n</parameter></function>", {{"f", schema}});
        return found.calls.empty() ? "none" : found.calls.front().arguments;
    };
    EXPECT_EQ(value("text", "12"), R"({"text":"12"})");
    EXPECT_EQ(value("text", "null"), R"({"text":null})");
    EXPECT_EQ(value("name", "12"), R"({"name":"12"})");
    EXPECT_EQ(value("choice", "1"), R"({"choice":"1"})");
    EXPECT_EQ(value("flag", "True"), R"({"flag":true})") << "as Python writes it";
    EXPECT_EQ(value("flag", "false"), R"({"flag":false})");
    EXPECT_EQ(value("maybe", "None"), R"({"maybe":null})");
    EXPECT_EQ(value("maybe", "5"), R"({"maybe":5})");
    EXPECT_EQ(value("real", "5"), R"({"real":5})");
    EXPECT_EQ(value("real", "much"), R"({"real":"much"})") << "the tool may say what is wrong";
    EXPECT_EQ(value("other", "[1, 2]"), R"({"other":[1,2]})");
}

/// A chat template that shows tools and calls as those of models do.
constexpr const char* shows_tools =
    "{%- for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}({{ call.function.name }} {{ call.function.arguments | tojson }})"
    "{%- endfor %}{{ m.tool_call_id or '' }}{% endfor %}";

class RequestToolsTest : public BatchAnswersTest {
  protected:
    Settings tool_job(const std::string& lines) {
        Settings with_template = job(lines);
        with_template.chat_template = write("tools.jinja", shows_tools).string();
        return with_template;
    }
    /// What an item "r<index>" that is refused shows.
    static std::string refusal(std::size_t index, const std::string& shown) {
        std::string text = "r" + std::to_string(index);
        text += "! b.jsonl:" + std::to_string(index + 1);
        return text += ": " + shown;
    }
    static std::string offer(const std::string& more = "") {
        return R"(, "tools": [)" + weather + ", " + clock_tool + "]" + more;
    }
};

TEST_F(RequestToolsTest, TheTemplateSeesToolsAndCalls) {
    const std::string messages =
        R"(, "messages": [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": null, )"
        R"("tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", )"
        R"("arguments": "{\"town\": \"Ulm\", \"days\": 2}"}}]}, )"
        R"({"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "warm"}])";
    const auto data = DataSet::open(tool_job(chat("a", offer()) + request("b", "chat/completions", messages) +
                                             chat("c", offer(R"(, "tool_choice": "none")"))));
    EXPECT_EQ(
        show(*data, 0),
        R"(a: [{"type": "function", "function": {"name": "weather", "description": "Says what it is like", )"
        R"("parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, )"
        R"("required": ["town"]}}}][{"type": "function", "function": {"name": "clock"}}]<user>Hi)");
    EXPECT_EQ(show(*data, 1), R"(b: <user>And now?<assistant>(weather {"town": "Ulm", "days": 2})<tool>warmc1)");
    EXPECT_EQ(show(*data, 2).substr(3), show(*data, 0).substr(3))
        << "as with vLLM, the model may know what it must not call";
}

TEST_F(RequestToolsTest, ADemandedCallHasAFormat) {
    const auto data = DataSet::open(
        tool_job(chat("a", offer()) +
                 chat("b", offer(R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})")) +
                 chat("c", offer(R"(, "tool_choice": "required")")) +
                 chat("d", offer(R"(, "tool_choice": {"type": "function", "function": {"name": "clock"}})"))));
    const auto schema = [&](std::int64_t index) {
        const std::vector<std::string> texts = data->prompt(index, tokenizer_, long_context).settings->format.texts;
        return texts.empty() ? "" : texts.front();
    };
    EXPECT_EQ(schema(0), "");
    const std::string arguments =
        R"({"type":"object","properties":{"town":{"type":"string"},"days":{"type":"integer"}},)"
        R"("required":["town"]})";
    EXPECT_EQ(schema(1), arguments);
    EXPECT_EQ(schema(2),
              R"({"type":"array","minItems":1,"items":{"anyOf":[{"type":"object","properties":{"name":{"const":)"
              R"("weather"},"parameters":)" +
                  arguments +
                  R"(},"required":["name","parameters"]},{"type":"object","properties":{"name":{"const":"clock"},)"
                  R"("parameters":{"type":"object","properties":{}}},"required":["name","parameters"]}]}})");
    EXPECT_EQ(schema(3), R"({"type":"object","properties":{}})") << "it has no arguments";
}

TEST_F(RequestToolsTest, SchemasOfSeveralToolsKeepTheirReferences) {
    const std::string tool =
        R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": )"
        R"({"to": {"$ref": "#/$defs/town"}}, "$defs": {"town": {"type": "string"}}}}})";
    const auto data = DataSet::open(tool_job(
        chat("a", R"(, "tool_choice": "required", "parallel_tool_calls": false, "response_format": {"type": "text"})"
                  R"(, "tools": [)" +
                      clock_tool + ", " + tool + "]")));
    const std::string schema = data->prompt(0, tokenizer_, long_context).settings->format.texts.front();
    EXPECT_NE(schema.find(R"("to":{"$ref":"#/items/anyOf/1/properties/parameters/$defs/town"})"), std::string::npos)
        << schema;
    EXPECT_TRUE(schema.starts_with(R"({"type":"array","minItems":1,"maxItems":1,)")) << schema;
}

TEST_F(RequestToolsTest, RefusedFields) {
    struct Case {
        std::string fields, shown;
    };
    const std::vector<Case> cases{
        {R"(, "tools": {})", "body.tools: expected an array of tools, got an object of 0"},
        {R"(, "tools": [{"type": "web_search"}])",
         R"(body.tools[0]: expected {"type": "function", "function": {…}}, got an object of 1)"},
        {R"(, "tools": [{"type": "function", "function": {"name": 1}}])",
         "body.tools[0].function: name: expected a string, got 1"},
        {R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}])",
         "body.tools[0].function.parameters: expected a JSON schema, got 1"},
        {R"(, "tool_choice": "auto")", R"(body.tool_choice: expected "none" or null without tools, got "auto")"},
        {offer(R"(, "tool_choice": "any")"),
         R"(body.tool_choice: expected "auto", "none", "required" or a function, got "any")"},
        {offer(R"(, "tool_choice": {"function": {"name": "g"}})"),
         "body.tool_choice.function.name: expected the name of one of the tools, got 'g'"},
        {offer(R"(, "tool_choice": "required", "response_format": {"type": "json_object"})"),
         "body.response_format: expected none beside a tool_choice that demands a call, got one"},
        {R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 18446744073709551615}}}])",
         "body.tools: expected integers of 64 bits, got 18446744073709551615"},
        {R"(, "parallel_tool_calls": 1)", "body.parallel_tool_calls: expected true or false, got 1"},
    };
    std::string lines;
    for (const Case& of : cases) lines += chat("r" + std::to_string(&of - cases.data()), of.fields);
    const auto data = DataSet::open(tool_job(lines));
    for (std::size_t i = 0; i < cases.size(); ++i)
        EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), refusal(i, cases[i].shown));
}

TEST_F(RequestToolsTest, RefusedMessages) {
    struct Case {
        std::string message, shown;
    };
    const std::vector<Case> cases{
        {R"("tool_calls": {})", "tool_calls: expected an array of calls, got an object of 0"},
        {R"("tool_calls": [1])",
         R"(tool_calls[0]: expected {"type": "function", "function": {"name", "arguments"}}, got 1)"},
        {R"("tool_calls": [{"function": {"name": "f", "arguments": 1}}])",
         "tool_calls[0]: function: arguments: expected a string, got 1"},
        {R"("tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}])",
         "tool_calls[0]: function: arguments: expected the text of a JSON object, got '[1]'"},
        {R"("tool_call_id": 1)", "tool_call_id: expected a string, got 1"},
    };
    std::string lines;
    for (const Case& of : cases)
        lines += request("r" + std::to_string(&of - cases.data()), "chat/completions",
                         R"(, "messages": [{"role": "assistant", "content": null, )" + of.message + "}]");
    const auto data = DataSet::open(tool_job(lines + chat("none", R"(, "tools": null)") +
                                             request("echo", "chat/completions",
                                                     R"(, "messages": [{"role": "assistant", "content": "x", )"
                                                     R"("tool_calls": [], "refusal": null, "annotations": []}])")));
    for (std::size_t i = 0; i < cases.size(); ++i)
        EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), refusal(i, "body.messages[0]: " + cases[i].shown));
    EXPECT_EQ(show(*data, 5), "none: <user>Hi");
    EXPECT_EQ(show(*data, 6), "echo: <assistant>x") << "as servers answer";
}

/// As data sets for transformers have them.
TEST_F(RequestToolsTest, ArgumentsMayBeObjects) {
    const std::string messages =
        R"("messages": [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": )"
        R"({"name": "weather", "arguments": {"town": "Ulm", "days": 2}}}, {"function": {"name": "clock"}}]}])";
    const std::string shown = R"(<assistant>(weather {"town": "Ulm", "days": 2})(clock {}))";
    EXPECT_EQ(show(*DataSet::open(tool_job(request("a", "chat/completions", ", " + messages))), 0), "a: " + shown);
    Settings prompts = tool_job("x");
    prompts.task = "prompts";
    prompts.data = write("p.jsonl", R"({"id": "a", )" + messages + "}\n");
    EXPECT_EQ(show(*DataSet::open(prompts), 0), "a: " + shown);
    prompts.column = {"messages=x.m"};
    std::string renamed = messages;
    renamed.replace(renamed.find("messages"), 8, "x.m");
    prompts.data = write("q.jsonl", R"({"id": "a", )" + renamed + R"(, "x": {"m": "another text"}})" + "\n");
    EXPECT_EQ(show(*DataSet::open(prompts), 0), "a: " + shown);
}

TEST_F(RequestToolsTest, ATemplateWithoutToolsIsRefused) {
    const std::string call = R"(, "messages": [{"role": "assistant", "content": "", "tool_calls": )"
                             R"([{"function": {"name": "f", "arguments": "{}"}}]}])";
    const std::string fix = ", got one that does not; name another one as chat-template";
    const std::string no_tools = "tools: expected a chat template that shows them" + fix;
    const std::string no_calls = "messages: expected a chat template that shows tool_calls" + fix;
    for (const std::string name : {"file", "llama2", "llama3", "llama3.1", "qwen2.5"}) {
        Settings blind = tool_job(chat("r0", offer()) + request("r1", "chat/completions", call) + chat("c"));
        blind.chat_template =
            name != "file" ? name
                           : write("blind.jinja", "{{ messages[0].content }}{# tools #}{{ xml_tools }}").string();
        const auto data = DataSet::open(blind);
        EXPECT_EQ(show(*data, 0), refusal(0, no_tools)) << name;
        EXPECT_EQ(show(*data, 1), refusal(1, no_calls)) << name;
        EXPECT_TRUE(show(*data, 2).starts_with("c: ")) << name;
    }
}

/// Some folders have a template for chats with tools.
TEST_F(RequestToolsTest, ChatsWithToolsHaveTheTemplateForThem) {
    Settings listed = tool_job(chat("a", offer()) + chat("b"));
    listed.chat_template = "auto";
    const Json templates{{{"name", "default"}, {"template", "plain"}},
                         {{"name", "tool_use"}, {"template", shows_tools}}};
    write("model/tokenizer_config.json", Json{{"chat_template", templates}}.dump());
    const auto data = DataSet::open(listed);
    EXPECT_TRUE(show(*data, 0).ends_with(R"("clock"}}]<user>Hi)")) << show(*data, 0);
    EXPECT_EQ(show(*data, 1), "b: plain");
    EXPECT_NE(data->fingerprint().find(", tool_use "), std::string::npos);
    fs::remove(listed.model / "tokenizer_config.json");
    write("model/chat_template.jinja", "file");
    write("model/additional_chat_templates/tool_use.jinja", "{{ tools | nosuch }}");
    const auto faulty = DataSet::open(listed);
    EXPECT_NE(show(*faulty, 0).find("(tool_use):1: filter 'nosuch': expected a filter"), std::string::npos)
        << show(*faulty, 0);
    EXPECT_EQ(show(*faulty, 1), "b: file") << "which does not need it";
    EXPECT_EQ(faulty->notices(tokenizer_), std::vector<std::string>{}) << "a first item that fails stops nothing";
}

TEST_F(RequestToolsTest, CallsInAnswersHaveTheFormOfTheApi) {
    const Settings settings =
        tool_job(chat("a", offer()) + chat("b", offer(R"(, "tool_choice": "none")")) +
                 chat("c", offer(R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})")) +
                 chat("d", offer(R"(, "parallel_tool_calls": false)")) + chat("e", offer()) +
                 chat("f", offer(R"(, "tool_choice": "required")")) +
                 chat("g", offer(R"(, "response_format": {"type": "json_object"})")));
    const std::string call = R"(<tool_call>{"name": "clock", "arguments": {}}</tool_call>)";
    const auto item = [](std::int64_t index, const char* id, const std::string& text, const char* reason = "stop") {
        return ResultRecord{
            .key = {index, 0}, .id = id, .text = text, .num_tokens = 3, .finish_reason = reason, .prompt_tokens = 1};
    };
    record({item(0, "a", "Wait. " + call), item(1, "b", call), item(2, "c", R"({"town":"Ulm"})"),
            item(3, "d", call + call), item(4, "e", call + call, "length"),
            item(5, "f", R"([{"name": "weather", "parameters": {"town": "Ulm"}}])"),
            item(6, "g", R"({"name": "clock", "parameters": {}})")});
    const auto lines = answers(settings);
    const auto choice = [&](std::size_t line) { return lines[line]["response"]["body"]["choices"][0]; };
    const auto function = [&](std::size_t line, std::size_t number) {
        const Json made = choice(line)["message"]["tool_calls"][number];
        EXPECT_EQ(made["type"], "function");
        EXPECT_EQ(made["id"].get<std::string>().size(), 9U);
        return made["function"];
    };
    EXPECT_EQ(choice(0)["message"]["content"], "Wait.");
    EXPECT_EQ(function(0, 0), (Json{{"name", "clock"}, {"arguments", "{}"}}));
    EXPECT_EQ(choice(0)["finish_reason"], "tool_calls");
    EXPECT_EQ(choice(1)["message"], (Json{{"role", "assistant"}, {"content", call}}));
    EXPECT_EQ(choice(1)["finish_reason"], "stop");
    EXPECT_EQ(choice(2)["message"]["content"], nullptr);
    EXPECT_EQ(function(2, 0), (Json{{"name", "weather"}, {"arguments", R"({"town":"Ulm"})"}}));
    EXPECT_EQ(choice(2)["finish_reason"], "stop") << "as in OpenAI's API, where the request names the function";
    EXPECT_EQ(choice(3)["message"]["tool_calls"].size(), 1U);
    EXPECT_EQ(choice(4)["message"]["tool_calls"].size(), 2U);
    EXPECT_NE(choice(4)["message"]["tool_calls"][0]["id"], choice(4)["message"]["tool_calls"][1]["id"]);
    EXPECT_EQ(choice(4)["finish_reason"], "length");
    EXPECT_EQ(function(5, 0), (Json{{"name", "weather"}, {"arguments", R"({"town":"Ulm"})"}}));
    EXPECT_EQ(choice(5)["finish_reason"], "tool_calls");
    EXPECT_EQ(choice(6)["message"]["content"], R"({"name": "clock", "parameters": {}})") << "it asked for JSON";
}

TEST_F(RequestToolsTest, CallsInReasoningAreNone) {
    Settings settings = tool_job(chat("a", offer()) + chat("b", offer()));
    settings.model = LONGHAUL_DEMO_MODEL;
    settings.reasoning_end = "</think>";
    const std::string call = R"(<tool_call>{"name": "clock", "arguments": {}}</tool_call>)";
    const auto item = [&](std::int64_t index, const char* id, const std::optional<std::string>& answer) {
        return ResultRecord{.key = {index, 0},
                            .id = id,
                            .text = call + "</think>" + answer.value_or(""),
                            .answer = answer,
                            .has_reasoning = true,
                            .num_tokens = 3,
                            .finish_reason = "stop",
                            .prompt_tokens = 1};
    };
    record({item(0, "a", "Yes. " + call), item(1, "b", std::nullopt)});
    const auto lines = answers(settings);
    const auto message = [&](std::size_t line) { return lines[line]["response"]["body"]["choices"][0]["message"]; };
    EXPECT_EQ(message(0)["content"], "Yes.");
    EXPECT_EQ(message(0)["tool_calls"].size(), 1U);
    EXPECT_EQ(message(1)["content"], nullptr);
    EXPECT_FALSE(message(1).contains("tool_calls"));
}

}  // namespace
}  // namespace longhaul::runner
