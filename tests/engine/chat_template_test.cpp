// Chat templates: the built-in ones (expected strings as transformers 5.23 renders the published ones, see
// tests/tools/compare_chat_templates.py), and where a model's own comes from.
#include "engine/tokenizer/chat_template.hpp"

#include <gtest/gtest.h>

#include "tests/engine/tokenizer_folder.hpp"

namespace longhaul::engine {
namespace {

using Messages = std::vector<ChatMessage>;

const Messages one{{"user", "Hi"}};
const Messages several{
    {"system", " Be brief. "}, {"user", " Hi\n"}, {"assistant", "Hello. "}, {"user", "\tBye\xC2\xA0"}};

std::string render(const std::string& name, const Messages& messages,
                   const TokenizerFolder& folder = TokenizerFolder()) {
    return ChatTemplate::load(name, folder.path()).render(messages, "p.jsonl:1");
}

std::string message(const std::function<void()>& action, const TokenizerFolder* folder = nullptr) {
    try {
        action();
    } catch (const InputError& error) {
        std::string line = error.what();
        const std::string prefix = folder != nullptr ? folder->path().string() : "";
        if (!prefix.empty() && line.starts_with(prefix)) line.replace(0, prefix.size(), "MODEL");
        return line;
    }
    return "(no error)";
}

TEST(ChatTemplate, Llama2) {
    EXPECT_EQ(render("llama2", one), "<s>[INST] Hi [/INST]");
    EXPECT_EQ(render("llama2", several),
              "<s>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hi [/INST] Hello. </s><s>[INST] Bye [/INST]");
    EXPECT_EQ(render("llama2", {{"user", "Hi"}, {"assistant", "Yes"}}), "<s>[INST] Hi [/INST] Yes </s>");
    EXPECT_EQ(
        message([] {
            render("llama2", {{"user", "a"}, {"user", "b"}});
        }),
        "p.jsonl:1: messages: expected messages that the chat template accepts, got \"after a system message the roles "
        "must alternate: user, assistant, user, ...\"");
    EXPECT_NE(message([] { render("llama2", {{"system", "a"}, {"assistant", "b"}}); }), "(no error)");
    EXPECT_EQ(
        message([] {
            render("llama2", {{"usr", "a"}});
        }),
        "p.jsonl:1: messages: expected messages that the chat template accepts, got \"the roles are system (first), "
        "user and assistant, not usr\"");
}

TEST(ChatTemplate, Llama3) {
    EXPECT_EQ(render("llama3", one),
              "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
    EXPECT_EQ(render("llama3", several),
              "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, Llama31HasItsDates) {
    const std::string head =
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n";
    EXPECT_EQ(render("llama3.1", one), head +
                                           "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                                           "<|start_header_id|>assistant<|end_header_id|>\n\n");
    EXPECT_EQ(render("llama3.1", {{"system", " Be brief. "}, {"user", "Hi"}}),
              head +
                  "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, Qwen25) {
    EXPECT_EQ(render("qwen2.5", one),
              "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(render("qwen2.5", several),
              "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
              "<|im_start|>assistant\nHello. <|im_end|>\n<|im_start|>user\n\tBye\xC2\xA0<|im_end|>\n"
              "<|im_start|>assistant\n");
}

TEST(ChatTemplate, BadMessages) {
    EXPECT_EQ(message([] { render("llama3", {}); }), "p.jsonl:1: messages: expected at least one message, got none");
    EXPECT_EQ(
        message([] { render("chatml", one); }),
        "chat-template: expected auto, one of llama2, llama3, llama3.1, qwen2.5, or a .jinja file, got \"chatml\"");
}

TEST(ChatTemplate, TokensOfTheFolder) {
    TokenizerFolder folder;
    folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<B>"}, "eos_token": "<E>"})");
    EXPECT_EQ(render("llama2", {{"user", "Hi"}, {"assistant", "Yes"}}, folder), "<B>[INST] Hi [/INST] Yes <E>");
    EXPECT_TRUE(render("llama3", one, folder).starts_with("<B><|start_header_id|>"));
    EXPECT_EQ(ChatTemplate::load("llama3", folder.path()).identity(), "llama3 (<B>)");
}

/// Special tokens in the rendered text are encoded as tokens, and no BOS token is prepended.
TEST(ChatTemplate, TokensOfTheText) {
    const auto ids = [](const std::string& kind, const std::string& name) {
        const TokenizerFolder folder(kind);
        return folder.load()->encode(render(name, one, folder));
    };
    const std::vector<std::int32_t> llama3 = ids("llama3", "llama3");
    EXPECT_EQ(llama3.front(), 1400);
    EXPECT_EQ(std::count(llama3.begin(), llama3.end(), 1400), 1);
    EXPECT_EQ(std::count(llama3.begin(), llama3.end(), 1402), 1) << "<|eot_id|>";
    const std::vector<std::int32_t> qwen = ids("qwen2", "qwen2.5");
    EXPECT_EQ(std::count(qwen.begin(), qwen.end(), 1301), 3) << "<|im_start|>";
    EXPECT_EQ(std::count(qwen.begin(), qwen.end(), 1302), 2) << "<|im_end|>";
    const std::vector<std::int32_t> llama2 = ids("llama2", "llama2");
    EXPECT_EQ(llama2.front(), 1);
    EXPECT_EQ(std::count(llama2.begin(), llama2.end(), 1), 1);
}

// --- a model's own template

std::string identity(const TokenizerFolder& folder, ChatOptions options = {}) {
    return ChatTemplate::load("auto", folder.path(), std::move(options)).identity();
}

TEST(ChatTemplate, SeesWhatTransformersPasses) {
    const TokenizerFolder folder;
    folder.write(
        "chat_template.jinja",
        "{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}|{{ pad_token }}|{{ tools }}|{{ documents }}|"
        "{{ add_generation_prompt }}|{{ messages }}|{{ thinking }}|{{ strftime_now('%F') }}");
    folder.write("tokenizer_config.json",
                 R"({"bos_token": {"content": "<B>"}, "eos_token": "<E>", "unk_token": null})");
    folder.write("special_tokens_map.json", R"({"bos_token": "<other>", "pad_token": "<P>"})");
    EXPECT_EQ(render("auto", one, folder),
              "<B>|<E>|False|<P>|None|None|True|[{'role': 'user', 'content': 'Hi'}]||2024-07-26");
    const ChatOptions options{
        .variables = {parse_template_variable("thinking=true"), parse_template_variable("tools=[1]"),
                      parse_template_variable("bos_token=text")},
        .today = {2025, 1, 2}};
    const Messages parts{{"tool", "", {"a", "b"}}};
    EXPECT_EQ(ChatTemplate::load("auto", folder.path(), options).render(parts, "p"),
              "text|<E>|False|<P>|[1]|None|True|[{'role': 'tool', 'content': [{'type': 'text', 'text': 'a'}, {'type': "
              "'text', 'text': 'b'}]}]|True|2025-01-02");
}

TEST(ChatTemplate, WhereAModelHasIt) {
    const TokenizerFolder folder;
    const auto text = [&] { return render("auto", one, folder); };
    EXPECT_EQ(message(text, &folder),
              "MODEL: chat_template: expected a model with a chat template, got none; name one of llama2, llama3, "
              "llama3.1, qwen2.5, or a .jinja file, as chat-template");
    folder.write("tokenizer_config.json", json_text(Json{{"chat_template", "a{{ messages[0].content }}"}}));
    EXPECT_EQ(text(), "aHi");
    const Json list{{{"name", "tool_use"}, {"template", "tool"}}, {{"name", "default"}, {"template", "plain"}}};
    folder.write("tokenizer_config.json", json_text(Json{{"chat_template", list}}));
    EXPECT_EQ(text(), "plain");
    const ChatOptions tools{.variables = {parse_template_variable("tools=[]")}};
    EXPECT_EQ(ChatTemplate::load("auto", folder.path(), tools).render(one, "p"), "tool");
    folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
    EXPECT_EQ(
        message(text, &folder),
        "MODEL/tokenizer_config.json: chat_template: expected a template named \"default\", got none of that name");
    EXPECT_EQ(ChatTemplate::load("llama3", folder.path()).identity(), "llama3")
        << "named: the folder's does not matter";
    folder.write("chat_template.jinja", "file");
    folder.write("tokenizer_config.json", R"({"chat_template": "x"})");
    EXPECT_EQ(text(), "file") << "the file of its own comes first";
    EXPECT_EQ(render((folder.path() / "chat_template.jinja").string(), one), "file") << "a path";
    folder.write("tokenizer_config.json", R"({"chat_template": 7})");
    EXPECT_NE(message(text, &folder), "(no error)");
}

TEST(ChatTemplate, FaultsNameTheTemplate) {
    const TokenizerFolder folder;
    folder.write("tokenizer_config.json", R"({"chat_template": "\n{{ messages|nosuch }}"})");
    const auto text = [&] { render("auto", one, folder); };
    EXPECT_EQ(
        message(text, &folder),
        "MODEL/tokenizer_config.json: chat_template:2: filter 'nosuch': expected a filter of chat templates, got an "
        "unknown one");
    folder.write("chat_template.jinja", "{{ tools.x }}");
    EXPECT_EQ(message(text, &folder), "(no error)") << "none has no attributes, but is defined";
    folder.write("chat_template.jinja", "{{ tool.x }}");
    EXPECT_EQ(message(text, &folder),
              "MODEL/chat_template.jinja:1: attribute 'x': expected a defined value, got variable 'tool', which is "
              "undefined");
    EXPECT_EQ(message([] { render("none/such.jinja", one); }),
              "none/such.jinja: expected a readable file, got No such file or directory");
}

/// Runs record the identity: it is stable, and another template or another token gives another one.
TEST(ChatTemplate, Identity) {
    const TokenizerFolder folder;
    folder.write("chat_template.jinja", "a");
    EXPECT_EQ(identity(folder), "jinja e6c632b61e964e1f");
    folder.write("tokenizer_config.json", R"({"bos_token": "<B>"})");
    const std::string with_token = identity(folder);
    EXPECT_NE(with_token, "jinja e6c632b61e964e1f");
    folder.write("chat_template.jinja", "b");
    EXPECT_NE(identity(folder), with_token);
    // The published template of Qwen2.5 is the built-in one for chats without tools.
    const std::filesystem::path published =
        std::filesystem::path(LONGHAUL_TEST_DATA) / "jinja/templates/Qwen-Qwen2.5-7B-Instruct.jinja";
    folder.write("chat_template.jinja", read_file(published, 1 << 20));
    EXPECT_EQ(identity(folder), "qwen2.5");
    EXPECT_EQ(render("auto", several, folder), render("qwen2.5", several));
    EXPECT_TRUE(identity(folder, {.variables = {parse_template_variable("tools=[]")}}).starts_with("jinja "));
}

TEST(ChatTemplate, VariablesAndDates) {
    const auto value = [](const char* text) { return parse_template_variable(text).second; };
    EXPECT_EQ(parse_template_variable("enable_thinking=false").first, "enable_thinking");
    EXPECT_TRUE(value("a=false").is(jinja::Kind::boolean));
    EXPECT_TRUE(value("a=[1, {\"b\": null}]").is(jinja::Kind::list));
    EXPECT_EQ(value("a=low").bytes(), "low");
    EXPECT_EQ(value("a=\"1\"").bytes(), "1");
    EXPECT_EQ(value("a=x=y").bytes(), "x=y");
    EXPECT_EQ(value("a=").bytes(), "");
    for (const char* bad : {"", "a", "=1", "1a=2", "a b=1", "messages=1", "add_generation_prompt=false"})
        EXPECT_THROW(parse_template_variable(bad), InputError) << bad;
    EXPECT_EQ(parse_template_date("2024-02-29"), (jinja::Date{2024, 2, 29}));
    for (const char* bad : {"", "2024-7-26", "2023-02-29", "2024-13-01", "26 Jul 2024", "2024-07-2x", "0000-01-01"})
        EXPECT_FALSE(parse_template_date(bad)) << bad;
}

}  // namespace
}  // namespace longhaul::engine
