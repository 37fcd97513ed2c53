// Texts for `draft-corpus`: what is read, how much, and what is refused.
#include "runner/run/draft_corpus.hpp"

#include "runner/run/results.hpp"
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

class DraftCorpusTest : public DataSetTest {
  protected:
    std::vector<std::string> texts(const fs::path& path, std::int64_t max_tokens = 1000) {
        std::vector<std::string> all;
        for (const std::vector<std::int32_t>& tokens : read_draft_corpus(path, tokenizer_, max_tokens))
            all.push_back(text_of(tokens));
        return all;
    }
    using Texts = std::vector<std::string>;
};

TEST_F(DraftCorpusTest, ReadsFoldersFilesAndRuns) {
    write("texts/b.txt", "second\r\n");
    write("texts/a.txt", "first");
    write("texts/notes.md", "no text");
    EXPECT_EQ(texts(folder_ / "texts"), (Texts{"first", "second\n"})) << "in the order of their names";
    EXPECT_EQ(texts(folder_ / "texts" / "b.txt"), Texts{"second\n"});
    const std::string lines = R"({"id": "x", "text": "one"})"
                              "\n\n"
                              R"({"id": "x", "sample": 1, "text": "two"})"
                              "\n"
                              R"({"text": ""})"
                              "\n";
    EXPECT_EQ(texts(write("lines.jsonl", lines)), (Texts{"one", "two"})) << "samples share an id";
}

// Also of a run that is not finished, and without the items that failed.
TEST_F(DraftCorpusTest, ReadsTheResultsOfARun) {
    const auto line = [](std::int64_t index, const std::string& text, const std::string& error) {
        ResultRecord record;
        record.key = {index, 0};
        record.id = std::to_string(index);
        record.text = text;
        record.error = error;
        record.num_tokens = 1;
        record.finish_reason = error.empty() ? "length" : "error";
        return format_journal(record, {}) + "\n";
    };
    write("run/launches/1.json", "{}");
    write("run/results/0-1.jsonl", line(1, "two", "") + line(2, "", "no memory") + line(0, "one", ""));
    EXPECT_EQ(texts(folder_ / "run"), (Texts{"one", "two"}));
}

TEST_F(DraftCorpusTest, ReadsOnlyTheFirstTokens) {
    write("texts/a.txt", "0123456789");
    write("texts/b.txt", "abcdefghij");
    EXPECT_EQ(texts(folder_ / "texts", 14), (Texts{"0123456789", "abcd"}));
    EXPECT_EQ(texts(folder_ / "texts", 10), Texts{"0123456789"});
}

TEST_F(DraftCorpusTest, RefusesWhatItCannotRead) {
    const auto refusal = [&](const fs::path& path) -> std::string {
        try {
            texts(path);
            return "(no error)";
        } catch (const Error& error) {
            return short_form(error.what());
        }
    };
    EXPECT_EQ(refusal(folder_ / "absent"), "absent: expected a readable file, got No such file or directory");
    EXPECT_EQ(refusal(write("bad.txt", "ab\xff")), "bad.txt: @2: expected UTF-8 text, got byte \\xff");
    EXPECT_EQ(refusal(write("lines.jsonl", "{\"id\": \"x\"}\n")),
              "lines.jsonl:1: text: expected an object with a text, got {\"id\": \"x\"}");
    EXPECT_EQ(refusal(write("empty.jsonl", "{\"text\": \"\"}\n")),
              "empty.jsonl: expected texts for draft-corpus, got none");
    fs::create_directories(folder_ / "nothing");
    EXPECT_EQ(refusal(folder_ / "nothing"), "nothing: expected a folder with books NAME.txt, got none");
}

}  // namespace
}  // namespace longhaul::runner
