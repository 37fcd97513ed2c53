// Which files of a folder are the data: dataset folders of the Hugging Face Hub and of `datasets`, and incomplete ones.
#include <gtest/gtest.h>

#include "runner/data/table_rows.hpp"
#include "tests/runner/dataset_fixture.hpp"
#include "tests/runner/settings_fixture.hpp"

namespace longhaul::runner {
namespace {

struct TableFiles : DataSetTest {
    void make(const std::vector<std::string>& names) {
        for (const std::string& name : names) write(name, "x");
    }
    /// Names below the folder, or the error.
    std::string files(const std::string& path, const std::string& split = "") {
        std::string found;
        const std::string error = DataSetTest::message_of([&] {
            for (const fs::path& file : table_files(folder_ / path, split))
                found += (found.empty() ? "" : " ") + fs::relative(file, folder_).string();
        });
        return error == "(no error)" ? found : error;
    }
};

TEST_F(TableFiles, OneFileIsItself) {
    make({"a.parquet", "a.arrow", "a.jsonl"});
    EXPECT_TRUE(is_table(folder_ / "a.parquet"));
    EXPECT_TRUE(is_table(folder_ / "a.arrow"));
    EXPECT_FALSE(is_table(folder_ / "a.jsonl"));
    EXPECT_EQ(files("a.parquet"), "a.parquet");
    EXPECT_EQ(files("a.parquet", "train"),
              "a.parquet: expected a folder with the split 'train', got a file; leave split out, or name the folder as "
              "data");
}

TEST_F(TableFiles, PartsAreInTheOrderOfTheirNames) {
    make({"d/train-00001-of-00002.parquet", "d/train-00000-of-00002.parquet", "d/README.md", "d/.hidden.parquet.d/x"});
    EXPECT_TRUE(is_table(folder_ / "d"));
    const std::string train = "d/train-00000-of-00002.parquet d/train-00001-of-00002.parquet";
    EXPECT_EQ(files("d"), train);
    EXPECT_EQ(files("d", "train"), train);
    EXPECT_EQ(files("d", "test"), "d: expected files of the split 'test', got files of train");
    fs::remove(folder_ / "d" / "train-00000-of-00002.parquet");
    EXPECT_EQ(files("d"),
              "d: expected all 2 files of 'train', got 1; download the dataset again, or name one file as data");
}

TEST_F(TableFiles, AFolderOfTheHub) {
    make({"hub/README.md", "hub/data/test-00000-of-00001.parquet", "hub/data/train-00000-of-00001.parquet"});
    EXPECT_TRUE(is_table(folder_ / "hub"));
    EXPECT_EQ(files("hub"),
              "hub/data: expected the files of one split, got files of test or train; choose one: split = test");
    EXPECT_EQ(files("hub", "train"), "hub/data/train-00000-of-00001.parquet");
    make({"plain/train.parquet", "plain/test.parquet"});
    EXPECT_EQ(files("plain"), "plain/test.parquet plain/train.parquet") << "no series: all files";
    EXPECT_EQ(files("plain", "test"), "plain/test.parquet");
}

TEST_F(TableFiles, ADatasetThatWasSaved) {
    const auto save = [&](const std::string& name, const std::string& state) {
        make({name + "/dataset_info.json", name + "/data-00000-of-00001.arrow", name + "/cache-1.arrow"});
        write(name + "/state.json", state);
    };
    const std::string state = R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})";
    save("saved", state);
    EXPECT_EQ(files("saved"), "saved/data-00000-of-00001.arrow");
    save("dict/train", state);
    save("dict/test", state);
    write("dict/dataset_dict.json", R"({"splits": ["train", "test"]})");
    EXPECT_TRUE(is_table(folder_ / "dict"));
    EXPECT_EQ(files("dict", "train"), "dict/train/data-00000-of-00001.arrow");
    EXPECT_EQ(files("dict"),
              "dict: expected the files of one split, got the folders test or train; choose one: split = test");
    EXPECT_EQ(files("dict", "dev"),
              "dict: expected the split 'dev', got the folders test or train; choose one: split = test");
    save("bad", R"({"_data_files": [{"filename": "../secret.arrow"}]})");
    EXPECT_EQ(
        files("bad"),
        "bad/state.json: _data_files.filename: expected the name of a file in this folder, got '../secret.arrow'");
    save("none", "{}");
    EXPECT_EQ(files("none"),
              "none/state.json: _data_files: expected a list of files, got nothing; save the dataset again");
}

TEST_F(TableFiles, FoldersWithoutTables) {
    make({"texts/a.txt"});
    EXPECT_FALSE(is_table(folder_ / "texts"));
    EXPECT_EQ(files("texts"), "texts: expected files NAME.parquet or NAME.arrow, got none");
    EXPECT_EQ(DataSetTest::message_of([&] { open("prompts", folder_ / "texts"); }),
              "texts: expected a .jsonl, .txt or .parquet file with prompts, got a folder without tables");
}

/// `column` also renames the members of JSONL lines.
TEST_F(TableFiles, ColumnsOfLines) {
    Settings job = settings("prompts", write("p.jsonl", R"({"key": "a", "q": {"text": "one"}, "prompt": "no"})"
                                                        "\n"
                                                        R"({"key": "b", "q.text": "two"})"
                                                        "\n"
                                                        R"({"key": "a", "q": 5})"
                                                        "\n"
                                                        R"({"key": "c", "q": 5})"));
    job.column = {"prompt=q.text", "id=key"};
    const auto data = DataSet::open(job);
    EXPECT_EQ(show(*data, 0), "a: one");
    EXPECT_EQ(show(*data, 1), "b: two");
    EXPECT_EQ(show(*data, 2), "a! p.jsonl:3: key: expected every id once, got 'a' again; line 1 has it");
    EXPECT_EQ(show(*data, 3),
              "c! p.jsonl:4: prompt: expected a string in 'q.text', got nothing, the line has 'key', 'q'; column = "
              "prompt=NAME names another");
}

TEST_F(TableFiles, AnAbsentColumnIsNamedWithThoseThatAreThere) {
    Settings job =
        settings("prompts", write("p.jsonl", R"({"id": "a", "question": "x"})"
                                             "\n"
                                             R"({"c1":1,"c2":1,"c3":1,"c4":1,"c5":1,"c6":1,"c7":1,"c8":1,"c9":1})"
                                             "\n{}\n"));
    job.column = {"prompt=questio"};
    const auto data = DataSet::open(job);
    EXPECT_EQ(
        show(*data, 0),
        "a! p.jsonl:1: prompt: expected a string in 'questio', got nothing, the line has 'id', 'question'; did you "
        "mean column = prompt=question?");
    EXPECT_EQ(show(*data, 1),
              "2! p.jsonl:2: prompt: expected a string in 'questio', got nothing, the line has 'c1', 'c2', 'c3', 'c4', "
              "'c5', 'c6', 'c7', 'c8', …; column = prompt=NAME names another");
    EXPECT_EQ(show(*data, 2),
              "3! p.jsonl:3: prompt: expected a string in 'questio', got nothing, the line has no field; column = "
              "prompt=NAME names another");
}

TEST_F(TableFiles, KeysThatDoNotFitTheData) {
    const auto refused = [&](Settings job) { return longhaul::runner::message_of([&] { DataSet::open(job); }); };
    Settings job = settings("prompts", write("p.jsonl", "{\"prompt\": \"x\"}\n"));
    job.column = {"text=x"};
    EXPECT_EQ(
        refused(job),
        "job: column: expected a field of task = prompts (prompt, messages, continuation or options) before the =, "
        "got 'text'");
    job.column.clear();
    job.split = "train";
    EXPECT_EQ(refused(job), "job: split: expected none with data of one file or of lines, got 'train'");
    Settings lines = settings("prompts", write("p.txt", "x\n"));
    lines.column = {"prompt=x"};
    EXPECT_EQ(refused(lines), "job: column: expected none with data of lines of text, got 'prompt=x'");
    Settings wmt = settings("wmt", write("t.parquet", "x"));
    wmt.reference = write("t.en", "x");
    EXPECT_TRUE(refused(wmt).starts_with("job: reference: expected none with data of a table, got '"));
    EXPECT_EQ(DataSetTest::message_of([&] { open("openai-batch", folder_ / "t.parquet"); }),
              "t.parquet: expected a .jsonl file of requests, got a table");
}

}  // namespace
}  // namespace longhaul::runner
