// Chat templates: renders the published ones (expected strings as transformers 5.23 renders them, see
// tests/tools/compare_chat_templates.py) and recognises a model's own.
#include "engine/tokenizer/chat_template.hpp"

#include <gtest/gtest.h>

#include "engine/tokenizer/jinja_form.hpp"
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
        "p.jsonl:1: messages: expected roles that alternate: user, assistant, user, ... (template llama2), got user "
        "as message 2");
    EXPECT_EQ(message([] {
                  render("llama2", {{"system", "a"}, {"assistant", "b"}});
              }),
              "p.jsonl:1: messages: expected roles that alternate: user, assistant, user, ... (template llama2), got "
              "assistant as message 2");
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
    EXPECT_EQ(message([] {
                  render("llama3", {{"tool", "x"}});
              }),
              "p.jsonl:1: role: expected system, user or assistant, got \"tool\"");
    EXPECT_EQ(message([] { render("chatml", one); }),
              "chat-template: expected auto or one of llama2, llama3, llama3.1, qwen2.5, got \"chatml\"");
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

const std::string llama3_jinja =
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// The relevant parts of the template of Llama 3.1 (and 3.2), with stand-ins for its tool handling.
const std::string llama31_jinja = R"({{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}

{#- The system message goes into its place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {{- "tools" }}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- "a call" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

const std::string qwen_jinja = R"({%- if tools %}
    {{- 'tools' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a "helpful" assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- 'a call' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

const std::string llama2_jinja =
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% "
    "endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";

std::string own_name(const std::string& jinja) {
    const TokenizerFolder folder;
    folder.write("chat_template.jinja", jinja);
    const auto found = ChatTemplate::find(folder.path());
    return found ? found->name() : "none";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(ChatTemplate, RecognisesTheKnownOnesInAnyLayout) {
    EXPECT_EQ(own_name(llama2_jinja), "llama2");
    EXPECT_EQ(own_name(llama3_jinja), "llama3");
    EXPECT_EQ(own_name(llama31_jinja), "llama3.1");
    EXPECT_EQ(own_name(qwen_jinja), "qwen2.5");
    EXPECT_EQ(own_name(replaced(llama3_jinja, "{% for", "{# turns #}\n  {%- for")), "llama3");
    EXPECT_EQ(own_name(replaced(llama3_jinja, "\n\n'+", "\\n\\n' +")), "llama3");
    EXPECT_EQ(
        own_name(replaced(llama2_jinja, "{% elif message['role'] == 'assistant'",
                          "{% elif message['role'] == 'system' %}{{ 'x' }}{% elif message['role'] == 'assistant'")),
        "llama2");
}

TEST(ChatTemplate, RefusesWhatWouldRenderOtherwise) {
    EXPECT_EQ(own_name(replaced(llama3_jinja, " | trim", "")), "none");
    EXPECT_EQ(own_name(replaced(llama3_jinja, "{% for", "x{% for")), "none");
    EXPECT_EQ(own_name(replaced(llama3_jinja, "{% for", " {% for")), "none") << "this blank is part of the text";
    EXPECT_EQ(own_name(replaced(llama3_jinja, "<|end_header_id|>\n\n", "<|end_header_id|>\n")), "none");
    EXPECT_EQ(own_name(llama3_jinja + "{{ 'Sure!' }}"), "none");
    EXPECT_EQ(own_name(replaced(llama31_jinja, "\"26 Jul 2024\"", "\"26 July 2024\"")), "none");
    EXPECT_EQ(own_name(replaced(llama31_jinja, "system_message = \"\"", "system_message = \"Think.\"")), "none");
    EXPECT_EQ(own_name(replaced(llama31_jinja, "{{- system_message }}", "{{- system_message }}{{ 'Think.' }}")),
              "none");
    EXPECT_EQ(own_name(replaced(llama31_jinja, "{%- if not date_string", "{{ 'Hello' }}{%- if not date_string")),
              "none");
    EXPECT_EQ(own_name(replaced(llama31_jinja, "{#- The system", "x{#- The system")), "none");
    EXPECT_EQ(own_name(replaced(qwen_jinja, "message.content + ", "message.content | trim + ")), "none");
    EXPECT_EQ(own_name(replaced(llama2_jinja, "{% else %}",
                                "{% elif true %}{% set system_message = 'Be good.' %}{% else %}")),
              "none");
    EXPECT_EQ(own_name("{{ unfinished"), "none");
    EXPECT_EQ(own_name("{%"), "none");
    EXPECT_EQ(own_name(""), "none");
}

TEST(ChatTemplate, DefaultSystemMessageIsTheModels) {
    const TokenizerFolder folder;
    folder.write("chat_template.jinja", qwen_jinja);
    EXPECT_EQ(render("auto", one, folder),
              "<|im_start|>system\nYou are a \"helpful\" assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\n");
    EXPECT_EQ(ChatTemplate::load("auto", folder.path()).identity(), "qwen2.5 (You are a \"helpful\" assistant.)");
    EXPECT_EQ(ChatTemplate::load("qwen2.5", folder.path()).identity(), "qwen2.5");
    std::string longer(qwen_jinja);
    const std::string word = "helpful";
    for (std::size_t at = 0; (at = longer.find(word, at)) != std::string::npos; at += 200)
        longer.replace(at, word.size(), std::string(200, 'a'));
    folder.write("chat_template.jinja", longer);
    EXPECT_EQ(ChatTemplate::load("auto", folder.path()).identity(),
              "qwen2.5 (You are a \"" + std::string(200, 'a') + "\" assistant.)")
        << "whole: two messages may begin alike";
}

TEST(ChatTemplate, WhereAModelHasIt) {
    const TokenizerFolder folder;
    const auto load = [&] { return ChatTemplate::load("auto", folder.path()).name(); };
    EXPECT_EQ(message(load, &folder),
              "MODEL: chat_template: expected a model with a chat template, got none; name one of llama2, llama3, "
              "llama3.1, qwen2.5 as chat-template");
    folder.write("tokenizer_config.json", json_text(Json{{"chat_template", llama3_jinja}}));
    EXPECT_EQ(load(), "llama3");
    const Json list{{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", llama31_jinja}}};
    folder.write("tokenizer_config.json", json_text(Json{{"chat_template", list}}));
    EXPECT_EQ(load(), "llama3.1");
    folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
    EXPECT_EQ(
        message(load, &folder),
        "MODEL/tokenizer_config.json: chat_template: expected a template named \"default\", got none of that name");
    EXPECT_EQ(ChatTemplate::load("llama3", folder.path()).name(), "llama3") << "named: the folder's does not matter";
    folder.write("tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
    EXPECT_EQ(
        message(load, &folder),
        "MODEL/tokenizer_config.json: chat_template: expected one of the chat templates known here (llama2, llama3, "
        "llama3.1, qwen2.5), got another one; name one of llama2, llama3, llama3.1, qwen2.5 as chat-template if it "
        "does the same");
    folder.write("chat_template.jinja", llama2_jinja);
    EXPECT_EQ(load(), "llama2") << "the file of its own comes first";
    folder.write("tokenizer_config.json", R"({"chat_template": 7})");
    EXPECT_NE(message(load, &folder), "(no error)");
}

TEST(JinjaForm, KeepsWhatTheLexerKeeps) {
    EXPECT_EQ(jinja_form("a {%- if x -%} b {{ c }}\n"), "a{%ifx%}b {{c}}");
    EXPECT_EQ(jinja_form("{% if x %}\n  {% endif %}\n"), "{%ifx%}{%endif%}") << "trim_blocks, lstrip_blocks";
    EXPECT_EQ(jinja_form("{% if x +%}\n{%+ endif %}"), "{%ifx%}\n{%endif%}");
    EXPECT_EQ(jinja_form("{{ x }}\n{{ y }} {% z %}"), "{{x}}\n{{y}} {%z%}");
    EXPECT_EQ(jinja_form(R"({{ 'a"\n' + "it's \\" }})"), R"({{"a\"\n"+"it's \\"}})");
    EXPECT_EQ(jinja_form("{{ 'x\n' }}"), R"({{"x\n"}})");
    EXPECT_EQ(jinja_form("{{ '}}' }}{# {{ #}x"), R"({{"}}"}}x)");
    EXPECT_EQ(jinja_form("{% a -%}\n\n  x\r\ny\n\n"), "{%a%}x\ny\n");
    EXPECT_EQ(jinja_form("{{ 'unfinished"), "{{\"unfinished\"}}");
    const auto gaps = match_jinja(jinja_form("{{ a }}one{{ b }}two{{ c }}"), "{{ a }}\x01{{ b }}\x01{{ c }}");
    ASSERT_TRUE(gaps.has_value());
    EXPECT_EQ(*gaps, (std::vector<std::string>{"one", "two"}));
    EXPECT_TRUE(match_jinja("{{a}}{%ifb%}{%endif%}{{c}}", "{{ a }}\x02{{ c }}"));
    EXPECT_FALSE(match_jinja("{{a}}{%ifb%}x{%endif%}{{c}}", "{{ a }}\x02{{ c }}"));
    EXPECT_FALSE(match_jinja("{{a}}x", "{{ a }}"));
    EXPECT_FALSE(match_jinja("{{a}}", "{{ a }}\x01{{ a }}")) << "parts do not overlap";
}

}  // namespace
}  // namespace longhaul::engine
