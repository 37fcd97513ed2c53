// Tables as data: Parquet files and saved datasets (tests/tools/make_tables.py), columns by other names, and files that
// are damaged or made to do harm.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "runner/data/table_rows.hpp"
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

const fs::path tables = fs::path(LONGHAUL_TEST_DATA) / "tables";

struct ArrowTest : DataSetTest {
    Settings job(const std::string& task, const fs::path& data, std::vector<std::string> columns = {},
                 const std::string& split = "") {
        Settings job = settings(task, data);
        job.column = std::move(columns);
        job.split = split;
        return job;
    }
    std::string shown(const DataSet& data, std::int64_t index) {
        std::string line = show(data, index);
        if (const std::size_t at = line.find(tables.string() + "/"); at != std::string::npos)
            line.erase(at, tables.string().size() + 1);
        return line;
    }
    static std::string bytes_of(const fs::path& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

TEST_F(ArrowTest, RowsOfAllFilesAreItems) {
    const auto data = DataSet::open(job("prompts", tables / "hub", {"prompt=question"}, "train"));
    ASSERT_EQ(data->size(), 5);
    EXPECT_EQ(shown(*data, 0), "row-1: Question 1?");
    EXPECT_EQ(shown(*data, 2), "row-3: Question 3?") << "the second row group";
    const std::string second = "hub/data/train-00001-of-00002.parquet:";
    EXPECT_EQ(shown(*data, 3), "row-1! " + second + "1: id: expected every id once, got 'row-1' again; row 1 has it");
    EXPECT_EQ(shown(*data, 4), "5! " + second + "2: prompt: expected a string, got nothing");
    const Prompt first = data->prompt(0, tokenizer_, long_context);
    ASSERT_NE(first.settings, nullptr) << "options of a row";
    EXPECT_EQ(first.settings->temperature, 0.5);
    EXPECT_EQ(first.settings->max_tokens, 100) << "null: as the job says";
    EXPECT_EQ(data->prompt(1, tokenizer_, long_context).settings, nullptr);
    EXPECT_GT(data->prompt_bytes(0), 0);
}

TEST_F(ArrowTest, EveryTaskFindsItsFields) {
    const fs::path file = tables / "hub/data/test-00000-of-00001.parquet";
    const auto bare = [&](const std::string& task, const std::string& field, std::vector<std::string> columns) {
        Settings settings = job(task, file, std::move(columns));
        settings.prompt_template = write("t.txt", "{" + field + "}");
        return DataSet::open(settings);
    };
    const auto xsum = bare("xsum", "document", {});
    EXPECT_EQ(shown(*xsum, 0), "row-9: Document 9.");
    EXPECT_EQ(xsum->reference(0, tokenizer_), "Summary 9.");
    const auto wmt = bare("wmt", "source", {"source=translation.de", "reference=translation.en"});
    EXPECT_EQ(shown(*wmt, 0), "row-9: Satz 9.");
    EXPECT_EQ(wmt->reference(0, tokenizer_), "Sentence 9.");
    EXPECT_EQ(shown(*bare("wmt", "source", {}), 0), "row-9: Satz 9.") << "the name in Hugging Face's datasets";
    EXPECT_EQ(bare("wmt", "source", {})->reference(0, tokenizer_), "Sentence 9.");
    const auto dolly = bare("dolly", "category", {"instruction=question", "response=summary", "category=kind"});
    EXPECT_EQ(shown(*dolly, 0), "row-9: report") << "dictionary";
    const auto writer = bare("longwriter", "length", {"prompt=question"});
    EXPECT_EQ(shown(*writer, 0), "row-9: 9000");
    EXPECT_EQ(writer->required_words(0), 9000);
    Settings chat = job("prompts", file);
    chat.model = folder_ / "model";
    fs::create_directories(chat.model);
    chat.chat_template = "qwen2.5";
    EXPECT_TRUE(
        shown(*DataSet::open(chat), 0).ends_with("<|im_start|>user\nHello 9<|im_end|>\n<|im_start|>assistant\n"));
    EXPECT_TRUE(DataSet::open(chat)->fingerprint().ends_with("chat-template qwen2.5"));
}

TEST_F(ArrowTest, PathsNameFieldsAndElements) {
    const auto shown_as = [&](const std::string& text) {
        Settings settings = job("prompts", tables / "hub/data/test-00000-of-00001.parquet");
        settings.prompt_template = write("t.txt", text);
        return shown(*DataSet::open(settings), 0);
    };
    EXPECT_EQ(shown_as("{messages.0.content} ({translation.de})"), "row-9: Hello 9 (Satz 9.)");
    for (const char* path :
         {"messages.7.content", "messages.0.text", "messages.x.content", "messages.-1.content", "translation.0"})
        EXPECT_THROW(shown_as("{" + std::string(path) + "}"), InputError) << path;
}

TEST_F(ArrowTest, ADatasetThatWasSaved) {
    const auto data = DataSet::open(job("prompts", tables / "saved", {"prompt=document"}));
    ASSERT_EQ(data->size(), 3);
    EXPECT_EQ(shown(*data, 2), "row-3: Document 3.");
    EXPECT_EQ(shown(*data, 0), "row-1: Document 1.") << "back to the first batch";
    Settings limited = job("prompts", tables / "saved", {"prompt=document"});
    limited.limit = 1;
    EXPECT_EQ(DataSet::open(limited)->size(), 1);
    EXPECT_EQ(DataSet::open(limited)->fingerprint(), data->fingerprint()) << "covers the whole data";
}

TEST_F(ArrowTest, ColumnsThatAreNotThere) {
    const fs::path file = tables / "hub/data/test-00000-of-00001.parquet";
    const auto refusal = [&](const Settings& settings) {
        std::string line = message_of([&] { DataSet::open(settings); });
        return line.erase(0, line.find("parquet") + 7);
    };
    const std::string there =
        "got the columns id, question, messages, document, summary, translation, length, kind, options or when";
    EXPECT_EQ(refusal(job("dolly", file)),
              ": instruction: expected a column of this name, " + there + "; column = instruction=NAME names another");
    EXPECT_EQ(refusal(job("prompts", file, {"prompt=text"})),
              ": text: expected a column of this name, " + there + "; column = prompt=NAME names another");
    EXPECT_EQ(refusal(job("wmt", file, {"source=translation.fr"})),
              ": translation.fr: expected a column of this name, " + there + "; column = source=NAME names another");
    EXPECT_EQ(refusal(job("prompts", file, {"prompt=when"})),
              ": when: expected text, numbers, or lists and structs of them, got timestamp[ms]");
    EXPECT_EQ(shown(*DataSet::open(job("prompts", file, {"prompt=length"})), 0),
              "row-9! hub/data/test-00000-of-00001.parquet:1: prompt: expected a string, got 9000");
    EXPECT_EQ(message_of([&] {
                  DataSet::open(job("prompts", file, {"prompt=question", "messages=messages"}));
              }).substr(file.string().size()),
              ": expected a column prompt or messages, got both; choose one: column = prompt=prompt, or "
              "messages=messages");
}

TEST_F(ArrowTest, FilesThatAreNoTables) {
    const auto refusal = [&](const std::string& name, const std::string& bytes) {
        const fs::path path = write(name, bytes);
        return message_of([&] { DataSet::open(job("prompts", path, {"prompt=question"})); });
    };
    const std::string readable = ": expected a file that Apache Arrow can read, got '";
    EXPECT_TRUE(refusal("a.parquet", "").starts_with("a.parquet" + readable));
    EXPECT_TRUE(refusal("b.parquet", "PAR1 and nothing else, PAR1").starts_with("b.parquet" + readable));
    EXPECT_EQ(refusal("c.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
              "c.parquet: expected a table, got a Git LFS pointer; fetch the file itself: git lfs pull");
    EXPECT_EQ(refusal("d.arrow", ""), "d.arrow: expected an Arrow IPC stream, got an empty file");
    EXPECT_EQ(refusal("e.arrow", "ARROW1 and more"),
              "e.arrow: expected an Arrow IPC stream, got an IPC file (Feather); save it as Parquet");
    EXPECT_TRUE(refusal("f.arrow", std::string(64, '\x7F')).starts_with("f.arrow" + readable));
    const std::string whole = bytes_of(tables / "hub/data/train-00000-of-00002.parquet");
    EXPECT_TRUE(refusal("g.parquet", whole.substr(0, whole.size() / 2)).starts_with("g.parquet" + readable));
}

/// Any damage is an error of the file or of some items, or goes unseen in a text; it never ends the program.
TEST_F(ArrowTest, DamagedFilesAreErrors) {
    for (const char* name : {"hub/data/train-00000-of-00002.parquet", "saved/data-00000-of-00001.arrow"}) {
        const std::string whole = bytes_of(tables / name);
        const std::string file = "damaged" + fs::path(name).extension().string();
        int refused = 0;
        const auto read_all = [&](const std::string& bytes) {
            const fs::path path = write(file, bytes);
            try {
                const auto data = DataSet::open(job("prompts", path, {"prompt=question"}));
                for (std::int64_t index = 0; index < data->size(); ++index)
                    refused += data->prompt(index, tokenizer_, long_context).error.empty() ? 0 : 1;
            } catch (const InputError& error) {
                EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
                ++refused;
            }
        };
        for (std::size_t at = 0; at < whole.size(); at += 11) {
            std::string bytes = whole;
            bytes[at] = static_cast<char>(bytes[at] ^ (at % 2 == 0 ? 0xFF : 0x40));
            read_all(bytes);
        }
        for (std::size_t size = 0; size < whole.size(); size += 211) read_all(whole.substr(0, size));
        EXPECT_GT(refused, 20) << name;
    }
}

}  // namespace
}  // namespace longhaul::runner
