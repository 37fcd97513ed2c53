// How far items had come when a launch died; recomputed_tokens is counted against it.
#include "runner/run/token_ledger.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace longhaul::runner {
namespace {

class TokenLedgerTest : public ::testing::Test {
  protected:
    TokenLedgerTest() { std::filesystem::create_directories(folder_); }
    ~TokenLedgerTest() override { std::filesystem::remove_all(folder_); }
    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("longhaul-ledger-" + std::to_string(::getpid()));
};

TEST_F(TokenLedgerTest, TheNewestLaunchThatHadTheItemCounts) {
    {
        TokenLedger first(folder_, 0, 1, 1);
        first.reached(7, 100);
        first.reached(7, 250);
        first.reached(8, 30);
        EXPECT_EQ(first.known(7), 0) << "of earlier launches only";
    }
    {
        TokenLedger second(folder_, 1, 2, 1);  // another replica has the item now
        EXPECT_EQ(second.known(7), 250);
        second.reached(7, 180);  // returned to its checkpoint and was killed again
    }
    const TokenLedger third(folder_, 0, 3, 1);
    EXPECT_EQ(third.known(7), 180);
    EXPECT_EQ(third.known(8), 30);
    EXPECT_EQ(third.known(9), 0);
    EXPECT_EQ(third.known(1'000'000), 0);
    EXPECT_EQ(TokenLedger(folder_, 0, 4, 2).known(7), 0) << "with other samples item 7 is another one";
}

TEST_F(TokenLedgerTest, FilesOfOthersAndMissingFoldersDoNoHarm) {
    for (const char* name : {"tokens-.bin", "tokens-0-x.bin", "tokens-0-99999999999999999999-1.bin",
                             "tokens-0--1-1.bin", "tokens-0-1.bin", "run.json"}) {
        std::ofstream(folder_ / name) << "ab";
    }
    EXPECT_EQ(TokenLedger(folder_, 0, 5, 1).known(0), 0);
    TokenLedger nowhere(folder_ / "missing", 0, 1, 1);
    nowhere.reached(3, 4);
    EXPECT_EQ(nowhere.known(3), 0);
}

TEST_F(TokenLedgerTest, AFinishedRunKeepsNone) {
    { TokenLedger(folder_, 0, 1, 1).reached(1, 5); }
    { TokenLedger(folder_, 3, 2, 1).reached(1, 5); }
    std::ofstream(folder_ / "run.json") << "{}";
    TokenLedger::remove_all(folder_);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

}  // namespace
}  // namespace longhaul::runner
