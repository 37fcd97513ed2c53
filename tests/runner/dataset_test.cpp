// Real-world data sets: books in folders, JSONL, plain lines, and everything that can be wrong with them. A bad item
// gives an error in its place and does not stop the others.
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

TEST_F(DataSetTest, JsonLines) {
    const auto path = write("p.jsonl",
                            "\xEF\xBB\xBF{\"id\": \"first\", \"prompt\": \"one\"}\r\n"
                            "{\"prompt\": \"two\", \"id\": 22}\n"
                            "\n"
                            "{\"prompt\": \"four\", \"extra\": {\"id\": 9, \"list\": [{\"id\": \"x\"}]}}\n"
                            "{\"id\": null, \"prompt\": \"\\u00e9\\n\"}");  // no final newline
    const auto data = open("prompts", path);
    ASSERT_EQ(data->size(), 4);
    EXPECT_EQ(show(*data, 0), "first: one");
    EXPECT_EQ(show(*data, 1), "22: two");
    EXPECT_EQ(show(*data, 2), "4: four");
    EXPECT_EQ(show(*data, 3), "5: \xC3\xA9\n");
    EXPECT_GT(data->prompt_bytes(2), data->prompt_bytes(1));
}

TEST_F(DataSetTest, BadJsonLinesFailAlone) {
    struct Case {
        std::string line;
        std::string shown;
    };
    const std::vector<Case> cases{
        {R"({"id": "a", "prompt": "x"})", "a: x"},
        {R"({"id": "a", "prompt": "y"})", "a! p.jsonl:2: id: expected every id once, got 'a' again; line 1 has it"},
        {R"({"id": "5", "prompt": "x"})", "5: x"},
        {R"({"prompt": )", "4! p.jsonl:4: prompt@11: expected '[', '{', or a literal, got end of input"},
        {R"({"prompt": "line 5"})", "5! p.jsonl:5: id: expected every id once, got '5' again; line 3 has it"},
        {R"({"id": "no-prompt", "text": "x"})",
         "no-prompt! p.jsonl:6: prompt: expected a string, got nothing, the line has 'id', 'text'; column = "
         "prompt=NAME "
         "names another"},
        {R"({"id": "b", "prompt": 7})", "b! p.jsonl:7: prompt: expected a string, got 7"},
        {R"({"id": 1.5, "prompt": "x"})", "8! p.jsonl:8: id: expected a string or an integer, got 1.5"},
        {R"({"id": ["x"], "prompt": "x"})", "9! p.jsonl:9: id: expected a string or an integer, got an array of 1"},
        {R"([1])", "10! p.jsonl:10: expected an object, got an array of 1"},
        {"{\"id\": \"c\", \"prompt\": \"\xFF\"}",
         R"(c! p.jsonl:11: prompt@23: expected JSON, got invalid string: ill-formed UTF-8 byte at the end of '"\xff')"},
        {R"({"id": "d", "prompt": "a\u0000b"})", "d! p.jsonl:12: prompt: expected text, got a NUL character"},
        {R"({"id": "e", "messages": [{"role": "user", "content": "x"}]})",
         "e! p.jsonl:13: messages: expected a model with a chat template, got none; name one as chat-template"},
        {R"({"id": "f", "prompt": ""})", "f! p.jsonl:14: prompt: expected at least one token, got none"},
        {R"({"id": "g", "id": "h", "prompt": "x"})", "g! p.jsonl:15: id: expected every key once, got this key twice"},
        {"{\"id\": \"i\", \"prompt\": \"a\xED\xA0\x80\"}",
         R"(i! p.jsonl:16: prompt@25: expected JSON, got invalid string: ill-formed UTF-8 byte at the end of '"a\xed\xa0')"},
        {std::string("{\"id\": \"j\",\0 \"prompt\": \"x\"}", 27), "j! p.jsonl:17: @11: expected JSON, got a NUL byte"},
        {R"({"id": "null", "prompt": null})", "null! p.jsonl:18: prompt: expected a string, got null"},
        {R"({"id": "last", "prompt": "still here"})", "last: still here"},
    };
    std::string text;
    for (const Case& row : cases) text += row.line + "\n";
    const auto data = open("prompts", write("p.jsonl", text));
    ASSERT_EQ(data->size(), static_cast<std::int64_t>(cases.size()));
    for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(show(*data, static_cast<std::int64_t>(i)), cases[i].shown);
}

TEST_F(DataSetTest, FilesThatAreNoJsonLinesAreRefusedAsAWhole) {
    struct Case {
        std::string name, text, got;
    };
    const std::string jq_lines = "; write each on one line: jq -c . FILE";
    const std::vector<Case> cases{
        {"p.csv", "prompt,answer\nx,y\n",
         "a table of .csv; convert it: pandas.read_csv(FILE).to_json('data.jsonl', orient='records', lines=True)"},
        {"gz.jsonl", "\x1f\x8b\x08", "a gzip file; unpack it: gunzip -k FILE"},
        {"a.json", "[\n{\"prompt\": \"x\"}\n,{\"prompt\": \"y\"}]\n",
         "a JSON array; write its elements as lines: jq -c '.[]' FILE"},
        {"a1.json", "\xEF\xBB\xBF [{\"prompt\": \"x\"}, {\"prompt\": \"y\"}]",
         "a JSON array; write its elements as lines: jq -c '.[]' FILE"},
        {"long.json", "[{\"prompt\": \"" + std::string(100000, 'x') + "\"}]\n",
         "a JSON array; write its elements as lines: jq -c '.[]' FILE"},
        {"pretty.json", "{\r\n  \"prompt\": \"x\"\r\n}\r\n{\r\n  \"prompt\": \"y\"\r\n}\r\n",
         "an object on several lines" + jq_lines},
        {"program",
         std::string("\x7f"
                     "ELF\x02\0\0\n\0\n",
                     10),
         "a binary file"},
        {"utf16.jsonl", std::string("\xff\xfe{\0", 4), "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8 FILE"},
        {"sheet.xlsx", "PK\x03\x04",
         "a zip file; unpack it; a sheet of Excel: pandas.read_excel(FILE).to_json(…, lines=True)"},
    };
    for (const Case& row : cases) {
        const fs::path path = write(row.name, row.text);
        for (const char* task : {"prompts", "dolly", "openai-batch"})
            EXPECT_EQ(message_of([&] { open(task, path); }),
                      row.name + ": expected JSONL, one object per line, got " + row.got);
    }
    EXPECT_TRUE(message_of([&] { open("pg19", folder_ / "a.json"); }).starts_with("a.json: expected JSONL"));
}

/// A first line that is bad in another way, or beside good ones, is one item that fails.
TEST_F(DataSetTest, OneBadLineIsNoOtherFormat) {
    const std::string good = "\n{\"id\": \"good\", \"prompt\": \"x\"}\n";
    for (const std::string& bad : {std::string("[1]"), std::string("{\"prompt\": \0}", 13), std::string("prompt"),
                                   std::string("{"), std::string("\"x\"")}) {
        const auto data = open("prompts", write("p.jsonl", bad + good));
        ASSERT_EQ(data->size(), 2) << bad;
        EXPECT_TRUE(show(*data, 0).starts_with("1! p.jsonl:1: ")) << bad;
        EXPECT_EQ(show(*data, 1), "good: x") << bad;
    }
    EXPECT_EQ(show(*open("prompts", write("p.csv", good)), 0), "good: x") << "the name alone decides nothing";
    EXPECT_EQ(show(*open("prompts", write("p.txt", "[1]\n")), 0), "1: [1]");
    EXPECT_EQ(show(*open("wmt", write("t.csv", "{\n\"a\"\n")), 0).find("! "), std::string::npos) << "lines of text";
}

TEST_F(DataSetTest, OptionsBesideThePromptAreNoticed) {
    const auto notices = [&](const std::string& text, std::vector<std::string> columns = {}) {
        Settings job = settings("prompts", write("p.jsonl", text));
        job.column = std::move(columns);
        std::vector<std::string> lines = DataSet::open(job)->notices(tokenizer_);
        for (std::string& line : lines) line = short_form(line);
        return lines;
    };
    const std::string line = "{\"prompt\": \"x\"}\n";
    EXPECT_TRUE(notices(line + "{\"prompt\": \"x\", \"options\": {\"temperature\": 0}, \"label\": 3, \"seed\": null}\n")
                    .empty());
    EXPECT_EQ(notices("[\"\"]\n" + line + "{\"prompt\": \"x\", \"temperature\": 0, \"max_tokens\": 5}\n" +
                      "{\"prompt\": \"x\", \"top_k\": 5}\n"),
              std::vector<std::string>{"p.jsonl:3: max_tokens, temperature are ignored; \"options\": "
                                       "{\"max-tokens\":5,\"temperature\":0} sets them"});
    EXPECT_EQ(notices("{\"prompt\": \"x\", \"seed\": 7}\n"),
              std::vector<std::string>{"p.jsonl:1: seed is ignored; \"options\": {\"seed\":7} sets it"});
    EXPECT_TRUE(notices("{\"stop\": \"x\"}\n", {"prompt=stop"}).empty()) << "it is read";
}

TEST_F(DataSetTest, ShortBooksAreCounted) {
    write("books/a.txt", std::string(50, 'a'));
    write("books/b.txt", std::string(99, 'b'));
    write("books/c.txt", std::string(100, 'c'));
    write("books/d.txt", std::string(10000, 'd'));
    Settings job = settings("pg19", folder_ / "books");
    const auto notices = [&](std::int64_t tokens) {
        job.prompt_tokens = tokens;
        return DataSet::open(job)->notices(tokenizer_);
    };
    EXPECT_TRUE(notices(50).empty());
    EXPECT_EQ(notices(51),
              std::vector<std::string>{"1 book has fewer than prompt-tokens (51) tokens: all of it is the prompt"});
    EXPECT_EQ(notices(100), std::vector<std::string>{
                                "2 books have fewer than prompt-tokens (100) tokens: all of each is the prompt"});
    EXPECT_EQ(notices(999999999).size(), 1U);
    job.teacher_forced = true;
    EXPECT_TRUE(notices(100).empty()) << "their items fail";
}

TEST_F(DataSetTest, PlainLines) {
    const auto data = open("prompts", write("p.txt",
                                            "one\r\n\n  two \nb\xE9"
                                            "d\n" +
                                                std::string("n\0l\n", 4) + "last"));
    ASSERT_EQ(data->size(), 5);
    EXPECT_EQ(show(*data, 0), "1: one");
    EXPECT_EQ(show(*data, 1), "3:   two ");
    EXPECT_EQ(show(*data, 2), R"(4! p.txt:4: @1: expected UTF-8 text, got byte \xe9)");
    EXPECT_EQ(show(*data, 3), "5! p.txt:5: @1: expected UTF-8 text, got a NUL byte");
    EXPECT_EQ(show(*data, 4), "6: last");
}

TEST_F(DataSetTest, ManyLinesKeepTheirPlaces) {
    // More than one block of the scan, with line ends anywhere in it.
    std::string text;
    for (int i = 0; i < 30000; ++i)
        text += R"({"id": "n)" + std::to_string(i) + R"(", "prompt": ")" +
                std::string(static_cast<std::size_t>(i % 97) + 1, 'x') + "\"}\n";
    const auto data = open("prompts", write("p.jsonl", text));
    ASSERT_GT(text.size(), 2U << 20);
    ASSERT_EQ(data->size(), 30000);
    for (std::int64_t i = 0; i < 30000; i += 123) {
        const std::string number = std::to_string(i);
        EXPECT_EQ(show(*data, i), "n" + number + ": " + std::string(static_cast<std::size_t>(i % 97) + 1, 'x'));
    }
}

TEST_F(DataSetTest, BooksOfAFolder) {
    write("books/b.txt", "\xEF\xBB\xBFThe second\r\nbook");
    write("books/a.txt", "The first book");
    write("books/B.v2.txt", "capitals come first");
    write("books/empty.txt", "");
    write("books/bad.txt", "caf\xE9");
    write("books/nul.txt", std::string("a\0b", 3));
    write("books/notes.md", "no book");
    write("books/.hidden.txt", "no book");
    write("books/deeper.txt/c.txt", "not read");
    const auto data = open("pg19", folder_ / "books");
    ASSERT_EQ(data->size(), 6);
    EXPECT_EQ(show(*data, 0), "B.v2: capitals come first");
    EXPECT_EQ(show(*data, 1), "a: The first book");
    EXPECT_EQ(show(*data, 2), "b: The second\nbook");
    EXPECT_EQ(show(*data, 3), R"(bad! books/bad.txt: @3: expected UTF-8 text, got byte \xe9)");
    EXPECT_EQ(show(*data, 4), "empty! books/empty.txt: expected a text, got nothing");
    EXPECT_EQ(show(*data, 5), "nul! books/nul.txt: @1: expected UTF-8 text, got a NUL byte");

    const auto one = open("pg19", folder_ / "books" / "a.txt");
    ASSERT_EQ(one->size(), 1);
    EXPECT_EQ(show(*one, 0), "a: The first book");
    const auto lines =
        open("pg19", write("b.jsonl", "{\"text\": \"a line is a book\"}\n{\"id\": \"x\", \"prompt\": \"y\"}\n"));
    EXPECT_EQ(show(*lines, 0), "1: a line is a book");
    EXPECT_EQ(show(*lines, 1), "x! b.jsonl:2: text: expected a string, got nothing");
}

TEST_F(DataSetTest, LimitTakesTheFirst) {
    Settings some =
        settings("prompts", write("p.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n"));
    const std::string all = DataSet::open(some)->fingerprint();
    some.limit = 2;
    EXPECT_EQ(DataSet::open(some)->size(), 2);
    EXPECT_EQ(DataSet::open(some)->fingerprint(), all) << "a raised limit must find the same data";
    some.limit = 9;
    EXPECT_EQ(DataSet::open(some)->size(), 3);
    write("books/a.txt", "a");
    write("books/b.txt", "b");
    some = settings("pg19", folder_ / "books");
    some.limit = 1;
    EXPECT_EQ(DataSet::open(some)->size(), 1);
}

TEST_F(DataSetTest, DataThatCannotBeRead) {
    const auto message = [&](const std::string& task, const fs::path& data) {
        return message_of([&] { open(task, data); });
    };
    EXPECT_EQ(message("prompts", folder_ / "none.jsonl"),
              "none.jsonl: expected a readable file, got No such file or directory");
    EXPECT_EQ(message("pg19", folder_ / "none"), "none: expected a readable file, got No such file or directory");
    EXPECT_EQ(message("prompts", write("e.jsonl", "")), "e.jsonl: expected at least one item, got an empty file");
    EXPECT_EQ(message("prompts", write("bom.jsonl", "\xEF\xBB\xBF")),
              "bom.jsonl: expected at least one item, got blank lines");
    EXPECT_EQ(message("prompts", write("b.txt", "\n \r\n\t\n")), "b.txt: expected at least one item, got blank lines");
    EXPECT_EQ(message("pg19", write("e.txt", "")), "e.txt: expected a text, got an empty file");
    fs::create_directories(folder_ / "empty");
    EXPECT_EQ(message("pg19", folder_ / "empty"), "empty: expected a folder with books NAME.txt, got none");
    EXPECT_EQ(message("prompts", folder_ / "empty"),
              "empty: expected a .jsonl, .txt or .parquet file with prompts, got a folder without tables");
    EXPECT_EQ(message("pg19", "/dev/null"), "/dev/null: expected a file, got a device, pipe or socket");
}

TEST_F(DataSetTest, FingerprintsFollowTheBytes) {
    write("one/a.txt", "text");
    write("same/a.txt", "text");
    write("more/a.txt", "texts");
    write("name/b.txt", "text");
    const auto print = [&](const char* name) { return open("pg19", folder_ / name)->fingerprint(); };
    EXPECT_EQ(print("one").size(), 16U);
    EXPECT_EQ(print("one"), print("same"));
    EXPECT_NE(print("one"), print("more"));
    EXPECT_NE(print("one"), print("name"));
    const std::string large(3 << 20, 'x');
    const std::string whole = open("prompts", write("l.txt", large + "\n"))->fingerprint();
    EXPECT_NE(whole, open("prompts", write("m.txt", large + "y\n"))->fingerprint());
}

TEST_F(DataSetTest, BeginOfTextCountsAndStays) {
    const auto path = write("b.txt", "0123456789");
    Settings book = settings("pg19", path);
    book.prompt_tokens = 4;
    EXPECT_EQ(show(*DataSet::open(book), 0), "b: 0123");
    tokenizer_.has_bos = true;
    const auto ids = [&](const Settings& settings, std::int64_t context) {
        return DataSet::open(settings)->prompt(0, tokenizer_, context).tokens;
    };
    EXPECT_EQ(ids(book, long_context), (std::vector<std::int32_t>{256, '0', '1', '2'}));
    book.add_bos = "false";
    EXPECT_EQ(ids(book, long_context), (std::vector<std::int32_t>{'0', '1', '2', '3'}));
    book.add_bos = "true";
    book.prompt_tokens = 1;
    EXPECT_EQ(ids(book, long_context), (std::vector<std::int32_t>{256}));
    tokenizer_.has_bos = false;
    EXPECT_THROW(puts_bos(book, tokenizer_), UsageError);
    EXPECT_EQ(DataSet::open(book)->prompt(0, tokenizer_, long_context).error,
              "job: add-bos: expected false with this model, got true; its tokenizer names no begin-of-text token");

    // An empty prompt is allowed if a BOS token precedes it.
    tokenizer_.has_bos = true;
    EXPECT_EQ(ids(settings("prompts", write("p.jsonl", "{\"prompt\": \"\"}\n")), long_context),
              (std::vector<std::int32_t>{256}));
}

TEST_F(DataSetTest, ChatKeysWithoutChatsAreNoted) {
    Settings job = settings("prompts", write("p.jsonl", "{\"prompt\": \"a\"}\n"));
    EXPECT_TRUE(DataSet::open(job)->notices(tokenizer_).empty());
    job.chat_template = "llama2";
    EXPECT_EQ(
        DataSet::open(job)->notices(tokenizer_),
        std::vector<std::string>{"chat-template has no effect: the prompts are sent as they are, not as messages; "
                                 "set chat = true for a chat model"});
    job.template_variable = {"a=1"};
    EXPECT_EQ(DataSet::open(job)->notices(tokenizer_).size(), 2U);
    job.data = write("m.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"
                                "\n");
    EXPECT_TRUE(DataSet::open(job)->notices(tokenizer_).empty()) << "its messages are chats";
}

TEST_F(DataSetTest, PromptsThatOpenReasoningAreNoted) {
    Settings job = settings("prompts", write("p.jsonl", "{\"prompt\": \"a\\n<think>\\n\"}\n"));
    const auto notices = DataSet::open(job)->notices(tokenizer_);
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_NE(notices[0].find("ends with <think>: with reasoning-end = </think> results"), std::string::npos);
    job.reasoning_end = "</think>";
    EXPECT_TRUE(DataSet::open(job)->notices(tokenizer_).empty());
    job.max_tokens = 100;
    job.max_reasoning_tokens = 99;
    EXPECT_TRUE(DataSet::open(job)->notices(tokenizer_).empty());
    job.max_reasoning_tokens = 100;
    EXPECT_EQ(DataSet::open(job)->notices(tokenizer_),
              std::vector<std::string>{"max-reasoning-tokens = 100 has no effect on items of max-tokens = 100, which "
                                       "leaves no token for an answer; raise max-tokens"});
    job.max_reasoning_tokens = 0;
    job.reasoning_end.clear();
    job.data = write("q.jsonl", "{\"prompt\": \"<think></think>\"}\n");
    EXPECT_TRUE(DataSet::open(job)->notices(tokenizer_).empty());
}

TEST_F(DataSetTest, OverlongPrompts) {
    Settings job = settings("prompts", write("p.txt", "0123456789\n"));
    const auto at = [&](std::int64_t context) { return DataSet::open(job)->prompt(0, tokenizer_, context); };
    EXPECT_EQ(at(110).tokens.size(), 10U);
    EXPECT_EQ(short_form(at(109).error),
              "p.txt:1: prompt: expected at most 9 tokens (context 109 less max-tokens 100), got 10; lower max-tokens; "
              "overlong = truncate-left keeps the last 9");
    job.max_tokens = 8;
    EXPECT_EQ(short_form(at(17).error),
              "p.txt:1: prompt: expected at most 9 tokens (context 17 less max-tokens 8), got 10; "
              "overlong = truncate-left keeps the last ones");
    job.max_tokens = 100;
    job.overlong = "truncate-left";
    EXPECT_EQ(at(103).tokens, (std::vector<std::int32_t>{'7', '8', '9'}));
    tokenizer_.has_bos = true;
    EXPECT_EQ(at(103).tokens, (std::vector<std::int32_t>{256, '8', '9'}));
    EXPECT_EQ(
        short_form(at(100).error),
        "p.txt:1: prompt: expected at most 0 tokens (context 100 less max-tokens 100 and 1 for begin-of-text), got 10; "
        "lower max-tokens");
}

/// The first ids of a book must be those of the whole book's encoding, though only its beginning is tokenized.
TEST_F(DataSetTest, ABeginningGivesTheSameTokensAsTheWholeBook) {
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    const std::string sentence =
        "It was the best of times, it was the worst of times: \xE2\x80\x9Cindeed\xE2\x80\x9D,\n\n  said he. ";
    std::vector<std::string> books(4);
    for (int i = 0; books[0].size() < 200000; ++i) books[0] += sentence + std::to_string(i * 7919);
    for (int i = 0; books[1].size() < 100000; ++i)
        books[1] += std::string(static_cast<std::size_t>(i % 5000), ' ') + "word\n";
    for (int i = 0; books[2].size() < 60000; ++i)
        books[2] += static_cast<char>('a' + (i % 1009 * (i % 1013) + i / 7) % 26);  // one word
    for (int i = 0; books[3].size() < 90000; ++i) books[3] += i % 3 == 0 ? "\xF0\x9F\x98\x80" : "\xE6\x97\xA5\r\n";
    int compared = 0;
    for (std::size_t book = 0; book < books.size(); ++book) {
        const auto path = write("long" + std::to_string(book) + ".txt", books[book]);
        std::string plain = books[book];
        for (std::size_t at = 0; (at = plain.find("\r\n", at)) != std::string::npos;) plain.erase(at, 1);
        std::vector<std::int32_t> whole = tokenizer->encode(plain);
        if (puts_bos(Settings(), *tokenizer)) whole.insert(whole.begin(), *tokenizer->bos_id());
        for (const std::int64_t count : {2, 100, 512, 3000, 1000000}) {
            Settings job = settings("pg19", path);
            job.prompt_tokens = count;
            const Prompt prompt = DataSet::open(job)->prompt(0, *tokenizer, 10000000);
            const auto expected = std::min(static_cast<std::size_t>(count), whole.size());
            ASSERT_EQ(prompt.error, "");
            ASSERT_EQ(prompt.tokens,
                      std::vector<std::int32_t>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(expected)))
                << "book " << book << ", " << count << " tokens";
            compared += static_cast<int>(expected);
        }
    }
    EXPECT_GT(compared, 100000);
}

}  // namespace
}  // namespace longhaul::runner
