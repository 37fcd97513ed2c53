// Structured outputs as users ask for them: keys of a job, options of an item, fields of a batch request.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/runner/dataset_fixture.hpp"
#include "tests/runner/settings_fixture.hpp"

namespace longhaul::runner {
namespace {

using engine::OutputFormat;
using Kind = OutputFormat::Kind;
using FormatTexts = std::vector<std::string>;

class OutputFormatKeys : public DataSetTest {
  protected:
    /// The settings of a job file in the test's folder with these lines.
    Settings of_lines(const std::vector<std::pair<std::string, std::string>>& lines,
                      const std::vector<Assignment>& command_line = {}) {
        std::vector<Assignment> file = whole_job;
        for (const auto& [key, value] : lines) file.push_back({key, value, "j.cfg:9"});
        return parse_settings(file, command_line, folder_ / "j.cfg");
    }
};

TEST_F(OutputFormatKeys, AreOneFormat) {
    EXPECT_EQ(of_lines({}).format, OutputFormat());
    EXPECT_EQ(of_lines({{"regex", "[a-z]+\\d{2}"}}).format, (OutputFormat{Kind::regex, {"[a-z]+\\d{2}"}}));
    EXPECT_EQ(of_lines({{"regex", "\"a \\\\d # \""}}).format, (OutputFormat{Kind::regex, {"a \\d # "}}));
    EXPECT_EQ(of_lines({{"choice", "yes"}, {"choice", "\" no\""}, {"choice", "a\\nb"}}).format,
              (OutputFormat{Kind::choice, {"yes", " no", "a\nb"}}));
    EXPECT_EQ(of_lines({{"json-schema", R"({"type": "object", "properties": {"z": {}, "a": {}}})"}}).format,
              (OutputFormat{Kind::json_schema, {R"({"type":"object","properties":{"z":{},"a":{}}})"}}))
        << "members in their order";
    EXPECT_EQ(of_lines({{"choice", "yes"}}, on_command_line("choice", "no")).format,
              (OutputFormat{Kind::choice, {"no"}}));
    EXPECT_EQ(of_lines({{"grammar", "root ::= \"a\" # the only one"}}).format,
              (OutputFormat{Kind::gbnf, {"root ::= \"a\" # the only one"}}));
    write("list.gbnf", "# lists\nroot ::= \"a\"+\n");
    EXPECT_EQ(of_lines({{"grammar", "list.gbnf"}}).format, (OutputFormat{Kind::gbnf, {"# lists\nroot ::= \"a\"+\n"}}));
    EXPECT_EQ(of_lines({{"regex", "a"}}, on_command_line("regex", "")).format, OutputFormat());
    EXPECT_EQ(of_lines({{"regex", "a"}}, {{"regex", "", "command line"}, {"choice", "b", "command line"}}).format,
              (OutputFormat{Kind::choice, {"b"}}));
}

TEST_F(OutputFormatKeys, ReasoningMayComeBefore) {
    const Settings settings =
        of_lines({{"reasoning-end", "</think>"}, {"max-reasoning-tokens", "50"}, {"choice", "a"}});
    EXPECT_EQ(settings.reasoning_end, "</think>");
    EXPECT_EQ(settings.max_reasoning_tokens, 50);
    EXPECT_EQ(of_lines({{"reasoning-end", R"("\n\nSo: ")"}}).reasoning_end, "\n\nSo: ");
    EXPECT_EQ(of_lines({{"reasoning-end", "</think>"}}, on_command_line("reasoning-end", "")).reasoning_end, "");
    // Items: their own end and limit, or none.
    const auto path =
        write("p.jsonl", R"({"prompt": "x", "options": {"max-reasoning-tokens": 7}})"
                         "\n"
                         R"({"prompt": "x", "options": {"reasoning-end": ""}})"
                         "\n"
                         R"({"prompt": "x", "options": {"reasoning-end": "so", "max-reasoning-tokens": 0}})"
                         "\n"
                         R"({"prompt": "x", "options": {"reasoning-end": "", "max-reasoning-tokens": 3}})");
    Settings job = settings;
    job.task = "prompts";
    job.data = path;
    const auto data = DataSet::open(job);
    const auto item = [&](std::int64_t index) {
        const Prompt prompt = data->prompt(index, tokenizer_, long_context);
        EXPECT_EQ(prompt.error, "");
        return prompt.settings ? *prompt.settings : Settings();
    };
    EXPECT_EQ(item(0).reasoning_end, "</think>");
    EXPECT_EQ(item(0).max_reasoning_tokens, 7);
    EXPECT_EQ(item(1).reasoning_end, "");
    EXPECT_EQ(item(1).max_reasoning_tokens, 0) << "the job's limit is for its own end";
    EXPECT_EQ(item(2).reasoning_end, "so");
    EXPECT_EQ(item(2).max_reasoning_tokens, 0);
    EXPECT_NE(show(*data, 3).find("options.max-reasoning-tokens: expected 0 without reasoning-end, got 3"),
              std::string::npos);
}

TEST_F(OutputFormatKeys, ASchemaMayLieBesideTheJobFile) {
    write("answer.json", "{\n  \"properties\": {\"b\": {\"const\": \"a # \\\"b\\\"\"}, \"a\": true}\n}\n");
    const Settings settings = of_lines({{"json-schema", "answer.json"}});
    const std::string text = R"({"properties":{"b":{"const":"a # \"b\""},"a":true}})";
    EXPECT_EQ(settings.format, (OutputFormat{Kind::json_schema, {text}}));
    // The run's job.cfg has the schema itself, on a line that is read as it was written.
    write("resolved.cfg", format_settings(settings));
    EXPECT_EQ(load_settings(folder_ / "resolved.cfg", {}).format, settings.format);
    write("answer.json", "{}");
    EXPECT_EQ(load_settings(folder_ / "resolved.cfg", {}).format, settings.format);
}

TEST_F(OutputFormatKeys, ValuesAreReadAsTheyAreWritten) {
    for (const OutputFormat& format : {OutputFormat{Kind::regex, {" a#b\\\\ \"x\" "}},
                                       {Kind::regex, {"\"quoted\""}},
                                       {Kind::regex, {"\\n # \\d"}},
                                       {Kind::regex, {"a\tb\nc"}},
                                       {Kind::gbnf, {"# none\nroot ::= \"\\n\" | x\r\n\tx ::= [\"\\\\]\n"}},
                                       {Kind::choice, {"#1", "\"", "a\\nb", "\n", " "}},
                                       {Kind::json_schema, {R"({"const":" # \\ \"x\""})"}}}) {
        Settings settings = of_lines({});
        settings.format = format;
        write("resolved.cfg", format_settings(settings));
        EXPECT_EQ(load_settings(folder_ / "resolved.cfg", {}).format, format);
    }
}

TEST_F(OutputFormatKeys, DecideTheText) {
    const auto identity = [&](const std::string& key, const std::string& value) {
        std::string found;
        for (const Assignment& entry : identity_of(of_lines({{key, value}})))
            if (entry.key == key) found += entry.value + "\n";
        return found;
    };
    EXPECT_EQ(identity("regex", "a+"), "a+\n");
    EXPECT_EQ(identity("json-schema", "{ \"type\":\"null\" }"), "{\"type\":\"null\"}\n");
    EXPECT_EQ(identity("choice", ""), "");
    write("a.gbnf", "root ::= \"a\"");
    EXPECT_EQ(identity("grammar", "a.gbnf"), "root ::= \"a\"\n") << "the file's text, not its name";
}

TEST_F(OutputFormatKeys, BadOnesAreRefused) {
    write("bad.json", "{\"type\": }");
    std::string numbers = "1e9";
    for (int i = 0; i < 40'000; ++i) numbers += ",1e9";
    write("long.json", "{\"examples\": [" + numbers + "]}");
    for (
        const auto& [key, value, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
            {"regex", "a(?!b)",
             "regex: expected a regular expression, got 'a(?!b)'; at byte 3: look-around and flags are not supported"},
            {"json-schema", R"({"type": "array", "uniqueItems": true})",
             R"(json-schema: expected a JSON schema that an output can follow, got '{"type": "array", "uniqueItems": true}'; uniqueItems is not supported here)"},
            {"json-schema", "{\"a\"",
             "json-schema: expected a JSON schema, got '{\"a\"'; it is not JSON: a@4: expected ':', got end of input"},
            {"json-schema", "bad.json",
             "json-schema: expected a JSON schema, got 'bad.json'; it is not JSON: type@9: expected '[', '{', or a "
             "literal, got '}'"},
            {"json-schema", "long.json", "json-schema: expected at most 256 KiB on one line, got 'long.json'"},
            {"grammar", "root ::= x", "grammar: expected a grammar in GBNF, got 'root ::= x'; line 1: no rule x"},
            {"grammar", "bad.json",
             "grammar: expected a grammar in GBNF, got 'bad.json'; line 1: expected the name of "
             "a rule"},
            {"choice", "\"\"", "choice: expected a text of at least one character, got '\"\"'"}})
        EXPECT_EQ(runner::message_of([&, key = key, value = value] {
                      of_lines({{key, value}});
                  }),
                  "j.cfg:9: " + message);
    EXPECT_NE(runner::message_of([&] {
                  of_lines({{"json-schema", "none.json"}});
              }).find("json-schema: expected a JSON schema, or a file that holds one, got 'none.json'; "),
              std::string::npos);
    EXPECT_EQ(runner::message_of([&] {
                  of_lines({{"regex", "a"}}, on_command_line("choice", "b"));
              }),
              "command line: choice: expected one of json-schema, regex, choice and grammar, got 'b'; an empty value "
              "unsets another");
}

TEST_F(OutputFormatKeys, OptionsOfAnItemReplaceTheJobs) {
    write("secret.json", "{}");
    Settings job = settings(
        "prompts",
        write(
            "p.jsonl",
            R"({"prompt": "x", "options": {"json-schema": {"properties": {"z": {"type": "null"}, "a": {"type": "null"}}}}})"
            "\n"
            R"({"prompt": "x", "options": {"json-schema": "{\"const\": 1}"}})"
            "\n"
            R"({"prompt": "x", "options": {"regex": "a\\d"}})"
            "\n"
            R"({"prompt": "x", "options": {"choice": ["a", "b\n"]}})"
            "\n"
            R"({"prompt": "x", "options": {"choice": []}})"
            "\n"
            R"({"prompt": "x", "options": {"temperature": 0}})"
            "\n"
            R"({"prompt": "x", "options": {"regex": "a", "choice": ["b"]}})"
            "\n"
            R"({"prompt": "x", "options": {"json-schema": "secret.json"}})"
            "\n"
            R"({"prompt": "x", "options": {"json-schema": 1}})"
            "\n"
            R"({"prompt": "x", "options": {"regex": ["a", "b"]}})"
            "\n"
            R"({"prompt": "x", "options": {"regex": ""}})"
            "\n"
            R"({"prompt": "x", "options": {"grammar": "root ::= [a-c]\n"}})"
            "\n"
            R"({"prompt": "x", "options": {"grammar": "secret.gbnf"}})"
            "\n"));
    job.format = {Kind::choice, {"of the job"}};
    const auto data = DataSet::open(job);
    const auto of = [&](std::int64_t index) { return data->prompt(index, tokenizer_, long_context).settings->format; };
    EXPECT_EQ(of(0),
              (OutputFormat{Kind::json_schema, {R"({"properties":{"z":{"type":"null"},"a":{"type":"null"}}})"}}));
    EXPECT_EQ(of(1), (OutputFormat{Kind::json_schema, {"{\"const\":1}"}}));
    EXPECT_EQ(of(2), (OutputFormat{Kind::regex, {"a\\d"}}));
    EXPECT_EQ(of(3), (OutputFormat{Kind::choice, {"a", "b\n"}}));
    EXPECT_EQ(show(*data, 4), "5! p.jsonl:5: options.choice: expected at least one text, got none");
    EXPECT_EQ(of(5), job.format);
    EXPECT_EQ(show(*data, 6), "7! p.jsonl:7: options.regex: expected one format, got a second one");
    EXPECT_EQ(show(*data, 7), "8! p.jsonl:8: options.json-schema: expected a JSON schema, got \"secret.json\"")
        << "data names no files";
    EXPECT_EQ(show(*data, 8), "9! p.jsonl:9: options.json-schema: expected a string, got 1");
    EXPECT_EQ(show(*data, 9), "10! p.jsonl:10: options.regex: expected a string, got an array of 2");
    EXPECT_EQ(of(10), OutputFormat()) << "an empty one is none";
    EXPECT_EQ(of(11), (OutputFormat{Kind::gbnf, {"root ::= [a-c]\n"}}));
    EXPECT_EQ(show(*data, 12), "13! p.jsonl:13: options.grammar: expected a grammar in GBNF, got \"secret.gbnf\"");
    // A schema keeps its order also where the column has another name.
    job = settings(
        "prompts",
        write(
            "q.jsonl",
            R"({"prompt": "x", "a.b": 1, "how": {"o": {"json-schema": { "properties" : {"z": {}, "a\u0062": true}} }}})"
            "\n"));
    job.column = {"options=how.o"};
    EXPECT_EQ(DataSet::open(job)->prompt(0, tokenizer_, long_context).settings->format,
              (OutputFormat{Kind::json_schema, {R"({"properties":{"z":{},"ab":true}})"}}));
}

TEST_F(OutputFormatKeys, RequestsHaveOpenAisAndVllmsFields) {
    const std::string schema =
        R"({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}})";
    const OutputFormat in_order{Kind::json_schema,
                                {R"({"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}})"}};
    const OutputFormat any_object{Kind::json_schema, {R"({"type":"object"})"}};
    struct Case {
        std::string field;
        OutputFormat format;
        std::string fault;
    };
    const std::vector<Case> cases{
        {R"("response_format": {"type": "text"})", {}, ""},
        {R"("response_format": {"type": "json_object"})", any_object, ""},
        {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": )" +
             schema + "}}",
         in_order, ""},
        {R"("guided_json": )" + schema, in_order, ""},
        {R"("guided_regex": "\\d+")", {Kind::regex, {"\\d+"}}, ""},
        {R"("guided_choice": ["a", "b"])", {Kind::choice, {"a", "b"}}, ""},
        {R"("structured_outputs": {"json": )" + schema + R"(, "regex": null})", in_order, ""},
        {R"("structured_outputs": {"json_object": true})", any_object, ""},
        {R"("structured_outputs": {"regex": "a"})", {Kind::regex, {"a"}}, ""},
        {R"("structured_outputs": {"choice": ["a"], "json_object": false})", {Kind::choice, {"a"}}, ""},
        {R"("guided_choice": null)", {}, ""},
        {R"("response_format": {"type": "grammar"})",
         {},
         R"(response_format.type: expected "text", "json_object" or "json_schema", got "grammar")"},
        {R"("response_format": "json")", {}, R"(response_format: expected an object, got "json")"},
        {R"("response_format": {"type": "json_schema", "schema": {}})",
         {},
         "response_format.json_schema.schema: expected a JSON schema, got nothing"},
        {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}})",
         {},
         R"(response_format.json_schema.schema: expected a JSON schema that an output can follow, got "{"not": {}}"; not is not supported here)"},
        {R"("guided_grammar": "root ::= \"a\"?")", {Kind::gbnf, {"root ::= \"a\"?"}}, ""},
        {R"("structured_outputs": {"grammar": "root ::= \"a\"+"})", {Kind::gbnf, {"root ::= \"a\"+"}}, ""},
        {R"("structured_outputs": {"grammar": "start: x"})",
         {},
         R"(structured_outputs.grammar: expected a grammar in GBNF, got "start: x")"},
        {R"("structured_outputs": {"structural_tag": "x"})",
         {},
         R"(structured_outputs.structural_tag: expected json, json_object, regex, choice or grammar, got "x"; others are not supported)"},
        {R"("structured_outputs": [])", {}, "structured_outputs: expected an object, got an array of 0"},
        {R"("guided_regex": "(")",
         {},
         R"(guided_regex: expected a regular expression, got "("; at byte 1: '(' without ')')"},
        {R"("guided_regex": "a", "guided_choice": ["b"])", {}, "guided_regex: expected one format, got a second one"}};
    std::string lines;
    for (const Case& one : cases)
        lines += R"({"custom_id": "r)" + std::to_string(&one - cases.data()) +
                 R"(", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", )" + one.field + "}}\n";
    const auto data = DataSet::open(settings("openai-batch", write("b.jsonl", lines)));
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const Prompt prompt = data->prompt(static_cast<std::int64_t>(i), tokenizer_, long_context);
        if (cases[i].fault.empty()) {
            ASSERT_EQ(prompt.error, "") << cases[i].field;
            EXPECT_EQ(prompt.settings->format, cases[i].format) << cases[i].field;
        } else {
            EXPECT_TRUE(prompt.error.ends_with("b.jsonl:" + std::to_string(i + 1) + ": body." + cases[i].fault))
                << prompt.error;
        }
    }
}

}  // namespace
}  // namespace longhaul::runner
