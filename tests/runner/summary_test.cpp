// What a run says at its end.
#include "runner/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace longhaul::runner {
namespace {

TEST(Summary, PerplexityAndBitsAByteWhereTokensWereScored) {
    Summary summary;
    summary.settings.mode = "perplexity";
    EXPECT_FALSE(summary.perplexity().has_value());
    EXPECT_FALSE(summary.to_json().contains("perplexity"));
    EXPECT_EQ(summary.to_table().find("perplexity"), std::string::npos);
    summary.outcome.nll = 1000 * std::log(2.0);
    summary.outcome.scored_tokens = 500;
    summary.outcome.scored_bytes = 2000;
    EXPECT_NEAR(*summary.perplexity(), 4, 1e-12);
    EXPECT_NEAR(*summary.bits_per_byte(), 0.5, 1e-12);
    EXPECT_NEAR(summary.to_json()["perplexity"].get<double>(), 4, 1e-12);
    const std::string table = summary.to_table();
    EXPECT_NE(table.find("4.0000 over 500 scored tokens, 0.5000 bits a byte"), std::string::npos) << table;
    EXPECT_EQ(table.find("block efficiency"), std::string::npos) << "nothing was generated";
}

TEST(Summary, MemoryBoundSpeedupWhereDraftsAreMade) {
    Summary summary;
    summary.settings.draft = "sd";
    summary.outcome.total_tokens = 300;
    summary.outcome.target_calls = 100;
    summary.outcome.memory_bound_calls = 150;  // each call's drafts cost half a call
    summary.outcome.speed = {.tokens = 300, .seconds = 2};
    EXPECT_DOUBLE_EQ(summary.to_json()["mbsu"].get<double>(), 2);
    const std::string table = summary.to_table();
    EXPECT_NE(table.find("3.00 tokens a target call, memory-bound speedup (MBSU) 2.00"), std::string::npos) << table;
    EXPECT_NE(table.find("150.0 tokens/s a replica"), std::string::npos) << table;
    summary.settings.draft = "ar";
    EXPECT_FALSE(summary.to_json().contains("mbsu"));
    EXPECT_EQ(summary.to_table().find("MBSU"), std::string::npos);
}

}  // namespace
}  // namespace longhaul::runner
