// The summary at the end of a run.
#include "runner/run/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

TEST(Summary, PerplexityAndBitsAByteWhereTokensWereScored) {
    Summary summary;
    summary.settings.mode = Mode::perplexity;
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
    EXPECT_NE(table.find("4.0000 over 500 scored tokens, 0.5000 bits per byte"), std::string::npos) << table;
    EXPECT_EQ(table.find("block efficiency"), std::string::npos) << "nothing was generated";
}

TEST(Summary, AccuracyOfQuestions) {
    Summary summary;
    summary.settings.mode = Mode::multiple_choice;
    EXPECT_FALSE(summary.to_json().contains("acc"));
    EXPECT_EQ(summary.to_table().find("accuracy"), std::string::npos);
    summary.outcome.items = 101;
    summary.outcome.answers = {.questions = 101, .right = 50, .with_norm = 101, .right_norm = 101};
    const auto json = summary.to_json();
    EXPECT_EQ(json["questions"], 101);
    EXPECT_DOUBLE_EQ(json["acc"].get<double>(), 50.0 / 101);
    EXPECT_DOUBLE_EQ(json["acc_stderr"].get<double>(), std::sqrt(50.0 / 101 * 51.0 / 101 / 100));
    EXPECT_DOUBLE_EQ(json["acc_norm"].get<double>(), 1);
    EXPECT_DOUBLE_EQ(json["acc_norm_stderr"].get<double>(), 0);
    EXPECT_NE(summary.to_table().find(
                  "accuracy     49.50 % ± 5.00 (acc), 100.00 % ± 0.00 per character (acc_norm), of 101 questions\n"),
              std::string::npos)
        << summary.to_table();
    EXPECT_FALSE(json.contains("groups"));
    EXPECT_FALSE(json.contains("mc2"));
    summary.outcome.groups["seas"] = {.questions = 1, .right = 1, .with_norm = 1, .right_norm = 0};
    EXPECT_EQ(summary.to_json()["groups"]["seas"]["acc"], 1);
    EXPECT_EQ(summary.to_json()["groups"]["seas"]["acc_stderr"], 0) << "of one question";
    summary.outcome.items = 120;
    EXPECT_NE(summary.to_table().find("(acc_norm), of 101 of 120 questions\n"), std::string::npos)
        << "others have no answer, or failed";
    summary.outcome.answers.with_mc2 = 3;  // 0.5, 0.7 and 0.9
    summary.outcome.answers.mc2 = 2.1;
    summary.outcome.answers.squares_of_mc2 = 0.25 + 0.49 + 0.81;
    EXPECT_NEAR(summary.to_json()["mc2"].get<double>(), 0.7, 1e-12);
    EXPECT_NEAR(summary.to_json()["mc2_stderr"].get<double>(), 0.2 / std::sqrt(3.0), 1e-12);
    EXPECT_NE(summary.to_table().find("(acc_norm), 70.00 % ± 11.55 (mc2), of 101 of 120 questions\n"),
              std::string::npos)
        << summary.to_table();
}

TEST(Summary, AccuracyOfContinuations) {
    Summary summary;
    summary.settings.mode = Mode::perplexity;
    summary.outcome.items = 4;
    summary.outcome.nll = 10;
    summary.outcome.scored_tokens = 9;
    summary.outcome.judged_tokens = 8;  // an earlier version scored the other one
    summary.outcome.greedy_tokens = 6;
    summary.outcome.answers = {.questions = 4, .right = 1};
    const auto json = summary.to_json();
    EXPECT_DOUBLE_EQ(json["token_accuracy"].get<double>(), 0.75);
    EXPECT_DOUBLE_EQ(json["acc"].get<double>(), 0.25);
    EXPECT_DOUBLE_EQ(json["acc_stderr"].get<double>(), 0.25);
    EXPECT_FALSE(json.contains("acc_norm"));
    EXPECT_FALSE(json.contains("questions"));
    EXPECT_EQ(json["continuations"], 4);
    EXPECT_EQ(json["judged_tokens"], 8);
    const std::string table = summary.to_table();
    EXPECT_NE(table.find("over 9 scored tokens, token accuracy 75.00 %\n"), std::string::npos) << table;
    EXPECT_NE(table.find("accuracy     25.00 % ± 25.00 (acc), of 4 continuations: all tokens are the most probable"),
              std::string::npos)
        << table;
}

TEST(Summary, NamesTheAnswersOfABatch) {
    Summary summary;
    summary.settings.task = "openai-batch";
    EXPECT_EQ(summary.to_table().find("batch_output.jsonl"), std::string::npos) << "not written yet";
    summary.outcome.all_done = true;
    EXPECT_NE(summary.to_table().find("\n  answers      batch_output.jsonl beside it"), std::string::npos)
        << summary.to_table();
    summary.settings.task = "prompts";
    EXPECT_EQ(summary.to_table().find("batch_output.jsonl"), std::string::npos);
}

TEST(Summary, SaysWhyTheFirstItemFailed) {
    Summary summary;
    summary.outcome.items = summary.outcome.done = 5;
    EXPECT_EQ(summary.to_table().find("fail"), std::string::npos) << summary.to_table();
    summary.outcome.failed = 2;
    summary.outcome.first_failure = "a: data:1: prompt: expected a string, got 7";
    const std::string table = summary.to_table();
    EXPECT_NE(table.find("5 of 5 done, 2 of them failed\n"), std::string::npos) << table;
    EXPECT_NE(table.find("  first failure  a: data:1: prompt: expected a string, got 7\n"), std::string::npos) << table;
}

TEST(Summary, SaysWhatPrefixCachingSaved) {
    Summary summary;
    summary.outcome.prompt_tokens = 12000;
    EXPECT_EQ(summary.to_json()["cached_tokens"], 0);
    EXPECT_EQ(summary.to_table().find("prefix caching"), std::string::npos) << summary.to_table();
    summary.outcome.cached_tokens = 9000;
    EXPECT_EQ(summary.to_json()["cached_tokens"], 9000);
    EXPECT_EQ(summary.to_json()["prompt_tokens"], 12000);
    EXPECT_NE(
        summary.to_table().find("  prefix caching  9,000 of 12,000 prompt tokens copied from items that begin alike\n"),
        std::string::npos)
        << summary.to_table();
}

TEST(Summary, CountsItemsWithoutAnAnswer) {
    Summary summary;
    EXPECT_FALSE(summary.to_json().contains("without_answer"));
    summary.settings.reasoning_end = "</think>";
    EXPECT_EQ(summary.to_json()["without_answer"], 0);
    EXPECT_EQ(summary.to_table().find("without answer"), std::string::npos);
    summary.outcome.without_answer = 3;
    EXPECT_EQ(summary.to_json()["without_answer"], 3);
    EXPECT_NE(summary.to_table().find("  without answer  3 items: the reasoning has no end\n"), std::string::npos)
        << summary.to_table();
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
    EXPECT_NE(table.find("3.00 tokens per target call, memory-bound speedup (MBSU) 2.00"), std::string::npos) << table;
    EXPECT_NE(table.find("150.0 tokens/s per replica"), std::string::npos) << table;
    summary.settings.draft = "ar";
    EXPECT_FALSE(summary.to_json().contains("mbsu"));
    EXPECT_EQ(summary.to_table().find("MBSU"), std::string::npos);
}

TEST(Summary, NoBlockEfficiencyBeforeTheFirstTargetCall) {
    Summary summary;
    EXPECT_EQ(summary.to_table().find("block efficiency"), std::string::npos) << summary.to_table();
    summary.outcome.total_tokens = summary.outcome.target_calls = 1;
    EXPECT_NE(summary.to_table().find("block efficiency"), std::string::npos) << summary.to_table();
}

TEST(Summary, TrainedDraftsThatAreNeverAcceptedAreDoubted) {
    const auto doubts = [](const std::string& draft, std::int64_t drafted, std::int64_t accepted,
                           std::int64_t calls = 1000) {
        Summary summary;
        summary.settings.draft = draft;
        summary.outcome.drafted = drafted;
        summary.outcome.accepted = accepted;
        summary.outcome.target_calls = calls;
        const char* question =
            draft == "mtp" ? "was its layer trained with this model?" : "were they trained for this model?";
        return summary.to_table().find(std::string("nearly none: ") + question) != std::string::npos;
    };
    for (const char* draft : {"eagle", "lyanna", "medusa", "mtp", "tokenswift"})
        EXPECT_TRUE(doubts(draft, 4000, 3)) << draft;
    EXPECT_FALSE(doubts("eagle", 4000, 300));
    EXPECT_FALSE(doubts("eagle", 40, 0)) << "too few to tell";
    EXPECT_FALSE(doubts("eagle", 512'000, 2500)) << "wide trees";
    EXPECT_FALSE(doubts("eagle", 400, 300, 1'000'000)) << "most calls had no drafts";
    EXPECT_FALSE(doubts("sd", 4000, 3)) << "a draft model of any origin may draft";
}

TEST(Outcome, TheRateIsThatOfPassesThatDecodeAlone) {
    const TemporaryFolder run;
    std::filesystem::create_directories(run.path() / "status");
    std::ofstream(run.path() / "status" / "0-1.json")
        << R"({"epoch": 1, "decode_tokens": 100, "mixed_tokens": 40, "decode_seconds": 3, "mixed_seconds": 2,)"
        << R"( "prefill_seconds": 1})";
    std::ofstream(run.path() / "status" / "0-2.json")  // of a version that did not distinguish them
        << R"({"epoch": 2, "decode_tokens": 50, "decode_seconds": 5, "prefill_seconds": 1})";
    JobOutcome outcome;
    add_times(run.path(), outcome);
    EXPECT_DOUBLE_EQ(outcome.speed.tokens_per_second(), (60 + 50) / 8.0);
    EXPECT_DOUBLE_EQ(outcome.working_seconds, 6 + 6) << "all of it is work";
}

}  // namespace
}  // namespace longhaul::runner
