// Job files, valid and malformed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/error.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {
namespace {

class JobFile : public testing::Test {
  protected:
    void SetUp() override { std::filesystem::create_directories(folder_); }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::vector<Assignment> read(const std::string& text) {
        std::ofstream(path_, std::ios::binary) << text;
        return read_job_file(path_);
    }

    /// The message without the folder: "j.cfg:3: …".
    std::string message(const std::string& text) {
        try {
            read(text);
        } catch (const UsageError& error) {
            const std::string line = error.what();
            return line.starts_with(folder_.string()) ? line.substr(folder_.string().size() + 1) : line;
        }
        return "(no error)";
    }

    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("longhaul-job-file-" + std::to_string(::getpid()));
    std::filesystem::path path_ = folder_ / "j.cfg";
};

TEST_F(JobFile, LinesAreKeysAndValues) {
    const auto keys = read(
        "\xEF\xBB\xBF# a comment\r\n"
        "\r\n"
        "  task=pg19 # books\r\n"
        "data = a b#c/d   \n"
        "stop = \" # not a comment \\\" # still not\" # a comment\n"
        "stop = don't \"quote\" # a comment\n"
        "stop = a=b\n"
        "\tseed\t=\t7");  // no final newline
    const std::vector<std::pair<std::string, std::string>> expected{{"task", "pg19"},
                                                                    {"data", "a b#c/d"},
                                                                    {"stop", "\" # not a comment \\\" # still not\""},
                                                                    {"stop", "don't \"quote\""},
                                                                    {"stop", "a=b"},
                                                                    {"seed", "7"}};
    ASSERT_EQ(keys.size(), expected.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(keys[i].key, expected[i].first);
        EXPECT_EQ(keys[i].value, expected[i].second);
    }
    EXPECT_EQ(keys[0].origin, path_.string() + ":3");
    EXPECT_EQ(keys[5].origin, path_.string() + ":8");
}

TEST_F(JobFile, BadLinesAreNamed) {
    EXPECT_EQ(message("task = pg19\n\njust words\n"),
              "j.cfg:3: expected 'key = value', got 'just words'; a comment begins with #");
    EXPECT_EQ(message("= 3\n"), "j.cfg:1: expected 'key = value', got '= 3'; a comment begins with #");
    EXPECT_EQ(message("seed = 1\ndata = \xE9t\xE9\n"), R"(j.cfg:2: expected UTF-8 text, got 'data = \xe9t\xe9')");
    EXPECT_EQ(message(std::string("seed = 1\0 2\n", 12)), R"(j.cfg:1: expected UTF-8 text, got 'seed = 1\x00 2')");
    EXPECT_EQ(message(std::string((1 << 20) + 1, '#')), "j.cfg: size: expected at most 1048576 bytes, got 1048577");
    EXPECT_LT(message(std::string(100000, 'x')).size(), 300U);
    EXPECT_EQ(message(""), "(no error)");  // missing keys are reported later, by name
}

TEST_F(JobFile, ValuesThatWouldMeanSomethingElseAreRefused) {
    EXPECT_EQ(message("stop = ### Instruction\n"),
              "j.cfg:1: stop: expected a value, got a comment, which begins with #; a value with # stands in double "
              "quotes: stop = \"### Instruction\"");
    EXPECT_EQ(message("stop =\n"), "(no error)");
    EXPECT_EQ(message("stop = \"### Instruction\"\n"), "(no error)");
    EXPECT_EQ(message("output = '../runs/x'  # where\n"),
              "j.cfg:1: output: expected double quotes or none, got '../runs/x'; single quotes would be part of the "
              "value");
    EXPECT_EQ(message("stop = '\nstop = \"'x'\"\n"), "(no error)");
}

TEST_F(JobFile, FilesThatAreNone) {
    const auto message_for = [](const std::filesystem::path& path) {
        try {
            read_job_file(path);
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string("(no error)");
    };
    EXPECT_EQ(message_for(folder_), folder_.string() + ": expected a file, got a folder");
    const std::filesystem::path run = folder_ / "run";
    std::filesystem::create_directory(run);
    std::ofstream(run / "job.cfg") << "seed = 1\n";
    EXPECT_EQ(message_for(run), run.string() + ": expected a file, got a folder");
    std::ofstream(run / "identity.json") << "{}";
    EXPECT_EQ(message_for(run),
              run.string() + ": expected a job file, got a run folder; its job file is " + (run / "job.cfg").string());
    EXPECT_EQ(message_for(folder_ / "none.cfg"),
              (folder_ / "none.cfg").string() + ": expected a readable file, got No such file or directory");
}

TEST_F(JobFile, RelativePathsAreRelativeToIt) {
    std::ofstream(path_) << "task = pg19\ndata = ../books\nmodel = m\noutput = out\n";
    const Settings job = load_settings(path_, {});
    EXPECT_EQ(job.data, folder_.parent_path() / "books");
    EXPECT_EQ(job.model, folder_ / "m");
}

}  // namespace
}  // namespace longhaul::runner
