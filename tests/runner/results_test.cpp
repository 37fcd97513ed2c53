// Result lines: their bytes, which of them count after a crash, and the merged file.
#include "runner/run/results.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>

#include "engine/error.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/run_folder.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

ResultRecord record_of(std::int64_t index, const std::string& text, std::int64_t num_tokens = 3,
                       const std::string& reason = "length") {
    return {.key = {index, 0},
            .id = "item-" + std::to_string(index),
            .text = text,
            .num_tokens = num_tokens,
            .finish_reason = reason,
            .error = reason == "error" ? "it broke" : "",
            .token_ids = {1, 2, 3},
            .max_tokens = num_tokens};
}

void append(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::app) << text;
}

struct ResultsTest : testing::Test {
    TemporaryFolder folder;
    fs::path run = folder.path() / "run";

    void SetUp() override { RunFolder{run}.create(); }

    /// A launch that records these items and ends without notice.
    void launch(const std::vector<ResultRecord>& records) {
        const Lease lease = Lease::take(run, 30);
        ResultWriter writer(run, 0, lease.epoch(), {}, {});
        std::int64_t number = 0;
        for (const ResultRecord& record : records) writer.append(record, {}, number++);
        writer.sync();
        EXPECT_EQ(writer.take_durable().size(), records.size());
        lease.end({{"state", "stopped"}});
    }
};

TEST(StatisticsLine, MemoryBoundSpeedupAndTokenRate) {
    engine::FinishedItem item;
    item.statistics.seconds = 5;
    item.statistics.prefill_seconds = 1;
    item.statistics.target_calls = 4;
    item.statistics.draft_calls = 6;
    item.statistics.decode_tokens = 10;
    const auto line = [&](const std::optional<DraftCost>& drafts) {
        return nlohmann::json::parse(format_statistics(record_of(0, "x", 12), item, 0, drafts));
    };
    // 10 tokens in 4 calls; 3 levels of an eighth of a call each; then the 6/4 levels that were run.
    EXPECT_DOUBLE_EQ(line(DraftCost{.level = 0.125, .levels = 3})["mbsu"].get<double>(), 2.5 / (3 * 0.125 + 1));
    EXPECT_DOUBLE_EQ(line(DraftCost{.level = 0.125, .levels = 0})["mbsu"].get<double>(), 2.5 / (1.5 * 0.125 + 1));
    EXPECT_DOUBLE_EQ(line(DraftCost{.level = 0.125, .levels = 0, .tree = 0.5})["mbsu"].get<double>(),
                     2.5 / (1.5 * 0.125 + 0.5 + 1));
    item.statistics.draft_model_calls = 2;
    item.statistics.accepted_draft_model = 3;
    EXPECT_DOUBLE_EQ(line(DraftCost{.level = 0.25, .levels = 0, .draft_model = 0.125})["mbsu"].get<double>(),
                     2.5 / (0.25 + 0.5 * 0.125 + 1))
        << "4 calls of the copy, 2 of a draft model";
    EXPECT_EQ(line(std::nullopt)["draft_model_calls"], 2);
    EXPECT_EQ(line(std::nullopt)["accepted_draft_model"], 3);
    EXPECT_DOUBLE_EQ(line(DraftCost{})["mbsu"].get<double>(), 2.5) << "drafts that cost nothing";
    EXPECT_FALSE(line(std::nullopt).contains("mbsu"));
    EXPECT_DOUBLE_EQ(line(std::nullopt)["tokens_per_second"].get<double>(), 12 / 4.0);
    item.statistics = {};
    EXPECT_EQ(line(DraftCost{})["mbsu"], 0.0) << "no call, no number";
    EXPECT_EQ(line(DraftCost{})["tokens_per_second"], 0.0);
}

TEST(ResultLine, KeysInOrderAndNothingElse) {
    EXPECT_EQ(format_result(record_of(4, "a \"quote\"\n"), {}),
              R"({"id":"item-4","text":"a \"quote\"\n","num_tokens":3,"finish_reason":"length"})");
    EXPECT_EQ(format_result(record_of(4, "x"), {.sample = true, .token_ids = true}),
              R"({"id":"item-4","sample":0,"text":"x","num_tokens":3,"finish_reason":"length","token_ids":[1,2,3]})");
    EXPECT_EQ(format_result(record_of(4, "", 0, "error"), {}),
              R"({"id":"item-4","text":"","num_tokens":0,"finish_reason":"error","error":"it broke"})");
}

std::vector<std::int32_t> logprob_rows() {
    const auto bits = [](float value) { return std::bit_cast<std::int32_t>(value); };
    // Two tokens with two alternatives each: 7 is the best itself, 9 is not among them.
    return {bits(-0.1F), 7, 3, bits(-0.1F), bits(-2.5F), bits(-1e-7F), 4, 5, bits(0), bits(-9999)};
}

TEST(ResultLine, LogprobsAreShortestNumbersTheChosenTokenFirst) {
    const std::vector<std::int32_t> tokens{7, 9};
    EXPECT_EQ(logprobs_text(tokens, logprob_rows()), "[[[7,-0.1],[3,-2.5]],[[9,-1e-07],[4,0.0],[5,-9999.0]]]");
    EXPECT_EQ(logprobs_text(tokens, {}), "");
}

TEST(ResultLine, LogprobsReadBackAsRowsOfTheSameText) {
    const std::vector<std::int32_t> tokens{7, 9};
    const std::string text = logprobs_text(tokens, logprob_rows());
    EXPECT_EQ(logprobs_rows(text, 2), logprob_rows());
    // The chosen token is the second best: its place among the best is not in the text.
    const std::string second = "[[[3,-2.5],[7,-0.1]]]";
    EXPECT_EQ(logprobs_text(std::vector<std::int32_t>{3}, logprobs_rows(second, 2)), second);
    EXPECT_EQ(logprobs_rows(text, 0), std::vector<std::int32_t>());
    for (const char* bad : {"", "[]", "[[]]", "[[[7,-0.1],[3,-2.5]],[]]", "[[[7,-0.1]]]",
                            "[[[7,-0.1],[3,-2.5],[4,1.0],[5,1.0]]]", "[[[7", "[[[7,", "[[[7,x],[3,-2.5]]]",
                            "[[[7,-0.1],[3,-2.5]]", "[[[7,-0.1],[3,1e99]]]", "[[[x,1.0],[3,-2.5]]]", "]]]", "null"})
        EXPECT_EQ(logprobs_rows(bad, 2), std::vector<std::int32_t>()) << bad;
}

ResultRecord record_with_everything() {
    ResultRecord record = record_of(2, "a \",\"logprobs\":[[[1]]]\"", 2, "stop");
    record.logprobs = logprobs_text(std::vector<std::int32_t>{7, 9}, logprob_rows());
    record.loss.add(5, -0.25, true);
    record.loss.add(6, -1.0 / 3, false);
    record.loss.add(100, -2, true);
    return record;
}

TEST(ResultLine, LossAndLogprobsComeLast) {
    EXPECT_EQ(format_result(record_with_everything(), {}),
              R"({"id":"item-2","text":"a \",\"logprobs\":[[[1]]]\"","num_tokens":2,"finish_reason":"stop",)"
              R"("nll":2.583333333333333,"loss_by_position":[[4,2,0.5833333333333333],[64,1,2.0]],"greedy_tokens":2,)"
              R"("logprobs":[[[7,-0.1],[3,-2.5]],[[9,-1e-07],[4,0.0],[5,-9999.0]]]})");
}

TEST(ResultLine, JournalKeepsLossAndLogprobs) {
    const ResultRecord record = record_with_everything();
    const std::string line = format_journal(record, {});
    const auto back = parse_journal(line);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(format_result(*back, {}), format_result(record, {}));
    EXPECT_EQ(format_journal(*back, {}), line);
    const std::string old = line.substr(0, line.find(",\"checksum\"")) + "}";
    EXPECT_TRUE(parse_journal(old).has_value());
    for (const char* damage : {"x", "\"", "}", "{", " "}) {
        std::string bad = old;
        bad.replace(bad.find("-9999"), 1, damage);
        EXPECT_FALSE(parse_journal(bad).has_value()) << damage;
    }
}

TEST(ResultLine, WhetherAContinuationIsGreedy) {
    const ResultFormat format{.continuations = true};
    ResultRecord record = record_of(2, "a", 1, "stop");
    record.loss.add(5, -0.25, true);
    EXPECT_NE(format_result(record, format).find(R"("greedy_tokens":1,"acc":1})"), std::string::npos);
    record.loss.add(6, -3, false);
    EXPECT_NE(format_result(record, format).find(R"("greedy_tokens":1,"acc":0})"), std::string::npos);
    const nlohmann::json statistics = nlohmann::json::parse(format_statistics(record, {}, 0, {}, format));
    EXPECT_EQ(statistics["greedy_tokens"], 1);
    EXPECT_EQ(statistics["acc"], 0);
    EXPECT_EQ(format_result(*parse_journal(format_journal(record, format)), format), format_result(record, format));
    ResultRecord unfinished = record;
    unfinished.finish_reason = "partial";
    EXPECT_NE(format_result(unfinished, format).find(R"("greedy_tokens":1})"), std::string::npos) << "and no acc yet";
    record.loss.greedy_tokens.reset();  // an earlier version scored some
    EXPECT_EQ(format_result(record, format).find("greedy"), std::string::npos);
    EXPECT_EQ(format_result(record, format).find("acc"), std::string::npos);
    EXPECT_EQ(format_result(*parse_journal(format_journal(record, format)), format), format_result(record, format));
}

TEST(ResultLine, ChoicesOfAQuestion) {
    ResultRecord record = record_of(4, "sea", 5, "stop");
    record.choices = ChoiceScores{.logprobs = {-1.5, -0.25}, .chosen = 1, .chosen_norm = 0, .right = {0}};
    EXPECT_EQ(format_result(record, {}),
              R"({"id":"item-4","text":"sea","num_tokens":5,"finish_reason":"stop","choice":1,"choice_norm":0,)"
              R"("choice_logprobs":[-1.5,-0.25],"right":0,"acc":0,"acc_norm":1})");
    const nlohmann::json statistics = nlohmann::json::parse(format_statistics(record, {}, 0, {}));
    EXPECT_EQ(statistics["acc"], 0);
    EXPECT_EQ(statistics["acc_norm"], 1);
    const auto read = parse_journal(format_journal(record, {}));
    ASSERT_TRUE(read);
    EXPECT_EQ(format_result(*read, {}), format_result(record, {}));
    record.choices->group = "seas";
    EXPECT_NE(format_result(record, {}).find(R"("finish_reason":"stop","group":"seas","choice":1,)"),
              std::string::npos);
    EXPECT_EQ(format_result(*parse_journal(format_journal(record, {})), {}), format_result(record, {}));
    EXPECT_EQ(nlohmann::json::parse(format_statistics(record, {}, 0, {}))["group"], "seas");
    record.choices->right = {1};
    record.choices->may_have_several_right = true;
    record.choices->mc2 = 0.75;
    EXPECT_NE(format_result(record, {}).find(R"("right":[1],"acc":1,"acc_norm":0,"mc2":0.75})"), std::string::npos)
        << "an array, as in the lines of others that have several";
    record.choices->right = {1, 2};
    record.choices->mc2 = 0.25;
    EXPECT_NE(format_result(record, {}).find(R"("right":[1,2],"acc":1,"acc_norm":0,"mc2":0.25})"), std::string::npos)
        << format_result(record, {});
    EXPECT_EQ(format_result(*parse_journal(format_journal(record, {})), {}), format_result(record, {}));
    EXPECT_EQ(nlohmann::json::parse(format_statistics(record, {}, 0, {}))["mc2"], 0.25);
    record.choices->right.clear();
    EXPECT_EQ(format_result(record, {}).find("acc"), std::string::npos) << "the right one is not known";
    EXPECT_FALSE(nlohmann::json::parse(format_statistics(record, {}, 0, {})).contains("acc"));
    EXPECT_EQ(format_result(*parse_journal(format_journal(record, {})), {}), format_result(record, {}));
}

TEST(ResultLine, TextIsAlwaysValid) {
    EXPECT_EQ(
        format_result(record_of(0, "caf\xc3\xa9 \xff"), {}),
        "{\"id\":\"item-0\",\"text\":\"caf\xc3\xa9 \xef\xbf\xbd\",\"num_tokens\":3,\"finish_reason\":\"length\"}");
}

TEST(ResultLine, JournalReadsBack) {
    ResultRecord record = record_of(7, "line\u2028break", 9, "stop");
    record.max_tokens = 50;
    record.own_max_tokens = true;
    const auto back = parse_journal(format_journal(record, {.sample = false, .token_ids = true}));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->key, record.key);
    EXPECT_EQ(back->text, record.text);
    EXPECT_EQ(back->token_ids, record.token_ids);
    EXPECT_EQ(back->max_tokens, record.max_tokens);
    EXPECT_TRUE(back->own_max_tokens);
    EXPECT_FALSE(parse_journal("{\"index\":1").has_value());
    EXPECT_FALSE(parse_journal("[]").has_value());
    EXPECT_FALSE(parse_journal(R"({"index":"x","sample":0})").has_value());
}

TEST_F(ResultsTest, TornLastLineIsNone) {
    launch({record_of(0, "a"), record_of(1, "b")});
    const std::string whole = format_journal(record_of(2, "c"), {});
    append(run / "results" / "0-1.jsonl", whole.substr(0, whole.size() / 2));
    const ResultIndex index = ResultIndex::read(run);
    EXPECT_EQ(index.entries().size(), 2U);
    EXPECT_EQ(index.find({2, 0}), nullptr);
    EXPECT_EQ(index.load(*index.find({1, 0})).text, "b");
}

TEST_F(ResultsTest, WholeLineWithoutItsEndIsNone) {
    launch({record_of(0, "a")});
    append(run / "results" / "0-1.jsonl", format_journal(record_of(1, "b"), {}));
    EXPECT_EQ(ResultIndex::read(run).entries().size(), 1U);
}

TEST_F(ResultsTest, StaleLaunchWritesNothingThatIsRead) {
    launch({record_of(0, "a")});
    launch({record_of(1, "b")});
    append(run / "results" / "0-1.jsonl", format_journal(record_of(2, "late"), {}) + "\n");
    append(run / "results" / "5-1.jsonl", format_journal(record_of(3, "later"), {}) + "\n");
    const ResultIndex index = ResultIndex::read(run);
    EXPECT_EQ(index.entries().size(), 2U);
    EXPECT_EQ(index.find({2, 0}), nullptr);
    EXPECT_EQ(index.find({3, 0}), nullptr);
    launch({});
    EXPECT_EQ(ResultIndex::read(run).entries().size(), 2U) << "nor later";
}

ResultRecord resumable(std::int64_t index, const std::string& text, std::int64_t num_tokens = 3) {
    ResultRecord record = record_of(index, text, num_tokens);
    record.prompt_tokens = 5;
    record.statistics = R"({"decode_tokens":3,"seconds":0.1})";
    record.logprobs = "[[[1,-0.5],[4,-1.0]],[[2,-0.5],[4,-1.0]],[[3,-0.5],[4,-1.0]]]";
    return record;
}

std::vector<std::int32_t> tokens_to_resume(const std::string& line) {
    const auto parsed = parse_journal(line);
    return parsed ? resume_tokens(*parsed) : std::vector<std::int32_t>();
}

TEST(ResultLine, WhatAGreaterLimitContinuesIsInTheLine) {
    const ResultRecord record = resumable(2, "a");
    const std::string line = format_journal(record, {});
    EXPECT_EQ(tokens_to_resume(line), record.token_ids);
    EXPECT_EQ(parse_journal(line)->statistics, record.statistics);
    EXPECT_EQ(parse_journal(line)->token_ids, std::vector<std::int32_t>()) << "the results have none";
    EXPECT_EQ(format_result(*parse_journal(line), {}), format_result(record, {}));
    EXPECT_EQ(tokens_to_resume(format_journal(record, {.sample = false, .token_ids = true})), record.token_ids);
    EXPECT_EQ(tokens_to_resume(format_journal(record_of(2, "a"), {})), std::vector<std::int32_t>());
}

TEST(ResultLine, AnyChangedByteIsNoticed) {
    const std::string line = format_journal(resumable(2, "a \"text\""), {});
    ASSERT_TRUE(parse_journal(line).has_value());
    const std::size_t checksum = line.find(",\"checksum\":\"");
    for (std::size_t at = 0; at < line.size(); ++at) {
        std::string bad = line;
        bad[at] ^= 1;
        EXPECT_EQ(tokens_to_resume(bad), std::vector<std::int32_t>()) << bad;
        // Where the checksum's own name is damaged, the line is one of an older version, and as it was.
        EXPECT_TRUE(at >= checksum || !parse_journal(bad)) << bad;
        EXPECT_FALSE(parse_journal(line.substr(0, at)).has_value());
    }
}

TEST(ResultLine, OlderVersionsWroteNoChecksum) {
    std::string line = format_journal(resumable(2, "a"), {});
    line.replace(line.find(",\"checksum\""), std::string::npos, "}");
    ASSERT_TRUE(parse_journal(line).has_value());
    EXPECT_EQ(parse_journal(line)->text, "a");
    EXPECT_EQ(tokens_to_resume(line), std::vector<std::int32_t>()) << "nothing continues from what may be damaged";
}

TEST_F(ResultsTest, WhatAGreaterLimitContinues) {
    ResultRecord stopped = resumable(1, "b");
    stopped.finish_reason = "stop";
    launch({resumable(0, "a"), stopped, record_of(2, "c"), resumable(3, "d")});
    launch({record_of(3, "", 0, "error")});
    const ResultIndex index = ResultIndex::read(run);
    EXPECT_EQ(index.find_resumable({0, 0}), index.find({0, 0}));
    EXPECT_EQ(index.find_resumable({1, 0}), nullptr) << "it ended by itself";
    EXPECT_EQ(index.find_resumable({2, 0}), nullptr) << "a line of an older version";
    ASSERT_NE(index.find_resumable({3, 0}), nullptr) << "it failed under a greater limit, and may have memory now";
    EXPECT_EQ(index.load(*index.find_resumable({3, 0})).text, "d");
    EXPECT_TRUE(index.find({3, 0})->failed);
    EXPECT_EQ(index.find_resumable({4, 0}), nullptr);
}

TEST_F(ResultsTest, NewestLaunchCounts) {
    launch({record_of(0, "", 0, "error")});
    launch({record_of(0, "good")});
    const ResultIndex index = ResultIndex::read(run);
    EXPECT_EQ(index.load(*index.find({0, 0})).text, "good");
}

TEST_F(ResultsTest, MergedInTheOrderOfTheInput) {
    launch({record_of(2, "c"), record_of(0, "a")});
    launch({record_of(1, "b")});
    Settings settings;
    write_results(run, "1", ResultIndex::read(run), 3, settings);
    std::string text = read_if_there(run / "results.jsonl");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
    EXPECT_LT(text.find("item-0"), text.find("item-1"));
    EXPECT_LT(text.find("item-1"), text.find("item-2"));
    write_results(run, "1", ResultIndex::read(run), 3, settings);
    EXPECT_EQ(read_if_there(run / "results.jsonl"), text) << "again is the same";
}

TEST_F(ResultsTest, MoreFilesThanAProcessKeepsOpen) {
    constexpr std::int64_t launches = 70;
    for (std::int64_t i = 0; i < launches; ++i) launch({record_of(launches - 1 - i, "text " + std::to_string(i))});
    const ResultIndex index = ResultIndex::read(run);
    for (std::int64_t i = 0; i < launches; ++i)
        EXPECT_EQ(index.load(*index.find({i, 0})).text, "text " + std::to_string(launches - 1 - i));
}

TEST_F(ResultsTest, StatisticsAreMergedInTheOrderOfTheInput) {
    append(run / "log" / "stats-0-1.jsonl",
           "{\"index\":1,\"id\":\"b\",\"sample\":0,\"steps\":1}\n{\"index\":0,\"id\":\"a\",\"sample\":1}\n");
    append(run / "log" / "stats-3-2.jsonl", "{\"index\":0,\"id\":\"a\",\"sample\":0,\"seconds\":0.1}\nno json\n");
    append(run / "log" / "stats-1-2.jsonl", "{\"index\":1,\"id\":\"b\",\"sample\":0,\"steps\":2}\n{\"index\":2,");
    std::int64_t steps = 0;
    const std::vector<std::string> damage =
        write_statistics(run, "1", std::span(&run, 1), ResultIndex(),
                         [&](const nlohmann::ordered_json& line) { steps += line.value("steps", std::int64_t{0}); });
    EXPECT_EQ(damage, std::vector<std::string>{(run / "log" / "stats-3-2.jsonl").string() +
                                               ": line 2: expected statistics, got a damaged line; the summary's "
                                               "totals are without it"});
    EXPECT_EQ(read_if_there(run / "stats.jsonl"),
              "{\"id\":\"a\",\"sample\":0,\"seconds\":0.1}\n{\"id\":\"a\",\"sample\":1}\n"
              "{\"id\":\"b\",\"sample\":0,\"steps\":2}\n");
    EXPECT_EQ(steps, 2) << "the newest line of an item alone";
}

TEST_F(ResultsTest, DamagedStatisticsDoNotCountAndAreNamed) {
    launch({record_of(0, "a"), record_of(1, "b"), record_of(2, "", 0, "error")});
    const fs::path journal = run / "log" / "stats-0-1.jsonl";
    const auto damage = [&] {
        return write_statistics(run, "1", std::span(&run, 1), ResultIndex::read(run),
                                [](const nlohmann::ordered_json&) {});
    };
    EXPECT_EQ(damage(), std::vector<std::string>());
    EXPECT_EQ(read_if_there(run / "stats.jsonl").find("checksum"), std::string::npos);
    std::string text = read_if_there(journal);
    text.replace(text.find("\"num_tokens\":3"), 14, "\"num_tokens\":4");
    std::ofstream(journal) << text;
    const std::vector<std::string> lines = damage();
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_TRUE(lines[0].starts_with(journal.string() + ": line 1: expected statistics, got a damaged line;"));
    EXPECT_EQ(lines[1], (run / "stats.jsonl").string() +
                            ": expected a line of each item that did not fail, got none of 1; the summary's totals "
                            "are without it");
    EXPECT_EQ(read_if_there(run / "stats.jsonl").find("item-0"), std::string::npos);
}

TEST_F(ResultsTest, DamagedLinesAreCountedForEachFile) {
    launch({record_of(0, "a"), record_of(1, "b"), record_of(2, "c")});
    EXPECT_EQ(ResultIndex::read(run).damage(), std::vector<std::string>());
    const fs::path journal = run / "results" / "0-1.jsonl";
    std::string text = read_if_there(journal);
    for (const char* letter : {"\"b\"", "\"c\""}) text.replace(text.find(letter), 3, "\"x\"");
    std::ofstream(journal) << text;
    EXPECT_EQ(ResultIndex::read(run).damage(),
              std::vector<std::string>{journal.string() +
                                       ": line 2: expected a result, got a damaged line, as in 1 more; its item is "
                                       "computed again"});
}

TEST(ResultIndex, DoneUnderTheseSettings) {
    Settings settings;
    settings.max_tokens = 10;
    using Entry = ResultIndex::Entry;
    EXPECT_TRUE(ResultIndex::is_done(Entry{.num_tokens = 10, .at_length = true}, settings));
    EXPECT_FALSE(ResultIndex::is_done(Entry{.num_tokens = 9, .at_length = true}, settings)) << "max-tokens was raised";
    EXPECT_TRUE(ResultIndex::is_done(Entry{.num_tokens = 3}, settings)) << "ended by itself";
    EXPECT_TRUE(ResultIndex::is_done(Entry{.num_tokens = 9, .max_tokens = 10, .at_length = true}, settings))
        << "scored tokens may be fewer than were asked for";
    EXPECT_FALSE(ResultIndex::is_done(Entry{.num_tokens = 9, .max_tokens = 9, .at_length = true}, settings));
    EXPECT_TRUE(ResultIndex::is_done(Entry{.num_tokens = 9, .max_tokens = 9, .own_max_tokens = true, .at_length = true},
                                     settings))
        << "the item's own limit stays what it was";
    EXPECT_TRUE(ResultIndex::is_done(Entry{.max_tokens = 10, .failed = true}, settings));
    EXPECT_FALSE(ResultIndex::is_done(Entry{.max_tokens = 9, .failed = true}, settings))
        << "another error, perhaps none";
    EXPECT_TRUE(ResultIndex::is_done(Entry{.max_tokens = 9, .own_max_tokens = true, .failed = true}, settings));
    settings.retry_failed = true;
    EXPECT_FALSE(ResultIndex::is_done(Entry{.max_tokens = 10, .failed = true}, settings));
}

TEST(LineFile, WhatCannotBeCreatedIsAStorageError) {
    LineFile file("/dev/null/impossible");
    EXPECT_THROW(file.append("x"), StorageError);
}

TEST(FileReplacement, IsSeenWholeOrNotAtAll) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "results.jsonl";
    const std::string piece(100000, 'x');
    {
        FileReplacement given_up(path, "1");
        given_up.append(piece);
        given_up.append(piece);
        given_up.append(piece);
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
    FileReplacement file(path, "1");
    for (int i = 0; i < 5; ++i) file.append(piece);
    EXPECT_FALSE(fs::exists(path));
    file.commit(Durable::yes);
    EXPECT_EQ(fs::file_size(path), 500000U);
}

TEST(ReplaceFile, OldContentStaysWhenTheNewCannotBeWritten) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "status.json";
    replace_file(path, "old", Durable::yes, "1");
    fs::create_directory(folder.path() / "status.json.2.tmp");  // blocks the temporary's name
    EXPECT_THROW(replace_file(path, "new", Durable::yes, "2"), StorageError);
    EXPECT_EQ(read_if_there(path), "old");
    replace_file(path, "new", Durable::no, "3");
    EXPECT_EQ(read_if_there(path), "new");
}

}  // namespace
}  // namespace longhaul::runner
