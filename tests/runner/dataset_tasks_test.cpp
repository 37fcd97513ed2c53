// Tasks wmt, xsum, dolly and prompts: real-world files, templates, chat, options of single items, references and
// continuations.
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

class TaskTest : public DataSetTest {
  protected:
    /// The prompt with the template {FIELD}: the field as the reader returned it.
    std::unique_ptr<DataSet> bare(const std::string& task, const fs::path& data, const std::string& field,
                                  const fs::path& reference = {}) {
        Settings job = settings(task, data);
        job.reference = reference;
        job.prompt_template = write("bare-" + field, "{" + field + "}");
        return DataSet::open(job);
    }

    std::string open_error(const Settings& job) {
        return message_of([&] { DataSet::open(job); });
    }
};

TEST_F(TaskTest, WmtParallelLines) {
    const auto source = write("t.de", "eins\r\n\nzwei\n \ndrei\nf\xFCnf\nsechs");
    const auto reference = write("other.txt", "one\n-\n\n-\nthree\n\xC3\xA9\nsix\n");
    const auto data = bare("wmt", source, "source", reference);
    ASSERT_EQ(data->size(), 7);
    EXPECT_EQ(show(*data, 0), "1: eins");
    EXPECT_EQ(show(*data, 1), "2! t.de:2: expected a text, got an empty line");
    EXPECT_EQ(show(*data, 2), "3: zwei") << "no result depends on a reference";
    EXPECT_EQ(data->reference(2, tokenizer_), std::nullopt);
    EXPECT_EQ(show(*data, 3), "4! t.de:4: expected a text, got an empty line");
    EXPECT_EQ(show(*data, 4), "5: drei");
    EXPECT_EQ(show(*data, 5), R"(6! t.de:6: @1: expected UTF-8 text, got byte \xfc)");
    EXPECT_EQ(show(*data, 6), "7: sechs");
    EXPECT_EQ(data->reference(0, tokenizer_), "one");
    EXPECT_EQ(data->reference(1, tokenizer_), std::nullopt);
    EXPECT_EQ(data->reference(6, tokenizer_), "six");
    Settings job = settings("wmt", source);
    job.reference = reference;
    job.prompt_template = write("bare", "{source}");
    job.teacher_forced = true;
    EXPECT_EQ(show(*DataSet::open(job), 2), "3! other.txt:3: expected a text, got an empty line")
        << "unless it is the text";
}

TEST_F(TaskTest, WmtJson) {
    const auto file = write("w.jsonl", R"({"id": "a", "source": "eins", "reference": "one"}
{"source": "zwei"}
{"translation": {"de": "drei", "en": "three"}}
{"translation": {"fr": "quatre"}}
{"source": "", "translation": {"de": "vier"}}
{"source": null, "translation": {"de": "sechs"}}
{"source": "sieben", "translation": {"de": "seven", "en": "other"}}
)");
    const auto data = bare("wmt", file, "source");
    EXPECT_EQ(show(*data, 0), "a: eins");
    EXPECT_EQ(data->reference(0, tokenizer_), "one");
    EXPECT_EQ(show(*data, 1), "2: zwei");
    EXPECT_EQ(data->reference(1, tokenizer_), std::nullopt);
    EXPECT_EQ(show(*data, 2), "3: drei") << "as Hugging Face's datasets of WMT have it";
    EXPECT_EQ(data->reference(2, tokenizer_), "three");
    EXPECT_EQ(show(*data, 3),
              "4! w.jsonl:4: source: expected a string, got nothing, the line has 'translation'; column = source=NAME "
              "names another");
    EXPECT_EQ(show(*data, 4), "5! w.jsonl:5: source: expected a text, got an empty string");
    EXPECT_EQ(show(*data, 5), "6: sechs");
    EXPECT_EQ(show(*data, 6), "7: sieben");
    EXPECT_EQ(data->reference(6, tokenizer_), std::nullopt) << "another's translation";
    Settings job = settings("wmt", file);
    job.prompt_template = write("bare", "{source}");
    job.column = {"source=translation.fr"};
    EXPECT_EQ(show(*DataSet::open(job), 3), "4: quatre");
    EXPECT_EQ(DataSet::open(job)->reference(2, tokenizer_), std::nullopt) << "it may be the source";
    job.reference = write("t.en", "one\n");
    EXPECT_THROW(DataSet::open(job), UsageError);
}

TEST_F(TaskTest, AFileThatOnlyLooksLikeReferences) {
    write("near/t.de", "eins\nzwei\n");
    write("near/t.en", "something else\n");
    Settings job = settings("wmt", folder_ / "near" / "t.de");
    EXPECT_EQ(DataSet::open(job)->reference(0, tokenizer_), std::nullopt);
    job.teacher_forced = true;
    EXPECT_NE(open_error(job), "(no error)") << "there is no text to go on with";
}

TEST_F(TaskTest, WmtOwnTemplateAndItsLanguages) {
    write("set/t.de", "Guten Tag.\n");
    write("set/t.en", "Good day.\n");
    const auto data = open("wmt", folder_ / "set");
    EXPECT_TRUE(show(*data, 0).ends_with("\n\nGerman: Guten Tag.\nEnglish:"));
    EXPECT_EQ(data->reference(0, tokenizer_), "Good day.");
    EXPECT_EQ(open("wmt", folder_ / "set" / "t.de")->reference(0, tokenizer_), "Good day.") << "the file beside it";
    EXPECT_EQ(
        open_error(settings("wmt", folder_ / "set" / "t.en")),
        "set/t.en: expected a file .de, as the template of task wmt is German to English, got .en; write a template "
        "for these languages and name it as `template`");
    Settings job = settings("wmt", folder_ / "set" / "t.de");
    job.reference = write("t.fr", "Bonjour.\n");
    EXPECT_NE(open_error(job), "(no error)");
    EXPECT_EQ(show(*bare("wmt", folder_ / "set" / "t.en", "source"), 0), "1: Good day.") << "any with a template";
}

TEST_F(TaskTest, ParallelFilesMustHaveTheSameLength) {
    Settings job = settings("wmt", write("a.de", "1\n2\n3\n"));
    job.reference = write("b.en", "1\n2\n");
    job.limit = 1;
    EXPECT_EQ(open_error(job), "b.en: expected 3 lines or segments as " + folder_.string() +
                                   "/a.de has, got 2; line i of one belongs to line i of the other");
    job.reference = write("c.en", "1\n2\n3");
    EXPECT_EQ(DataSet::open(job)->size(), 1);
    job.reference = folder_ / "none.en";
    EXPECT_EQ(open_error(job), "none.en: expected a readable file, got No such file or directory");
}

TEST_F(TaskTest, WmtSgm) {
    write("x-src.de.sgm",
          "<srcset setid=\"t\" srclang=\"any\">\n<DOC sysid=\"x\" docid='news.1'>\n<p>\n"
          "<seg id=\"1\">A &amp; B &lt;&#x20AC;&#8364;&gt; &nbsp; &quot;</seg>\n<seg id=\"2\"> zwei\r\n  Zeilen "
          "</seg>\n</p>\n"
          "<hl><seg id=\"3\"></seg></hl></DOC><doc docid=\"n&amp;2\"><seg id=\"1\">caf\xE9</seg><SEG id=1>x</SEG>\n"
          "<seg id=\"9\">last</seg></doc></srcset>");
    write("x-ref.en.sgm",
          "<refset><doc docid=\"news.1\"><seg id=\"1\">one</seg><seg id=\"2\">two</seg><seg id=\"3\">x</seg></doc>"
          "<doc docid=\"n&amp;2\"><seg id=\"1\">x</seg><seg id=\"1\">x</seg><seg id=\"8\">y</seg></doc></refset>");
    const auto data = bare("wmt", folder_ / "x-src.de.sgm", "source");
    ASSERT_EQ(data->size(), 6);
    EXPECT_EQ(show(*data, 0), "news.1:1: A & B <\xE2\x82\xAC\xE2\x82\xAC> &nbsp; \"");
    EXPECT_EQ(show(*data, 1), "news.1:2: zwei Zeilen");
    EXPECT_EQ(show(*data, 2), "news.1:3! x-src.de.sgm:news.1:3: expected a text, got an empty line");
    EXPECT_EQ(show(*data, 3), R"(n&2:1! x-src.de.sgm:n&2:1: @3: expected UTF-8 text, got byte \xe9)");
    EXPECT_EQ(show(*data, 4),
              "n&2:1! x-src.de.sgm:n&2:1: id: expected every id once, got 'n&2:1' again; <seg> element 4 has it");
    EXPECT_EQ(show(*data, 5), "n&2:9: last");
    EXPECT_EQ(data->reference(5, tokenizer_), std::nullopt) << "another segment's";
    Settings forced = settings("wmt", folder_ / "x-src.de.sgm");
    forced.prompt_template = write("bare", "{source}");
    forced.teacher_forced = true;
    EXPECT_EQ(show(*DataSet::open(forced), 5),
              "n&2:9! x-ref.en.sgm:n&2:8: expected the segment of n&2:9, got n&2:8; both files must "
              "have the same segments in the same order");
    EXPECT_EQ(data->reference(1, tokenizer_), "two");
    EXPECT_EQ(open_error(settings("wmt", write("y-src.de.sgm", "<srcset></srcset>"))),
              "y-src.de.sgm: expected at least one <seg> element, got none");
}

TEST_F(TaskTest, FoldersOfPairs) {
    write("sgm/a-src.de.sgm", "<doc docid=\"d\"><seg id=\"1\">eins</seg></doc>");
    write("sgm/a-ref.en.sgm", "<doc docid=\"d\"><seg id=\"1\">one</seg></doc>");
    write("sgm/README", "no data");
    EXPECT_EQ(open("wmt", folder_ / "sgm")->reference(0, tokenizer_), "one");
    write("sgm/b.de", "x\n");
    write("sgm/b.en", "x\n");
    EXPECT_EQ(
        open_error(settings("wmt", folder_ / "sgm")),
        "sgm: expected one pair of files (X-src.L1.sgm and X-ref.L2.sgm, X.de and X.en, or X.source and X.target), "
        "got 2; name the files themselves as data and reference");
    EXPECT_EQ(
        open_error(settings("xsum", folder_ / "sgm")),
        "sgm: expected one pair of files (X.source and X.target), got none; name the files themselves as data and "
        "reference");
    write("lines/test.source", "a long article\n");
    write("lines/test.target", "short\n");
    const auto data = open("xsum", folder_ / "lines");
    EXPECT_TRUE(show(*data, 0).ends_with("\n\nArticle: a long article\nSummary:"));
    EXPECT_EQ(data->reference(0, tokenizer_), "short");
}

TEST_F(TaskTest, XsumLines) {
    const auto data = bare("xsum",
                           write("x.jsonl", R"({"id": 7, "document": "much", "summary": "little"})"
                                            "\n"
                                            R"({"document": "", "summary": "little"})"
                                            "\n"
                                            R"({"document": "much"})"
                                            "\n"
                                            R"({"document": ["much"], "summary": "little"})"
                                            "\n"
                                            R"({"id": "7", "document": "more", "summary": "less"})"),
                           "document");
    EXPECT_EQ(show(*data, 0), "7: much");
    EXPECT_EQ(data->reference(0, tokenizer_), "little");
    EXPECT_EQ(show(*data, 1), "2! x.jsonl:2: document: expected a text, got an empty string");
    EXPECT_EQ(show(*data, 2),
              "3! x.jsonl:3: summary: expected a string, got nothing, the line has 'document'; column = summary=NAME "
              "names another");
    EXPECT_EQ(show(*data, 3), "4! x.jsonl:4: document: expected a string, got an array of 1");
    EXPECT_EQ(show(*data, 4), "7! x.jsonl:5: id: expected every id once, got '7' again; line 1 has it");
    EXPECT_EQ(data->reference(2, tokenizer_), std::nullopt);
}

TEST_F(TaskTest, DollyLines) {
    const auto path =
        write("d.jsonl", R"({"instruction": "Why?", "context": "", "response": "So."})"
                         "\n"
                         R"({"instruction": "What?", "context": "It rains.", "response": "Rain.", "category": "qa"})"
                         "\n"
                         R"({"context": "It rains.", "response": "Rain."})"
                         "\n"
                         R"({"instruction": "What?", "context": 5, "response": "Rain."})");
    const auto data = open("dolly", path);
    EXPECT_TRUE(show(*data, 0).ends_with("### Instruction:\nWhy?\n\n### Response:\n"));
    EXPECT_TRUE(show(*data, 1).ends_with("### Context:\nIt rains.\n\n### Response:\n"));
    EXPECT_EQ(data->reference(1, tokenizer_), "Rain.");
    EXPECT_EQ(show(*data, 2),
              "3! d.jsonl:3: instruction: expected a string, got nothing, the line has 'context', 'response'; column = "
              "instruction=NAME names another");
    EXPECT_EQ(show(*data, 3), "4! d.jsonl:4: context: expected a string, got 5");
    EXPECT_EQ(show(*bare("dolly", path, "category"), 1), "2: qa");
    EXPECT_EQ(open_error(settings("dolly", folder_)),
              folder_.string() + ": expected a .jsonl or .parquet file with instructions, got a folder without tables");
}

TEST_F(TaskTest, LongWriterLines) {
    const auto path = write("l.jsonl", R"({"prompt": "Write a 1000-word tale.", "type": "tale", "length": 1000})"
                                       "\n"
                                       R"({"id": "b", "prompt": "Write.", "length": 0})"
                                       "\n"
                                       R"({"prompt": "Write.", "length": "1000"})"
                                       "\n"
                                       R"({"prompt": "Write."})"
                                       "\n"
                                       R"({"prompt": "", "length": 5})"
                                       "\n"
                                       R"({"length": 5})");
    const auto data = open("longwriter", path);
    EXPECT_TRUE(show(*data, 0).ends_with("### Instruction:\nWrite a 1000-word tale.\n\n### Response:\n"));
    EXPECT_EQ(show(*bare("longwriter", path, "length"), 0), "1: 1000");
    EXPECT_EQ(show(*bare("longwriter", path, "type"), 0), "1: tale");
    EXPECT_EQ(data->required_words(0), 1000);
    EXPECT_EQ(data->reference(0, tokenizer_), std::nullopt);
    EXPECT_EQ(show(*data, 1), "b! l.jsonl:2: length: expected an integer from 1 to 10000000, got 0");
    EXPECT_EQ(data->required_words(1), std::nullopt);
    EXPECT_EQ(show(*data, 2), "3! l.jsonl:3: length: expected an integer from 1 to 10000000, got \"1000\"");
    EXPECT_EQ(show(*data, 3),
              "4! l.jsonl:4: length: expected an integer, got nothing, the line has 'prompt'; column = length=NAME "
              "names another");
    EXPECT_EQ(show(*data, 4), "5! l.jsonl:5: prompt: expected a text, got an empty string");
    EXPECT_EQ(show(*data, 5),
              "6! l.jsonl:6: prompt: expected a string, got nothing, the line has 'length'; column = prompt=NAME names "
              "another");
    EXPECT_EQ(open_error(settings("longwriter", folder_)),
              folder_.string() +
                  ": expected a .jsonl or .parquet file with prompts and lengths, got a folder without tables");
}

TEST_F(TaskTest, TemplatesOfPrompts) {
    Settings job = settings("prompts", write("p.jsonl", "{\"prompt\": \"x\"}\n"));
    job.prompt_template = write("t.txt", "Q: {prompt}\nA:\n");
    EXPECT_EQ(show(*DataSet::open(job), 0), "1: Q: x\nA:");
    job.prompt_template = write("u.txt", "Q: {source}\n");
    EXPECT_EQ(open_error(job), "u.txt:1: expected fields of the data ('prompt'), got 'source'");
}

TEST_F(TaskTest, TemplatesOfPromptsReadAnyFields) {
    Settings job = settings(
        "prompts",
        write("q.jsonl", R"({"question": "2 + 2?", "choices": ["3", "4"], "meta": {"year": 1999}, "answer": "B"})"
                         "\n"
                         R"({"question": "1 + 1?", "choices": ["2"], "meta": {"year": 2000}, "hint": "few"})"
                         "\n"
                         R"({"question": "0 + 0?", "choices": ["0", "1"], "meta": {"year": []}})"
                         "\n"));
    job.prompt_template =
        write("t.txt", "{question} ({meta.year})\nA. {choices.0}\nB. {choices.1}{?hint}\n{hint}{/hint}\n");
    job.column = {"continuation=answer"};
    const auto data = DataSet::open(job);
    EXPECT_EQ(show(*data, 0), "1: 2 + 2? (1999)\nA. 3\nB. 4");
    EXPECT_EQ(data->reference(0, tokenizer_), "B");
    EXPECT_EQ(show(*data, 1),
              "2! q.jsonl:2: choices.1: expected a text, number or boolean, got nothing, the line has 'choices', "
              "'hint', 'meta', 'question'");
    EXPECT_EQ(show(*data, 2),
              "3! q.jsonl:3: meta.year: expected a text, number or boolean, got an array of 0; {meta.year.0} is its "
              "first element");
    job.prompt_template = write("t.txt", "{question} {chioces}\n{?other}{other}{/other}");
    EXPECT_EQ(open_error(job),
              "t.txt:1: expected fields of the data ('answer', 'choices', 'meta', 'question'), got 'chioces'; did you "
              "mean 'choices'?");
    job.prompt_template = write("t.txt", "{?hint}{hint}: {/hint}{text}");
    job.column = {"text=question"};
    EXPECT_EQ(show(*DataSet::open(job), 1), "2: few: 1 + 1?");
}

TEST_F(TaskTest, Messages) {
    fs::create_directories(folder_ / "model");
    const auto path = write(
        "p.jsonl",
        R"({"id": "a", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]})"
        "\n"
        R"({"id": "b", "prompt": "plain"})"
        "\n"
        R"({"id": "c", "messages": []})"
        "\n"
        R"({"id": "d", "messages": [{"role": "user", "content": ["Hi"]}]})"
        "\n"
        R"({"id": "e", "messages": [{"role": "robot", "content": "Hi"}]})"
        "\n"
        R"({"id": "f", "prompt": "x", "messages": [{"role": "user", "content": "Hi"}]})"
        "\n"
        R"({"id": "g", "messages": ["Hi"]})"
        "\n"
        R"({"id": "h", "messages": "Hi"})");
    Settings job = settings("prompts", path);
    job.model = folder_ / "model";
    EXPECT_TRUE(show(*DataSet::open(job), 0).starts_with("a! p.jsonl:1: messages: "));
    EXPECT_TRUE(
        show(*DataSet::open(job), 0)
            .ends_with("model: chat_template: expected a model with a chat template, got none; name one of llama2, "
                       "llama3, llama3.1, qwen2.5, or a .jinja file, as chat-template"));
    job.chat_template = "qwen2.5";
    const auto data = DataSet::open(job);
    const std::string head = "<|im_start|>system\nBe brief.<|im_end|>\n";
    EXPECT_EQ(show(*data, 0), "a: " + head + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(show(*data, 1), "b: plain");
    EXPECT_EQ(show(*data, 2), "c! p.jsonl:3: messages: expected at least one message, got none");
    EXPECT_EQ(show(*data, 3),
              "d! p.jsonl:4: messages[0]: content[0]: expected an object with \"type\" and \"text\", got \"Hi\"");
    EXPECT_NE(show(*data, 4).find("<|im_start|>robot\nHi<|im_end|>"), std::string::npos) << "the template takes it";
    EXPECT_EQ(show(*data, 5), "f! p.jsonl:6: messages: expected one of \"prompt\" and \"messages\", got both");
    EXPECT_EQ(show(*data, 6),
              "g! p.jsonl:7: messages[0]: expected an object with \"role\" and \"content\", got \"Hi\"");
    EXPECT_EQ(show(*data, 7), "h! p.jsonl:8: messages: expected an array of messages, got \"Hi\"");
}

TEST_F(TaskTest, MessagesMeetTheModelsTemplate) {
    fs::create_directories(folder_ / "model");
    write("model/chat_template.jinja",
          "{{ strftime_now('%F') }} {{ mood }}{% for m in messages %} {{ m.role }}:{% if m.content is string %}{{ "
          "m.content }}{% else %}{{ m.content|map(attribute='text')|join('+') }}{% endif %}{% if m.reasoning_content "
          "is string %}"
          "[{{ m.reasoning_content }}]{% endif %}{% endfor %}");
    Settings job = settings(
        "prompts",
        write(
            "p.jsonl",
            R"({"messages": [{"role": "tool", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "a"}, )"
            R"({"type": "text", "text": "b"}]}]})"
            "\n"
            R"({"messages": [{"role": "user", "content": [{"type": "image", "url": "u"}]}]})"
            "\n"
            R"({"messages": [{"role": "user", "content": []}]})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": "x", "reasoning_content": "hm"}, {"role": "user", "content": "y", "reasoning_content": null}]})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": "x", "reasoning_content": 1}]})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": null, "reasoning_content": "hm"}]})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": null}]})"));
    job.model = folder_ / "model";
    job.template_variable = {"mood=calm", "mood={\"k\": 1}"};
    job.template_date = "2025-01-02";
    const auto data = DataSet::open(job);
    EXPECT_EQ(show(*data, 0), "1: 2025-01-02 {'k': 1} tool:x user:a+b") << "the last value of a variable counts";
    EXPECT_EQ(show(*data, 1), "2! p.jsonl:2: messages[0]: content[0]: type: expected \"text\", got \"image\"");
    EXPECT_EQ(show(*data, 2), "3! p.jsonl:3: messages[0]: content: expected at least one part, got none");
    EXPECT_EQ(show(*data, 3), "4: 2025-01-02 {'k': 1} assistant:x[hm] user:y");
    EXPECT_EQ(show(*data, 4), "5! p.jsonl:5: messages[0]: reasoning_content: expected a string, got 1");
    EXPECT_EQ(show(*data, 5), "6: 2025-01-02 {'k': 1} assistant:[hm]");
    EXPECT_EQ(show(*data, 6), "7! p.jsonl:7: messages[0]: content: expected a string, got nothing");
    EXPECT_NE(data->fingerprint().find(", chat-template jinja "), std::string::npos);
    write("model/chat_template.jinja", "{{ nosuch() }}");
    EXPECT_EQ(
        show(*DataSet::open(job), 0),
        "1! model/chat_template.jinja:1: call: expected a defined value, got variable 'nosuch', which is undefined");
    write("model/chat_template.jinja", "{% nosuch %}");
    EXPECT_TRUE(show(*DataSet::open(job), 0)
                    .ends_with("model/chat_template.jinja:1: tag 'nosuch': expected a tag of chat templates, got an "
                               "unknown one, or one in the wrong place"));
}

TEST_F(TaskTest, ChatWrapsThePrompt) {
    fs::create_directories(folder_ / "model");
    Settings job = settings("dolly", write("d.jsonl", "{\"instruction\": \"Why?\", \"response\": \"So.\"}\n"));
    job.model = folder_ / "model";
    job.chat = true;
    EXPECT_EQ(open_error(job),
              "model: chat_template: expected a model with a chat template, got none; name one of "
              "llama2, llama3, llama3.1, qwen2.5, or a .jinja file, as chat-template");
    job.chat_template = "llama2";
    EXPECT_EQ(show(*DataSet::open(job), 0), "1: <s>[INST] Why? [/INST]") << "the task's own form for a chat";
    job.prompt_template = write("t", "Say: {instruction}");
    EXPECT_EQ(show(*DataSet::open(job), 0), "1: <s>[INST] Say: Why? [/INST]");
    job.task = "prompts";
    job.prompt_template.clear();
    job.data = write("p.txt", "Hi\n");
    tokenizer_.has_bos = true;
    EXPECT_EQ(show(*DataSet::open(job), 0), "1: <s>[INST] Hi [/INST]")
        << "no begin-of-text token beside the template's";
    const std::string print = DataSet::open(job)->fingerprint();
    EXPECT_TRUE(print.ends_with(", chat-template llama2")) << print;
}

/// If a prompt is truncated on the left, the first token of the chat template stays.
TEST_F(TaskTest, TruncatedChatKeepsItsFirstToken) {
    Settings job = settings("prompts", "p");
    job.overlong = "truncate-left";
    tokenizer_.has_bos = true;
    const PromptForm chat{.label = "p", .complete = true};
    const auto ids = [&](const std::vector<std::int32_t>& text) {
        return make_prompt(text, chat, job, tokenizer_, job.max_tokens + 3);
    };
    EXPECT_EQ(ids({256, 1, 2, 3, 4}), (std::vector<std::int32_t>{256, 3, 4}));
    EXPECT_EQ(ids({1, 2, 3, 4}), (std::vector<std::int32_t>{2, 3, 4}));
    EXPECT_EQ(ids({256}), (std::vector<std::int32_t>{256}));
}

TEST_F(TaskTest, OptionsOfAnItem) {
    const auto path = write(
        "p.jsonl",
        R"({"prompt": "x", "options": {"max-tokens": 5, "stop": ["\n", "a\\n"], "top-p": 0.5, "seed": 18446744073709551615, "ignore-eos": true}})"
        "\n"
        R"({"prompt": "x", "options": {"stop": "END", "temperature": 0}})"
        "\n"
        R"({"prompt": "x"})"
        "\n"
        R"({"prompt": "x", "options": {}})"
        "\n"
        R"({"prompt": "0123456789", "options": {"max-tokens": 200}})"
        "\n"
        R"({"prompt": "x", "options": {"dry-multiplier": 0.5, "dry-breakers": ["none", "b"], "stop-loops": 9, "presence-penalty": -2}})"
        "\n"
        R"({"prompt": "x", "options": {"dry-breakers": []}})"
        "\n"
        R"({"prompt": "x", "options": {"min-tokens": 3, "stop-token-ids": [7, 8], "logit-bias": {"5": -100, "6": 0.5}}})");
    Settings job = settings("prompts", path);
    job.stop = {"of the job"};
    job.stop_token_ids = {1};
    job.logit_bias = {{2, 3}};
    const auto data = DataSet::open(job);
    const auto item = [&](std::int64_t index) { return data->prompt(index, tokenizer_, 205); };
    const auto first = item(0).settings;
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->max_tokens, 5);
    EXPECT_EQ(first->stop, (std::vector<std::string>{"\n", "a\\n"}));
    EXPECT_EQ(first->top_p, 0.5);
    EXPECT_EQ(first->seed, 18446744073709551615U);
    EXPECT_TRUE(first->ignore_eos);
    EXPECT_EQ(first->temperature, job.temperature) << "what it does not say is the job's";
    ASSERT_NE(item(1).settings, nullptr);
    EXPECT_EQ(item(1).settings->stop, (std::vector<std::string>{"END"}));
    EXPECT_EQ(item(1).settings->temperature, 0);
    EXPECT_EQ(item(2).settings, nullptr);
    ASSERT_NE(item(3).settings, nullptr);
    EXPECT_EQ(*item(3).settings, job);
    EXPECT_EQ(item(5).settings->presence_penalty, -2);
    EXPECT_EQ(item(5).settings->dry_multiplier, 0.5);
    EXPECT_EQ(item(5).settings->dry_breakers, (std::vector<std::string>{"none", "b"}));
    EXPECT_EQ(item(5).settings->stop_loops, 9);
    EXPECT_EQ(item(6).settings->dry_breakers, std::vector<std::string>());
    EXPECT_EQ(item(6).settings->stop_token_ids, std::vector<std::int32_t>{1});
    EXPECT_EQ(item(7).settings->min_tokens, 3);
    EXPECT_EQ(item(7).settings->stop_token_ids, (std::vector<std::int32_t>{7, 8})) << "in place of the job's";
    EXPECT_EQ(item(7).settings->logit_bias, (std::vector<engine::TokenBias>{{5, -100}, {6, 0.5}}));
    EXPECT_EQ(short_form(item(4).error),
              "p.jsonl:5: prompt: expected at most 5 tokens (context 205 less max-tokens 200), got 10; lower "
              "max-tokens; overlong = truncate-left keeps the last 5");
}

TEST_F(TaskTest, BadOptionsFailAlone) {
    const std::string all =
        "(seed, max-tokens, min-tokens, ignore-eos, stop, stop-token-ids, json-schema, regex, choice, grammar, "
        "reasoning-end, max-reasoning-tokens, stop-loops, "
        "logprobs, logit-bias, "
        "temperature, top-k, top-p, min-p, eta, repetition-penalty, penalty-window, presence-penalty, "
        "frequency-penalty, dry-multiplier, dry-base, "
        "dry-allowed-length, dry-window or "
        "dry-breakers)";
    const std::vector<std::pair<std::string, std::string>> cases{
        {R"({"tempreature": 1})",
         "options: expected options of generation " + all + ", got 'tempreature'; did you mean 'temperature'?"},
        {R"({"max-reasoning-tokens": 5})",
         "options.max-reasoning-tokens: expected 0 without reasoning-end, got 5; the job's reasoning-end = </think>, "
         "or what the model writes"},
        {R"({"batch": 8})", "options.batch: expected an option of generation " + all + ", got a key of the whole job"},
        {R"({"top-p": 1.5})", "options.top-p: expected a number above 0 and at most 1, got 1.5"},
        {R"({"top-p": "0.5"})", "options.top-p: expected a number, got \"0.5\""},
        {R"({"max-tokens": 0})", "options.max-tokens: expected an integer from 1 to 2147483647, got 0"},
        {R"({"max-tokens": 1.5})", "options.max-tokens: expected an integer from 1 to 2147483647, got 1.5"},
        {R"({"ignore-eos": 1})", "options.ignore-eos: expected true or false, got 1"},
        {R"({"stop": [""]})", "options.stop: expected a text of at least one character, got \"\""},
        {R"({"dry-breakers": [""]})", "options.dry-breakers: expected none, or a text of 1 to 40 bytes, got \"\""},
        {R"({"stop": [1]})", "options.stop: expected a string, got 1"},
        {R"({"stop-token-ids": 1.5})", "options.stop-token-ids: expected an integer from 0 to 2147483647, got 1.5"},
        {R"({"logit-bias": {"4": "no"}})", "options.logit-bias.4: expected a number, got \"no\""},
        {R"({"seed": -1})", "options.seed: expected an integer from 0 to 18446744073709551615, got -1"},
        {R"([])", "options: expected an object, got an array of 0"},
    };
    std::string text;
    for (const auto& [options, shown] : cases) text += R"({"prompt": "x", "options": )" + options + "}\n";
    const auto data = open("prompts", write("p.jsonl", text + "{\"prompt\": \"last\"}\n"));
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::string number = std::to_string(i + 1);
        EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), number + "! p.jsonl:" + number + ": " + cases[i].second);
    }
    EXPECT_EQ(show(*data, static_cast<std::int64_t>(cases.size())), std::to_string(cases.size() + 1) + ": last");
}

TEST_F(TaskTest, Continuations) {
    const auto continuation = [&](Settings job, std::int64_t index = 0) {
        job.teacher_forced = true;
        const Prompt prompt = DataSet::open(job)->prompt(index, tokenizer_, long_context);
        return prompt.error.empty() ? text_of(prompt.tokens) + "|" + text_of(prompt.continuation)
                                    : short_form(prompt.error);
    };
    Settings job = settings("prompts", write("p.jsonl",
                                             "{\"prompt\": \"one\", \"continuation\": \"two\"}\n{\"prompt\": \"one\"}\n"
                                             "{\"prompt\": \"one\", \"continuation\": \"\"}\n"));
    EXPECT_EQ(continuation(job), "one|two");
    EXPECT_EQ(continuation(job, 1), "p.jsonl:2: continuation: expected a continuation, got nothing");
    EXPECT_EQ(continuation(job, 2), "p.jsonl:3: continuation: expected a continuation, got nothing");
    EXPECT_TRUE(DataSet::open(job)->prompt(0, tokenizer_, long_context).continuation.empty()) << "only where wanted";
    job.max_tokens = 2;
    EXPECT_EQ(continuation(job), "one|tw");

    Settings wmt = settings("wmt", write("t.de", "eins\n"));
    wmt.reference = write("t.en", "one\n");
    wmt.prompt_template = write("t", "{source} =");
    EXPECT_EQ(continuation(wmt), "eins =| one") << "a word of its own";
    wmt.prompt_template = write("t", "{source} = ");
    EXPECT_EQ(continuation(wmt), "eins = |one");

    Settings book = settings("pg19", write("b.txt", "0123456789"));
    book.prompt_tokens = 4;
    book.max_tokens = 3;
    EXPECT_EQ(continuation(book), "0123|456");
    book.max_tokens = 100;
    EXPECT_EQ(continuation(book), "0123|456789");
    book.prompt_tokens = 10;
    EXPECT_EQ(continuation(book),
              "b.txt: expected a book of more than prompt-tokens (10), so that a continuation is there, got 10 tokens");
}

/// A continuation needs space for its own tokens, not for max-tokens.
TEST_F(TaskTest, RoomIsThatOfTheContinuation) {
    Settings job = settings("prompts", write("p.jsonl", "{\"prompt\": \"0123456789\", \"continuation\": \"abc\"}\n"));
    job.teacher_forced = true;
    const auto data = DataSet::open(job);
    EXPECT_EQ(data->prompt(0, tokenizer_, 13).error, "");
    EXPECT_EQ(short_form(data->prompt(0, tokenizer_, 12).error),
              "p.jsonl:1: prompt: expected at most 9 tokens (context 12 less the continuation's 3), got 10; overlong = "
              "truncate-left keeps the last ones");
}

TEST_F(DataSetTest, TheReferenceOfABookIsWhatFollowsThePrompt) {
    fs::create_directory(folder_ / "shelf");
    write("shelf/long.txt", "abcdefghij");
    write("shelf/short.txt", "abc");
    Settings job = settings("pg19", folder_ / "shelf");
    job.prompt_tokens = 3;
    job.max_tokens = 4;
    const auto data = DataSet::open(job);
    EXPECT_EQ(data->reference(0, tokenizer_), "defg") << "as many tokens as are generated";
    EXPECT_EQ(data->reference(1, tokenizer_), std::nullopt) << "the book ends with its prompt";
}

/// With a real tokenizer: prompt and continuation are the encoding of the whole text, even if tokens would merge across
/// the boundary.
TEST_F(TaskTest, ContinuationIsHowTheTextGoesOn) {
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    Settings job =
        settings("prompts", write("p.jsonl",
                                  "{\"prompt\": \"It was a dark\", \"continuation\": \" and stormy night\"}\n"
                                  "{\"prompt\": \"It was a dark and stor\", \"continuation\": \"my night\"}\n"));
    job.teacher_forced = true;
    job.add_bos = "false";
    const auto data = DataSet::open(job);
    for (std::int64_t index = 0; index < 2; ++index) {
        const Prompt prompt = data->prompt(index, *tokenizer, long_context);
        std::vector<std::int32_t> all = prompt.tokens;
        all.insert(all.end(), prompt.continuation.begin(), prompt.continuation.end());
        EXPECT_EQ(tokenizer->decode(all, false), "It was a dark and stormy night");
        if (index == 0) {
            EXPECT_EQ(all, tokenizer->encode("It was a dark and stormy night"));
        }
    }
}

TEST_F(TaskTest, FingerprintsHaveTheirParts) {
    const auto source = write("t.de", "eins\n");
    Settings job = settings("wmt", source);
    const std::string plain = DataSet::open(job)->fingerprint();
    EXPECT_EQ(plain.find(", template "), 16U) << plain;
    job.reference = write("r.en", "one\n");
    EXPECT_EQ(DataSet::open(job)->fingerprint(), plain) << "references decide no text";
    job.teacher_forced = true;
    const std::string forced = DataSet::open(job)->fingerprint();
    EXPECT_NE(forced, plain) << "but here they are the text";
    job.teacher_forced = false;
    job.prompt_template = write("t.txt", "{source}");
    const std::string other = DataSet::open(job)->fingerprint();
    EXPECT_NE(other, plain);
    EXPECT_EQ(other.substr(0, 16), plain.substr(0, 16)) << "the data are the same";

    fs::create_directories(folder_ / "model");
    Settings chat = settings("prompts", write("p.jsonl", "{\"prompt\": \"x\"}\n"));
    chat.model = folder_ / "model";
    chat.chat_template = "llama3";
    EXPECT_EQ(DataSet::open(chat)->fingerprint().size(), 16U) << "no messages, so no chat template decides anything";
    std::string late = std::string((1 << 20) - 5, ' ') + "{\"messages\": []}\n";  // across a block boundary
    chat.data = write("m.jsonl", late);
    EXPECT_TRUE(DataSet::open(chat)->fingerprint().ends_with(", chat-template llama3"));
}

}  // namespace
}  // namespace longhaul::runner
