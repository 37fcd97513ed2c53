// Task openai-batch: requests as records, every field that is refused or accepted, and answers in the API's form.
#include <gtest/gtest.h>

#include <array>

#include "engine/json.hpp"
#include "tests/runner/batch_fixture.hpp"

namespace longhaul::runner {
namespace {

TEST_F(BatchTest, RequestsArePromptsWithTheirOwnSettings) {
    const Settings settings = job(
        completion(
            "a", R"(, "max_tokens": 5, "temperature": 0, "top_p": 0.5, "seed": 18446744073709551615, "stop": "END")") +
        completion(
            "b", R"(, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": true, "stop": ["\n", "#"])") +
        chat("c", R"(, "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 3)") + completion("d"));
    const auto data = DataSet::open(settings);
    const auto of = [&](std::int64_t index) { return *data->prompt(index, tokenizer_, long_context).settings; };
    EXPECT_EQ(show(*data, 0), "a: x");
    EXPECT_EQ(of(0).max_tokens, 5);
    EXPECT_EQ(of(0).temperature, 0);
    EXPECT_EQ(of(0).top_p, 0.5);
    EXPECT_EQ(of(0).seed, 18446744073709551615U);
    EXPECT_EQ(of(0).stop, std::vector<std::string>{"END"});
    EXPECT_EQ(of(1).top_k, 0);
    EXPECT_EQ(of(1).min_p, 0.1);
    EXPECT_EQ(of(1).repetition_penalty, 1.1);
    EXPECT_TRUE(of(1).ignore_eos);
    EXPECT_EQ(of(1).stop, (std::vector<std::string>{"\n", "#"}));
    EXPECT_EQ(of(2).max_tokens, 7);
    EXPECT_EQ(of(2).logprobs, 3);
    EXPECT_TRUE(show(*data, 2).ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
    EXPECT_EQ(of(3), settings) << "what a request does not say is the job's";
    EXPECT_EQ(data->reference(0, tokenizer_), std::nullopt);
    EXPECT_TRUE(data->fingerprint().ends_with(", chat-template qwen2.5"));
}

TEST_F(BatchTest, TextPartsOfAMessageAreJoined) {
    const auto data = DataSet::open(job(request(
        "a", "chat/completions",
        R"(, "messages": [{"role": "user", "name": null, "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}])")));
    EXPECT_NE(show(*data, 0).find("<|im_start|>user\none\ntwo<|im_end|>"), std::string::npos);
}

/// Qwen3's way to ask for an answer without thinking.
TEST_F(BatchTest, RequestsSetVariablesOfTheChatTemplate) {
    Settings settings = job(
        chat("a") + chat("b", R"(, "chat_template_kwargs": {"thinks": false, "level": "low"})") +
        chat("c", R"(, "chat_template_kwargs": {"level": ["x", null]})") +
        chat("d", R"(, "chat_template_kwargs": {})") + chat("e", R"(, "reasoning_effort": "low")") +
        request(
            "f", "chat/completions",
            R"(, "messages": [{"role": "assistant", "content": "x", "reasoning_content": "hm"}, {"role": "assistant", "content": null, "reasoning_content": "so"}])"));
    settings.chat_template =
        write("t.jinja",
              "{{ thinks }} {{ level }}{{ reasoning_effort }}{% for m in messages %} {{ m.content }}{{ "
              "m.reasoning_content }}{% endfor %}")
            .string();
    settings.template_variable = {"thinks=true", "level=high"};
    const auto data = DataSet::open(settings);
    EXPECT_EQ(show(*data, 0), "a: True high Hi");
    EXPECT_EQ(show(*data, 1), "b: False low Hi");
    EXPECT_EQ(show(*data, 2), "c: True ['x', None] Hi");
    EXPECT_EQ(show(*data, 3), "d: True high Hi");
    EXPECT_EQ(show(*data, 4), "e: True highlow Hi");
    EXPECT_EQ(show(*data, 5), "f: True high xhm so");
}

TEST_F(BatchTest, NeutralAndIgnoredFieldsChangeNothing) {
    const std::array fields{R"("n": 1)",
                            R"("n": null)",
                            R"("stream": false)",
                            R"("presence_penalty": 0.0)",
                            R"("frequency_penalty": 0)",
                            R"("logit_bias": {})",
                            R"("best_of": 1)",
                            R"("echo": false)",
                            R"("suffix": "")",
                            R"("tools": [])",
                            R"("tool_choice": "none")",
                            R"("response_format": {"type": "text"})",
                            R"("stop": null)",
                            R"("seed": null)",
                            R"("min_tokens": 0)",
                            R"("skip_special_tokens": true)",
                            R"("include_reasoning": true)",
                            R"("thinking_token_budget": -1)",
                            R"("stop_token_ids": [])",
                            R"("user": "me")",
                            R"("metadata": {"a": "b"})",
                            R"("priority": 3)",
                            R"("unknown": null)",
                            R"("logprobs": null)",
                            R"("add_special_tokens": true)"};
    std::string lines;
    for (std::size_t i = 0; i < fields.size(); ++i)
        lines += completion(std::to_string(i), ", " + std::string(fields[i]));
    const Settings settings = job(lines);
    const auto data = DataSet::open(settings);
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const Prompt prompt = data->prompt(static_cast<std::int64_t>(i), tokenizer_, long_context);
        ASSERT_EQ(prompt.error, "") << fields[i];
        EXPECT_EQ(*prompt.settings, settings) << fields[i];
    }
}

/// Each fails its own item, with a line that names file, line and field.
TEST_F(BatchTest, RefusedFields) {
    const std::string other = "; other values are not supported";
    const std::string list = "; jobs/README.md lists the fields of a request";
    struct Case {
        const char* fields;
        std::string shown;
    };
    const std::vector<Case> of_completions{
        {R"("n": 2)",
         "n: expected 1, the job's samples, got 2; samples = N in the job gives N choices for every request"},
        {R"("stream": true)", "stream: expected false or null, got true" + other},
        {R"("presence_penalty": 2.5)", "presence_penalty: expected a number from -2 to 2, got 2.5"},
        {R"("frequency_penalty": "1")", "frequency_penalty: expected a number, got \"1\""},
        {R"("logit_bias": {"5": 101})", "logit_bias.5: expected a number from -100 to 100, got 101"},
        {R"("logit_bias": {"x": 1})", "logit_bias.x: expected an integer from 0 to 2147483647, got 1"},
        {R"("logit_bias": [5])", "logit_bias: expected an object of numbers by token id, got an array of 1"},
        {R"("best_of": 2)", "best_of: expected 1 or null, got 2" + other},
        {R"("echo": true)", "echo: expected false or null, got true" + other},
        {R"("suffix": "y")", "suffix: expected \"\" or null, got \"y\"" + other},
        {R"("min_tokens": -1)", "min_tokens: expected an integer from 0 to 2147483647, got -1"},
        {R"("stop_token_ids": ["a"])", "stop_token_ids: expected a number, got \"a\""},
        {R"("stop_token_ids": [-1])", "stop_token_ids: expected an integer from 0 to 2147483647, got -1"},
        {R"("thinking_token_budget": 5)",
         "thinking_token_budget: expected 0 without reasoning-end, got 5; the job's reasoning-end = </think>, or what "
         "the model writes"},
        {R"("thinking_token_budget": 0)", "thinking_token_budget: expected at least 1, or -1 for no limit, got 0"},
        {R"("bad_words": ["a"])", "bad_words: expected [] or null, got an array of 1" + other},
        {R"("include_stop_str_in_output": true)",
         "include_stop_str_in_output: expected false or null, got true" + other},
        {R"("skip_special_tokens": false)", "skip_special_tokens: expected true or null, got false" + other},
        {R"("spaces_between_special_tokens": false)",
         "spaces_between_special_tokens: expected true or null, got false" + other},
        {R"("use_beam_search": true)", "use_beam_search: expected false or null, got true" + other},
        {R"("length_penalty": 2)", "length_penalty: expected 1 or null, got 2" + other},
        {R"("return_token_ids": true)", "return_token_ids: expected false or null, got true" + other},
        {R"("return_tokens_as_token_ids": true)",
         "return_tokens_as_token_ids: expected false or null, got true" + other},
        {R"("add_special_tokens": false)", "add_special_tokens: expected true or null, got false" + other},
        {R"("guided_whitespace_pattern": "x")", "guided_whitespace_pattern: expected no such field, got \"x\"" + list},
        {R"("temprature": 1)", "temprature: expected no such field, got 1; did you mean 'temperature'?"},
        {R"("temperature": -1)", "temperature: expected a number from 0 to 1e+06, got -1"},
        {R"("temperature": "1")", "temperature: expected a number, got \"1\""},
        {R"("top_p": 0)", "top_p: expected a number above 0 and at most 1, got 0"},
        {R"("top_k": -2)", "top_k: expected an integer from 0 on, got -2"},
        {R"("min_p": 2)", "min_p: expected a number from 0 to 1, got 2"},
        {R"("repetition_penalty": 0)", "repetition_penalty: expected a number above 0 and at most 1000, got 0"},
        {R"("ignore_eos": 1)", "ignore_eos: expected true or false, got 1"},
        {R"("seed": -1)", "seed: expected an integer from 0 to 18446744073709551615, got -1"},
        {R"("stop": [1])", "stop: expected a string, got 1"},
        {R"("stop": "")", "stop: expected a text of at least one character, got \"\""},
        {R"("max_tokens": 0)", "max_tokens: expected an integer from 1 to 2147483647, got 0"},
        {R"("max_tokens": 5, "max_completion_tokens": 6)",
         "max_tokens: expected max_completion_tokens alone, or the same number, got 5"},
        {R"("logprobs": 21)", "logprobs: expected an integer from 0 to 20, got 21"},
        {R"("top_logprobs": 1)", "top_logprobs: expected none with /v1/completions, got 1; its logprobs is the number"},
        {R"("chat_template_kwargs": {"a": 1})",
         "chat_template_kwargs: expected {} or null, got an object of 1" + other},
        {R"("tools": [{}])", "tools: expected [] or null, got an array of 1" + other},
        {R"("tool_choice": "auto")", "tool_choice: expected \"none\" or null, got \"auto\"" + other},
        {R"("messages": [])", "messages: expected none with /v1/completions, got an array of 0"},
    };
    const std::vector<Case> of_chats{
        {R"("functions": [{}])", "functions: expected [] or null, got an array of 1" + other},
        {R"("function_call": "auto")", "function_call: expected \"none\" or null, got \"auto\"" + other},
        {R"("modalities": ["audio"])", "modalities: expected [\"text\"] or null, got an array of 1" + other},
        {R"("add_generation_prompt": false)", "add_generation_prompt: expected true or null, got false" + other},
        {R"("continue_final_message": true)", "continue_final_message: expected false or null, got true" + other},
        {R"("chat_template_kwargs": [1])", "chat_template_kwargs: expected an object, got an array of 1"},
        {R"("chat_template_kwargs": {"messages": 1})",
         "chat_template_kwargs: expected names of variables other than messages and add_generation_prompt, got "
         "'messages'"},
        {R"("chat_template_kwargs": {"": 1})",
         "chat_template_kwargs: expected names of variables other than messages and add_generation_prompt, got ''"},
        {R"("chat_template_kwargs": {"a=b": 1})",
         "chat_template_kwargs: expected names of variables other than messages and add_generation_prompt, got "
         "'a=b'"},
        {R"("documents": [{}])", "documents: expected [] or null, got an array of 1" + other},
        {R"("add_special_tokens": true)", "add_special_tokens: expected false or null, got true" + other},
        {R"("logprobs": 3)", "logprobs: expected true or false, got 3"},
        {R"("top_logprobs": 2)", "top_logprobs: expected \"logprobs\": true beside it, got it alone"},
        {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs: expected an integer from 0 to 20, got 21"},
        {R"("prompt": "x")", "prompt: expected none with /v1/chat/completions, got \"x\""},
    };
    std::string lines;
    std::vector<std::string> expected;
    const auto add = [&](const Case& of, std::string (*make)(const std::string&, const std::string&)) {
        const std::string number = std::to_string(expected.size() + 1);
        lines += make("r" + number, ", " + std::string(of.fields));
        expected.push_back("r" + number + "! b.jsonl:" + number + ": body." + of.shown);
    };
    for (const Case& of : of_completions) add(of, completion);
    for (const Case& of : of_chats) add(of, chat);
    const auto data = DataSet::open(job(lines + completion("last")));
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), expected[i]);
    EXPECT_EQ(show(*data, static_cast<std::int64_t>(expected.size())), "last: x") << "the others run";
}

TEST_F(BatchTest, BadLinesFailAlone) {
    const std::string body = R"("body": {"prompt": "x"}})";
    const auto data = DataSet::open(
        job(R"({"method": "POST", "url": "/v1/completions", )" + body + "\n" +
            R"({"custom_id": 7, "method": "POST", "url": "/v1/completions", )" + body + "\n" + completion("twice") +
            completion("twice") + R"({"custom_id": "get", "method": "GET", "url": "/v1/completions", )" + body + "\n" +
            R"({"custom_id": "how", "url": "/v1/completions", )" + body + "\n" +
            R"({"custom_id": "url", "method": "POST", "url": "/v1/embeddings", )" + body + "\n" +
            R"({"custom_id": "empty", "method": "POST", "url": "/v1/completions"})" + "\n" +
            request("prompt", "completions", "") + request("list", "completions", R"(, "prompt": ["x"])") +
            request("none", "chat/completions", "") + request("no", "chat/completions", R"(, "messages": [])") +
            request("audio", "chat/completions",
                    R"(, "messages": [{"role": "user", "content": "x", "annotations": [], "audio": {}}])") +
            request("image", "chat/completions",
                    R"(, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])") +
            request("null", "chat/completions", R"(, "messages": [{"role": "assistant", "content": null}])") +
            request("parts", "chat/completions", R"(, "messages": [{"role": "user", "content": []}])") + "{\n"));
    const std::array expected{
        "1! b.jsonl:1: custom_id: expected a string, got nothing",
        "7! b.jsonl:2: custom_id: expected a string, got 7",
        "twice: x",
        "twice! b.jsonl:4: custom_id: expected every id once, got 'twice' again; line 3 has it",
        "get! b.jsonl:5: method: expected POST, got 'GET'",
        "how! b.jsonl:6: method: expected a string, got nothing",
        "url! b.jsonl:7: url: expected /v1/chat/completions or /v1/completions, got '/v1/embeddings'",
        "empty! b.jsonl:8: body: expected an object, got nothing",
        "prompt! b.jsonl:9: body: prompt: expected a string, got nothing",
        "list! b.jsonl:10: body.prompt[0]: expected a token id, got \"x\"; a request has one prompt: a string, or its "
        "token ids",
        "none! b.jsonl:11: body.messages: expected an array of messages, got nothing",
        "no! b.jsonl:12: body.messages: expected an array of messages, got an array of 0",
        "audio! b.jsonl:13: body.messages[0]: audio: expected only role, content, reasoning_content, tool_calls, "
        "tool_call_id and name, got an object of 0",
        "image! b.jsonl:14: body.messages[0]: content[0]: type: expected \"text\", got \"image_url\"",
        "null! b.jsonl:15: body.messages[0]: content: expected a string, got nothing",
        "parts! b.jsonl:16: body.messages[0]: content: expected at least one part, got none",
    };
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), expected[i]);
    EXPECT_TRUE(show(*data, 16).starts_with("17! b.jsonl:17"));
}

/// As clients send them that tokenize themselves: no begin-of-text token is added.
TEST_F(BatchTest, PromptsMayBeTokenIds) {
    const std::string text = "over the sea";
    const std::vector<std::int32_t> ids = tokenizer_.encode(text);
    std::string list;
    for (const std::int32_t id : ids) list += (list.empty() ? "" : ", ") + std::to_string(id);
    const std::string vocab = std::to_string(tokenizer_.vocab_size());
    Settings settings =
        job(request("a", "completions", R"(, "prompt": [)" + list + "]") +
            request("b", "completions", R"(, "prompt": [])") + request("c", "completions", R"(, "prompt": [1, -1])") +
            request("d", "completions", R"(, "prompt": [2147483648])") +
            request("e", "completions", R"(, "prompt": [[1], [2]])") +
            request("f", "completions", R"(, "prompt": [0, )" + vocab + "]"));
    const auto data = DataSet::open(settings);
    EXPECT_EQ(data->prompt(0, tokenizer_, long_context).tokens, ids);
    const std::string one = "; a request has one prompt: a string, or its token ids";
    EXPECT_EQ(show(*data, 1), "b! b.jsonl:2: body.prompt: expected at least one token id, got none");
    EXPECT_EQ(show(*data, 2), "c! b.jsonl:3: body.prompt[1]: expected a token id, got -1" + one);
    EXPECT_EQ(show(*data, 3), "d! b.jsonl:4: body.prompt[0]: expected a token id, got 2147483648" + one);
    EXPECT_EQ(show(*data, 4), "e! b.jsonl:5: body.prompt[0]: expected a token id, got an array of 1" + one);
    EXPECT_EQ(show(*data, 5),
              "f! b.jsonl:6: prompt: expected token ids below the vocabulary's " + vocab + ", got " + vocab);
}

TEST_F(BatchTest, SeveralModelsAreNoticed) {
    EXPECT_TRUE(DataSet::open(job(completion("a") + completion("b")))->notices(tokenizer_).empty());
    const std::string other =
        R"({"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"model": "z", "prompt": "x"}})";
    EXPECT_EQ(DataSet::open(job(completion("a") + other))->notices(tokenizer_),
              std::vector<std::string>{"the requests name 2 models (m, z): the job's model answers all of them"});
}

/// As vLLM's reasoning parsers give them.
TEST_F(BatchAnswersTest, ReasoningIsApartFromTheAnswer) {
    Settings settings = job(chat("a") + chat("b") + completion("c") + chat("d") + chat("e"));
    settings.model = LONGHAUL_DEMO_MODEL;
    settings.reasoning_end = "</think>";
    const auto item = [](std::int64_t index, const char* id, const char* text, std::optional<std::string> answer) {
        return ResultRecord{.key = {index, 0},
                            .id = id,
                            .text = text,
                            .answer = std::move(answer),
                            .has_reasoning = true,
                            .num_tokens = 3,
                            .finish_reason = "stop",
                            .prompt_tokens = 1};
    };
    record({item(0, "a", "<think>\nhm, <b>\n</think>\n\nyes ", "yes "), item(1, "b", "<think> hm", std::nullopt),
            item(2, "c", "hm</think>yes", "yes"), item(3, "d", "yes", "yes"), item(4, "e", "hm</think>", "")});
    const auto lines = answers(settings);
    const auto choice = [&](std::size_t line) { return lines[line]["response"]["body"]["choices"][0]; };
    const auto message = [](const nlohmann::json& reasoning, const nlohmann::json& content) {
        return nlohmann::json{{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}};
    };
    EXPECT_EQ(choice(0)["message"], message("hm, <b>", "yes "));
    EXPECT_EQ(choice(1)["message"], message("hm", nullptr)) << "it has no end";
    EXPECT_EQ(choice(2)["text"], "hm</think>yes") << "a completion is one text";
    EXPECT_EQ(choice(3)["message"], message(nullptr, "yes"));
    EXPECT_EQ(choice(4)["message"], message("hm", ""));
    settings.reasoning_end = "<|end_of_text|>";  // a special token is not in the text
    record({item(0, "a", "hm yes", "yes")});
    EXPECT_EQ(answers(settings)[0]["response"]["body"]["choices"][0]["message"], message("hm", "yes"));
}

TEST_F(BatchAnswersTest, HaveTheFormOfTheApi) {
    Settings settings = job(chat("hello") + completion("go", R"(, "temperature": 0)") +
                            completion("bad", R"(, "n": 2)") + completion("missing"));
    record({{.key = {0, 0},
             .id = "hello",
             .text = "Hello!",
             .num_tokens = 3,
             .finish_reason = "stop",
             .prompt_tokens = 12},
            {.key = {1, 0}, .id = "go", .text = "on", .num_tokens = 2, .finish_reason = "length", .prompt_tokens = 1},
            {.key = {2, 0}, .id = "bad", .finish_reason = "error", .error = "data:3: body.n: expected 1"}});
    const auto lines = answers(settings);
    ASSERT_EQ(lines.size(), 3U) << "an item without a result has no answer";
    const std::string name = lines[0]["id"].get<std::string>().substr(std::string("batch_req_").size());
    EXPECT_EQ(lines[0],
              nlohmann::json::parse(R"({"id": "batch_req_)" + name + R"(", "custom_id": "hello", "error": null,
        "response": {"status_code": 200, "request_id": "req_)" +
                                    name + R"(", "body": {"id": "chatcmpl-)" + name + R"(",
        "object": "chat.completion", "created": 0, "model": "m", "choices": [{"index": 0, "message":
        {"role": "assistant", "content": "Hello!"}, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}}}})"));
    const auto& body = lines[1]["response"]["body"];
    EXPECT_EQ(body["object"], "text_completion");
    EXPECT_EQ(body["choices"],
              nlohmann::json::parse(R"([{"index": 0, "text": "on", "logprobs": null, "finish_reason": "length"}])"));
    EXPECT_NE(lines[0]["id"], lines[1]["id"]);
    EXPECT_EQ(lines[2]["response"], nullptr);
    EXPECT_EQ(lines[2]["error"],
              nlohmann::json::parse(R"({"code": "invalid_request", "message": "data:3: body.n: expected 1"})"));
    EXPECT_EQ(answers(settings), lines) << "nothing depends on clock or chance";
}

TEST_F(BatchAnswersTest, SamplesAreChoices) {
    Settings settings = job(completion("a", R"(, "n": 2)") + completion("b", R"(, "n": 2)"));
    settings.samples = 2;
    record({{.key = {0, 0}, .id = "a", .text = "one", .num_tokens = 2, .finish_reason = "stop", .prompt_tokens = 5},
            {.key = {0, 1}, .id = "a", .text = "two", .num_tokens = 3, .finish_reason = "length", .prompt_tokens = 5},
            {.key = {1, 0}, .id = "b", .text = "one", .num_tokens = 2, .finish_reason = "stop", .prompt_tokens = 5},
            {.key = {1, 1}, .id = "b", .finish_reason = "error", .error = "no memory", .prompt_tokens = 5}});
    const auto lines = answers(settings);
    ASSERT_EQ(lines.size(), 2U);
    const auto& body = lines[0]["response"]["body"];
    EXPECT_EQ(body["choices"].size(), 2U);
    EXPECT_EQ(body["choices"][1]["index"], 1);
    EXPECT_EQ(body["choices"][1]["text"], "two");
    EXPECT_EQ(body["usage"]["completion_tokens"], 5);
    EXPECT_EQ(lines[1]["error"]["code"], "server_error") << "the request itself was good";
}

TEST_F(BatchAnswersTest, LogProbabilities) {
    Settings settings = job(completion("a", R"(, "logprobs": 1)") + completion("b", R"(, "logprobs": 0)") +
                            chat("c", R"(, "logprobs": true, "top_logprobs": 2)") + chat("d", R"(, "logprobs": true)"));
    settings.model = LONGHAUL_DEMO_MODEL;
    const auto tokenizer = engine::Tokenizer::load(settings.model);
    const std::int32_t the = tokenizer->encode(" the").front(), sea = tokenizer->encode(" sea").front();
    // The second token is not the most probable one.
    const std::string rows = "[[[" + std::to_string(the) + ",-0.5],[" + std::to_string(sea) + ",-1.5]],[[" +
                             std::to_string(sea) + ",-2.5],[" + std::to_string(the) + ",-0.25]]]";
    std::vector<ResultRecord> records;
    for (std::int64_t i = 0; i < 4; ++i) {
        records.push_back({.key = {i, 0},
                           .id = std::string(1, static_cast<char>('a' + i)),
                           .text = " the sea",
                           .num_tokens = 2,
                           .finish_reason = "length",
                           .logprobs = rows,
                           .prompt_tokens = 1});
    }
    record(records);
    std::vector<nlohmann::json> found;
    for (const auto& line : answers(settings)) found.push_back(line["response"]["body"]["choices"][0]["logprobs"]);
    ASSERT_EQ(found.size(), 4U);
    EXPECT_EQ(found[0], nlohmann::json::parse(R"({"text_offset": [0, 4], "token_logprobs": [-0.5, -2.5],
        "tokens": [" the", " sea"], "top_logprobs": [{" the": -0.5, " sea": -1.5}, {" the": -0.25, " sea": -2.5}]})"));
    EXPECT_EQ(found[1]["top_logprobs"], nlohmann::json::parse(R"([{" the": -0.5}, {" sea": -2.5}])"));
    EXPECT_EQ(found[2]["content"][1]["token"], " sea");
    EXPECT_EQ(found[2]["content"][1]["bytes"], (std::vector<int>{32, 115, 101, 97}));
    EXPECT_EQ(found[2]["content"][1]["top_logprobs"][0]["token"], " the") << "best first, chosen or not";
    EXPECT_TRUE(found[3]["content"][0]["top_logprobs"].empty());
}

TEST_F(BatchAnswersTest, OtherDataIsRefused) {
    Settings settings = job(completion("a"));
    record({{.key = {0, 0}, .id = "a", .text = "x", .finish_reason = "stop", .prompt_tokens = 1}});
    write("b.jsonl", completion("b"));
    EXPECT_EQ(message_of([&] { answers(settings); }),
              "b.jsonl:1: custom_id: expected 'a', got 'b'; the data has changed since the run");
}

}  // namespace
}  // namespace longhaul::runner
