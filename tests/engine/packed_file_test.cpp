// Files of packed weights: written whole or not at all, by one writer, and every field is checked before use.
#include "engine/model/packed_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace longhaul::engine {
namespace {

namespace fs = std::filesystem;

const PackedKey key{.text = "a key", .model_changed = 1000};

std::vector<std::byte> bytes_of(std::size_t count, int seed) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i)
        bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(seed));
    return bytes;
}

const std::vector<std::byte> small = bytes_of(100, 1), large = bytes_of((std::size_t{9} << 20) + 11, 2);

class PackedFileTest : public ::testing::Test {
  protected:
    PackedFileTest() {
        folder_ = fs::temp_directory_path() / ("longhaul-packed-" + std::to_string(::getpid()));
        fs::remove_all(folder_);
        path_ = folder_ / "weights.packed";
    }
    ~PackedFileTest() override { fs::remove_all(folder_); }

    static std::vector<std::string> fill(PackedFileWriter& writer) {
        writer.add("small", small);
        writer.add("large", large);
        return {"a note"};
    }
    std::unique_ptr<PackedFile> open_or_fill(const PackedKey& wanted = key) {
        return open_or_write(
            path_, wanted, 2,
            [&](PackedFileWriter& writer) {
                ++writes_;
                return fill(writer);
            },
            notices_);
    }
    /// The error of `open` on the file as it is; "(none)" if it opens, "(absent)" if there is no file.
    [[nodiscard]] std::string complaint(const PackedKey& wanted = key) const {
        try {
            return PackedFile::open(path_, wanted, 2) ? "(none)" : "(absent)";
        } catch (const Error& error) {
            return error.what();
        }
    }
    [[nodiscard]] std::string read() const {
        std::ifstream in(path_, std::ios::binary);
        std::stringstream text;
        text << in.rdbuf();
        return text.str();
    }
    void write(const std::string& bytes) const {
        fs::create_directories(folder_);
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
        return names;
    }

    fs::path folder_, path_;
    std::atomic<int> writes_{0};
    std::vector<std::string> notices_;
};

bool holds_all(const PackedFile& file) {
    const auto a = file.block("small", small.size()), b = file.block("large", large.size());
    return std::equal(a.begin(), a.end(), small.begin()) && std::equal(b.begin(), b.end(), large.begin()) &&
           reinterpret_cast<std::uintptr_t>(b.data()) % 4096 == 0 && file.notes() == std::vector<std::string>{"a note"};
}

TEST_F(PackedFileTest, IsWrittenOnceAndRead) {
    EXPECT_EQ(complaint(), "(absent)");
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(holds_all(*open_or_fill()));
    EXPECT_EQ(writes_, 1);
    EXPECT_TRUE(notices_.empty());
    EXPECT_EQ(names(), std::vector<std::string>{"weights.packed"});
    const auto file = open_or_fill();
    EXPECT_THROW(static_cast<void>(file->block("small", small.size() + 1)), PackedFileError);
    EXPECT_THROW(static_cast<void>(file->block("other", 1)), PackedFileError);
}

TEST_F(PackedFileTest, DamageIsSeenAndMended) {
    open_or_fill();
    const std::string good = read();
    const auto flipped = [&](std::size_t at) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ 4);
        return bytes;
    };
    const std::size_t data = good.find("{\"");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "cut short"},
        {good.substr(0, 20), "cut short"},
        {good.substr(0, good.size() / 2), "cut short"},
        {good.substr(0, good.size() - 1), "cut short"},
        {good.substr(1), "cut short or damaged"},
        {good + "x", "cut short"},
        {std::string(1000, 'x'), "not packed weights"},
        {flipped(0), "its data is damaged"},
        {flipped(data / 2), "its data is damaged"},
        {flipped(large.size()), "its data is damaged"},
        {flipped(data + 5), "its header is damaged"},
        {flipped(good.size() - 32), "its header is damaged"},
        {flipped(good.size() - 20), "cut short or damaged"},
        {flipped(good.size() - 1), "not packed weights"},
    };
    for (const auto& [bytes, expected] : cases) {
        write(bytes);
        EXPECT_NE(complaint().find(expected), std::string::npos) << complaint();
        notices_.clear();
        EXPECT_TRUE(holds_all(*open_or_fill()));
        ASSERT_EQ(notices_.size(), 1U);
        EXPECT_NE(notices_.front().find(expected), std::string::npos);
        EXPECT_EQ(read(), good);
    }
}

TEST_F(PackedFileTest, ForeignAndStaleFilesAreReplaced) {
    open_or_fill();
    EXPECT_NE(complaint({"another key", 1000}).find("made for another model"), std::string::npos);
    EXPECT_NE(complaint({"a key", 1001}).find("the model's files have changed since it was written"),
              std::string::npos);
    EXPECT_NE(complaint({"a key", 999}).find("the model's files have changed since it was written"), std::string::npos)
        << "files that were moved into place keep an older time";
    open_or_fill({"another key", 1000});
    EXPECT_EQ(writes_, 2);
    EXPECT_EQ(notices_.size(), 1U);
}

/// A hostile file with correct checksums.
std::string crafted(const std::string& header, std::uint64_t data_bytes = 8) {
    const std::uint64_t trailer[4] = {XXH3_64bits(header.data(), header.size()), header.size(), data_bytes,
                                      0x31304b434150484cULL};
    return "12345678" + header + std::string(reinterpret_cast<const char*>(trailer), sizeof trailer);
}

TEST_F(PackedFileTest, HostileHeadersAreRefused) {
    const std::string sum = std::to_string(XXH3_64bits("12345678", 8));
    const auto header = [&](const std::string& blocks, const std::string& sums, const std::string& notes = "[]") {
        return crafted(R"({"key":"a key","model_changed":1000,"blocks":)" + blocks + R"(,"sums":)" + sums +
                       R"(,"notes":)" + notes + "}");
    };
    write(header(R"([["a",0,8]])", "[" + sum + "]"));
    ASSERT_EQ(complaint(), "(none)");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {header(R"([["a",0,9]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",4096,1]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",1,1]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",-4096,8]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",0,18446744073709551615]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",18446744073709547520,8192]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",0,8],["b",0,8]])", "[" + sum + "]"), "outside"},
        {header(R"([["a",0]])", "[" + sum + "]"), "not valid"},
        {header("7", "[" + sum + "]"), "not valid"},
        {header(R"([["a",0,8]])", "[]"), "checksums are missing"},
        {header(R"([["a",0,8]])", "[" + sum + "," + sum + "]"), "checksums are missing"},
        {header(R"([["a",0,8]])", R"(["x"])"), "not valid"},
        {header(R"([["a",0,8]])", "[1]"), "data is damaged"},
        {header(R"([["a",0,8]])", "[" + sum + "]", "[1]"), "note"},
        {crafted("[]"), "missing"},
        {crafted("{}"), "missing"},
        {crafted("{"), "string literal"},
        {crafted("{}", 7), "cut short or damaged"},
        {crafted("{}", std::uint64_t{0} - 8), "cut short or damaged"},
    };
    for (const auto& [bytes, expected] : cases) {
        write(bytes);
        EXPECT_NE(complaint().find(expected), std::string::npos) << complaint();
    }
}

TEST_F(PackedFileTest, OfManyOneWrites) {
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&] {
            std::vector<std::string> notices;
            const auto write = [&](PackedFileWriter& writer) {
                ++writes_;
                return fill(writer);
            };
            if (holds_all(*open_or_write(path_, key, 1, write, notices)) && notices.empty()) ++good;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(good, 6);
    EXPECT_EQ(writes_, 1);
    EXPECT_EQ(names(), std::vector<std::string>{"weights.packed"});
}

/// Runs `child` in its own process and returns the exit code.
int in_child(const std::function<int()>& child) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(child());
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(PackedFileTest, AKilledWriterLeavesNothingThatStays) {
    for (const char* name : {"weights.packed", "another.packed"}) {
        const int code = in_child([&] {
            std::vector<std::string> notices;
            open_or_write(
                folder_ / name, key, 1,
                [](PackedFileWriter& writer) -> std::vector<std::string> {
                    writer.add("large", large);
                    ::_exit(7);
                },
                notices);
            return 1;
        });
        ASSERT_EQ(code, 7);
        EXPECT_EQ(names(), std::vector<std::string>{std::string(name) + ".tmp"}) << "the test kills nobody";
    }
    EXPECT_TRUE(holds_all(*open_or_fill()));
    EXPECT_EQ(names(), std::vector<std::string>{"weights.packed"});
    EXPECT_TRUE(notices_.empty());
}

TEST_F(PackedFileTest, AFullDiskIsNoCrashAndLeavesNothing) {
    const int code = in_child([&] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{1 << 20, 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
            open_or_fill();
        } catch (const PackedFileError& error) {
            return std::strstr(error.what(), "cannot write") != nullptr ? 7 : 2;
        }
        return 1;
    });
    EXPECT_EQ(code, 7);
    EXPECT_TRUE(names().empty());
}

TEST_F(PackedFileTest, AFolderThatCannotBeIsAnErrorOfThisKind) {
    std::ofstream(folder_) << "a file";
    EXPECT_THROW(open_or_fill(), PackedFileError);
    EXPECT_EQ(writes_, 0);
}

}  // namespace
}  // namespace longhaul::engine
