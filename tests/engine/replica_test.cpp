// A whole replica on a tiny model: the text does not depend on batch, draft method, split, memory, stops and resumes.
#include "engine/replica/replica.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint/commit.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/model.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

/// Autoregressive, batch 1, one rank, reference kernels: the reference for all other configurations.
const std::map<std::int64_t, std::vector<std::int32_t>>& expected() {
    static const auto texts = [] {
        Job job{base_options()};
        job.options.draft.method = "ar";
        job.options.batch = 1;
        job.variant = kernels::CpuVariant::reference;
        const JobResult result = launch(job);
        EXPECT_EQ(result.sum.drafted, 0);
        EXPECT_EQ(result.sum.target_calls, result.sum.decode_tokens);
        return tokens_of(result.items);
    }();
    return texts;
}

TEST(Replica, OneTextForEveryBatchAndDraft) {
    ASSERT_EQ(expected().size(), 5U);
    for (const auto& [index, tokens] : expected()) ASSERT_EQ(tokens.size(), 60U);
    for (const std::int64_t batch : {1, 3, 8}) {
        for (const char* tree : {"4", "1x1", "3x4:8", "8x6:20"}) {
            Job job{base_options()};
            job.options.batch = batch;
            job.options.draft.tree = tree;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), expected()) << "batch " << batch << " tree " << tree;
            EXPECT_GT(result.sum.accepted, 5);
            EXPECT_GT(result.sum.drafted, result.sum.accepted);
            EXPECT_EQ(result.sum.decode_tokens, 5 * 60);
            EXPECT_LT(result.sum.target_calls, 5 * 60);
            if (std::string(tree).find(':') != std::string::npos) {
                EXPECT_GT(result.sum.branched_trees, 5);
            }
        }
    }
}

// Passes over an item's prompt count as its prefill, even while other items decode. Such mixed passes are excluded from
// the job's decode rate.
TEST(Replica, TimesTellPromptsFromDecoding) {
    for (const std::int64_t batch : {1, 4}) {
        Job job{base_options()};  // prompts of 20 to 168 tokens, 32 per pass
        job.options.draft.method = "ar";
        job.options.batch = batch;
        const JobResult result = launch(job);
        double seconds = 0;
        for (const auto& [index, item] : result.items) {
            EXPECT_GT(item.statistics.prefill_seconds, 0) << "item " << index << ", batch " << batch;
            EXPECT_GT(item.statistics.seconds, item.statistics.prefill_seconds) << "item " << index;
            seconds += item.statistics.seconds;
        }
        const ReplicaOutcome& outcome = result.outcome;
        EXPECT_GT(outcome.decode_seconds, 0);
        EXPECT_GT(outcome.prefill_seconds, 0);
        if (batch == 1) {
            EXPECT_EQ(outcome.mixed_seconds, 0);
            EXPECT_EQ(outcome.progress.mixed_tokens, 0);
            EXPECT_NEAR(outcome.decode_seconds + outcome.prefill_seconds, seconds, 1e-9);
        } else {
            // A pass has 32 rows of prompts, also of two of them. Behind the first pass, prompts of 57, 94 and 131
            // tokens take 2, 3 and 4 further ones, while one, two and three earlier items decode. The last prompt takes
            // 6, during which the first two of three decoding items end after 2 and 5 passes.
            EXPECT_EQ(outcome.progress.mixed_tokens, 2 * 1 + 3 * 2 + 4 * 3 + (2 * 3 + 3 * 2 + 1));
            EXPECT_GT(outcome.mixed_seconds, 0);
        }
    }
}

TEST(Replica, OneTextForEverySplit) {
    for (const int ranks : {2, 4, 8}) {
        Job job{base_options()};
        job.ranks = ranks;
        job.options.batch = 3;
        EXPECT_EQ(tokens_of(launch(job).items), expected()) << ranks << " ranks";
    }
}

// Each rank estimates the cost of a row by itself; all ranks must use the first rank's number of rows per pass.
TEST(Replica, AllRanksTakeTheFirstOnesRowsOfPrompts) {
    Job job{base_options()};
    job.ranks = 2;
    job.adapt = [](int rank, ReplicaOptions& options) { options.prefill_chunk = rank == 0 ? 24 : 7; };
    EXPECT_EQ(tokens_of(launch(job).items), expected());
}

// ngram-top = 0 means no n-gram table: plain autoregressive decoding.
TEST(Replica, NoTableNoDrafts) {
    Job job{base_options()};
    job.options.draft.ngram_top = 0;
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), expected());
    EXPECT_EQ(result.sum.drafted, 0);
}

// Drafts are the tokens of an earlier run: at a known acceptance rate the text is the same, and the speedup is the
// expected one.
TEST(Replica, ReplayGainsWhatItsAcceptanceSays) {
    struct Case {
        const char* tree;
        double accept, min_efficiency, max_efficiency;
    };
    // A chain of 4 with acceptance a gives 1 + a + a^2 + a^3 + a^4 tokens per call; a tree of width 2 gives the same
    // with 1 - (1 - a)^2 in place of a.
    for (const Case& row :
         {Case{"4", 1.0, 4.9, 5.01}, Case{"4", 0.7, 2.3, 3.2}, Case{"2x4", 0.7, 3.6, 4.6}, Case{"4", 0.0, 1.0, 1.0}}) {
        Job job{base_options()};
        job.ranks = 2;
        job.options.draft.method = "replay";
        job.options.draft.tree = row.tree;
        job.options.draft.replay_accept = row.accept;
        job.options.draft.recorded = [](const std::string& id, std::int64_t) {
            return expected().at(std::stoll(id.substr(5)));
        };
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), expected());
        EXPECT_GE(result.sum.block_efficiency(), row.min_efficiency) << row.tree << " " << row.accept;
        EXPECT_LE(result.sum.block_efficiency(), row.max_efficiency) << row.tree << " " << row.accept;
    }
}

// Negative control: comparisons with expected() can fail.
TEST(Replica, AnotherSeedIsAnotherText) {
    Job job{base_options()};
    job.generation.seed = 2;
    EXPECT_NE(tokens_of(launch(job).items), expected());
}

/// Five items, each with different options.
std::map<std::int64_t, GenerationOptions> different_options() {
    std::map<std::int64_t, GenerationOptions> own;
    for (std::int64_t i = 0; i < 5; ++i) own[i] = base_generation();
    own[0].max_tokens = 25;
    own[1].seed = 77;
    own[2].sampling = {.temperature = 0};
    own[2].stop = {"<7>", NumberTokenizer().decode(std::span(expected().at(2)).subspan(30, 1), false)};
    own[3].sampling.top_k = 3;
    own[3].eos_ids = {expected().at(3)[40]};
    own[4].sampling.temperature = 1.7;
    own[4].sampling.repetition_penalty = 1;
    return own;
}

// An item's options are its own, on every rank and in any batch.
TEST(Replica, ItemsWithDifferentOptionsAreAsAlone) {
    std::map<std::int64_t, FinishedItem> alone;
    for (const auto& [index, options] : different_options()) {
        Job job{base_options()};
        job.generation = options;
        job.options.batch = 1;
        job.options.draft.method = "ar";
        alone[index] = launch(job).items.at(index);
    }
    EXPECT_EQ(alone.at(0).tokens.size(), 25U);
    EXPECT_EQ(alone.at(3).reason, FinishReason::stop);
    for (std::int64_t i = 1; i < 5; ++i) EXPECT_NE(alone.at(i).tokens, expected().at(i)) << "item " << i;
    for (const int ranks : {1, 2}) {
        Job job{base_options()};
        job.ranks = ranks;
        job.options.batch = 5;
        job.own = different_options();
        const JobResult together = launch(job);
        ASSERT_EQ(together.items.size(), 5U);
        for (const auto& [index, item] : together.items) {
            EXPECT_EQ(item.tokens, alone.at(index).tokens) << "item " << index << ", " << ranks << " ranks";
            EXPECT_EQ(item.text, alone.at(index).text);
            EXPECT_EQ(item.reason, alone.at(index).reason);
            EXPECT_EQ(item.max_tokens, job.own.at(index).max_tokens);
        }
        EXPECT_GT(together.sum.accepted, 5);
    }
}

// Memory for about two sequences: admission waits, the youngest item is preempted, and the text does not change.
TEST(Replica, LittleMemoryChangesNothing) {
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);  // the page size depends on the variant
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto page = static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout()));
    for (const std::int64_t pages : {6, 7, 9}) {
        Job job{base_options()};
        job.options.batch = 8;
        job.options.kv_memory_bytes = pages * page;
        EXPECT_EQ(tokens_of(launch(job).items), expected()) << pages << " pages";
    }
    // With deep trees a preempted item may have outgrown the memory. Then it ends with an error, and no other item
    // waits for it.
    for (const std::int64_t pages : {4, 5, 6}) {
        Job job{base_options()};
        job.options.batch = 8;
        job.options.draft.tree = "200";
        job.options.kv_memory_bytes = pages * page;
        const JobResult result = launch(job);
        EXPECT_EQ(result.items.size(), 5U);
        for (const auto& [index, item] : result.items) {
            if (item.reason == FinishReason::error) {
                EXPECT_NE(item.error.find("memory"), std::string::npos);
            } else {
                EXPECT_EQ(item.tokens, expected().at(index));
            }
        }
    }
    Job job{base_options()};
    job.options.kv_memory_bytes = 3 * page;  // too small for the longer prompts
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(0).reason, FinishReason::length);
    EXPECT_EQ(result.items.at(0).tokens, expected().at(0));
    EXPECT_EQ(result.items.at(4).reason, FinishReason::error);
    EXPECT_NE(result.items.at(4).error.find("memory"), std::string::npos);
}

TEST(Replica, StopStringAndEndOfTextEndAnItem) {
    Job job{base_options()};
    const auto& tokens = expected().at(2);
    job.generation.eos_ids = {tokens[10]};
    const std::size_t first =
        static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), tokens[10]) - tokens.begin());
    const FinishedItem by_eos = launch(job).items.at(2);
    EXPECT_EQ(by_eos.reason, FinishReason::stop);
    EXPECT_EQ(by_eos.tokens,
              std::vector<std::int32_t>(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(first) + 1));
    EXPECT_EQ(by_eos.text,
              NumberTokenizer().decode(std::span(tokens).first(first), true));  // without the end-of-text token

    job.generation.eos_ids.clear();
    const std::string stop =
        NumberTokenizer().decode(std::span(tokens).subspan(20, 2), false).substr(1);  // starts inside a token
    job.generation.stop = {stop};
    const FinishedItem by_stop = launch(job).items.at(2);
    EXPECT_EQ(by_stop.reason, FinishReason::stop);
    const std::string whole = NumberTokenizer().decode(tokens, true);
    EXPECT_EQ(by_stop.text, whole.substr(0, whole.find(stop)));
    EXPECT_LE(by_stop.tokens.size(), 22U);
}

class ReplicaResume : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("longhaul-replica-" + std::to_string(::getpid()) + "-" +
                                                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
        start_anew();
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    void start_anew() const {
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }

    [[nodiscard]] std::int64_t files() const {
        return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
    }

    std::filesystem::path folder_;
};

// Stopped many times, in prefill and in decoding, and resumed with another batch and split each time: the same text.
// With stored KV no row is computed twice.
TEST_F(ReplicaResume, ManyStopsGiveOneText) {
    for (const bool store_kv : {true, false}) {
        start_anew();
        std::map<std::int64_t, FinishedItem> done;
        std::int64_t resumes = 0;
        std::int64_t recomputed = 0;
        const int splits[] = {1, 2, 1, 4};
        for (int epoch = 1; epoch < 40 && done.size() < 5; ++epoch) {
            Job job{base_options()};
            job.ranks = splits[epoch % 4];
            job.options.batch = 1 + epoch % 3;
            job.options.draft.method = epoch % 5 == 0 ? "ar" : "ngram";
            job.options.checkpoint.folder = folder_;
            job.options.checkpoint.epoch = epoch;
            job.options.checkpoint.every_tokens = 16;
            job.options.checkpoint.store_kv = store_kv;
            job.stop_after = epoch == 1 ? 0 : 40;
            const JobResult result = launch(job, done);
            EXPECT_EQ(result.outcome.checkpoint_error, "");
            for (const auto& [index, item] : result.items) {
                EXPECT_FALSE(done.contains(index));
                resumes += item.statistics.resumes;
                recomputed += item.statistics.recomputed_rows;
                EXPECT_EQ(item.statistics.decode_tokens, 60) << "counters survive a resume";
                done[index] = item;
            }
        }
        EXPECT_EQ(tokens_of(done), expected()) << (store_kv ? "store" : "recompute");
        EXPECT_GT(resumes, 4);
        if (store_kv) {
            EXPECT_EQ(recomputed, 0);
        } else {
            EXPECT_GT(recomputed, 100);
        }
    }
}

constexpr std::int64_t lower_limit = 25;

/// A job with log-probabilities whose items ended at `lower_limit` before.
Job raised_job() {
    Job job{base_options()};
    job.generation.logprobs = 2;
    Job before = job;
    before.generation.max_tokens = lower_limit;
    for (const auto& [index, item] : launch(before).items) {
        EXPECT_EQ(item.reason, FinishReason::length);
        job.earlier[index] = {item.tokens, item.logprobs, statistics_to_json(item.statistics)};
    }
    return job;
}

TEST_F(ReplicaResume, AGreaterLimitGoesOnFromTheResult) {
    Job job = raised_job();
    Job whole = job;
    whole.earlier.clear();
    const JobResult from_prompts = launch(whole);
    for (const int ranks : {1, 2}) {
        for (const char* method : {"ar", "ngram"}) {
            job.ranks = ranks;
            job.options.draft.method = method;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), expected()) << method << ", " << ranks << " ranks";
            EXPECT_EQ(result.outcome.progress.emitted_tokens, 5 * (60 - lower_limit)) << "nothing is generated twice";
            for (const auto& [index, item] : result.items) {
                EXPECT_EQ(item.logprobs, from_prompts.items.at(index).logprobs);
                EXPECT_EQ(item.statistics.decode_tokens, 60) << "counters go on";
                EXPECT_EQ(item.statistics.recomputed_rows, std::ssize(prompt_of(index)) + lower_limit - 1);
            }
        }
    }
    const JobResult in_parts = launch_in_parts({job}, folder_, 40);
    EXPECT_EQ(tokens_of(in_parts.items), expected()) << "what a checkpoint has more counts";
    EXPECT_GT(in_parts.sum.resumes, 5);
}

TEST_F(ReplicaResume, AResultThatDoesNotFitIsGeneratedAgain) {
    const Job fitting = raised_job();
    const auto generated = [](const Job& job) {
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), expected());
        return result.outcome.progress.emitted_tokens;
    };
    constexpr std::int64_t rest = 5 * 60 - lower_limit * 4;  // item 0 starts again
    ASSERT_EQ(generated(fitting), 5 * (60 - lower_limit));
    const auto with = [&](const std::function<void(EarlierOutput&)>& change) {
        Job job = fitting;
        change(job.earlier.at(0));
        return generated(job);
    };
    EXPECT_EQ(with([](EarlierOutput& earlier) { earlier.tokens[3] = 4096; }), rest) << "no token of the model";
    EXPECT_EQ(with([](EarlierOutput& earlier) { earlier.tokens[3] = -1; }), rest);
    EXPECT_EQ(with([](EarlierOutput& earlier) { earlier.tokens.assign(60, 1); }), rest) << "beyond the limit";
    EXPECT_EQ(with([](EarlierOutput& earlier) { earlier.logprobs.pop_back(); }), rest);
    Job sampled = fitting;
    sampled.options.verify = VerifyRule::rejection;
    sampled.options.draft.method = "ar";
    EXPECT_EQ(launch(sampled).outcome.progress.emitted_tokens, 5 * 60) << "its end may not be a step's";
}

TEST_F(ReplicaResume, AnItemRefusedForMemoryKeepsItsText) {
    Job job = raised_job();
    job.options.kv_memory_bytes = 1;
    const JobResult result = launch(job);
    ASSERT_EQ(result.items.size(), 5U);
    for (const auto& [index, item] : result.items) {
        EXPECT_EQ(item.reason, FinishReason::error);
        EXPECT_EQ(item.tokens, job.earlier.at(index).tokens);
        EXPECT_EQ(item.logprobs, job.earlier.at(index).logprobs);
        EXPECT_EQ(item.text, NumberTokenizer().decode(item.tokens, true));
        EXPECT_EQ(item.statistics.decode_tokens, lower_limit);
    }
}

// A row per 1,024 output tokens, with everything that earlier launches did for them.
TEST_F(ReplicaResume, RowsByLengthGoOn) {
    Job job{base_options()};
    job.model = LONGHAUL_DEMO_MODEL;  // its context is long enough
    job.items = 1;
    job.generation.max_tokens = 2200;
    const JobResult result = launch_in_parts({job}, folder_, 500);
    EXPECT_GT(result.sum.resumes, 2);
    const ItemStatistics& all = result.items.at(0).statistics;
    ASSERT_EQ(all.by_length.size(), 2U);
    const LengthRow &first = all.by_length[0], &second = all.by_length[1];
    EXPECT_GE(first.tokens, 1024);
    EXPECT_LT(first.tokens, 1024 + 16);  // a step emits several tokens
    EXPECT_GE(second.tokens, 2048);
    EXPECT_GT(first.seconds, 0);
    EXPECT_LT(first.seconds, second.seconds);
    EXPECT_LE(second.seconds, all.seconds - all.prefill_seconds);
    for (const LengthRow& row : all.by_length) EXPECT_EQ(row.target_calls + row.accepted, row.tokens);
    EXPECT_LT(second.target_calls, all.target_calls);
}

// A stop leaves complete commits, each with the items that were active.
TEST_F(ReplicaResume, StopLeavesWhatTheNextLaunchNeeds) {
    Job job{base_options()};
    job.options.checkpoint.folder = folder_;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_tokens = 16;
    job.stop_after = 100;
    EXPECT_TRUE(launch(job).outcome.stopped);
    std::int64_t commits = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        const std::string name = entry.path().filename();
        if (std::count(name.begin(), name.end(), '.') != 1) continue;  // KV files have a rank in their name
        ++commits;
        EXPECT_FALSE(read_commit(entry.path()).items.empty()) << name;
    }
    EXPECT_GT(commits, 1);
}

// Above the quota rounds store tokens alone. What earlier launches stored counts.
TEST_F(ReplicaResume, QuotaBoundsWhatAllLaunchesStore) {
    Job job{base_options()};
    job.options.checkpoint.folder = folder_;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_tokens = 16;
    job.options.checkpoint.quota_bytes = 1;  // one round reaches it
    job.step = std::chrono::milliseconds(1);
    job.stop_after = 100;
    const auto kv_files = [&] {
        return std::count_if(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator{},
                             [](const auto& entry) { return entry.path().filename().string().ends_with(".0.h5"); });
    };
    JobResult first = launch(job);
    EXPECT_GT(first.outcome.progress.checkpoint_rounds, 2);
    EXPECT_EQ(kv_files(), 1) << "the round of the stop stores none either";
    job.options.checkpoint.epoch = 2;
    job.options.checkpoint.earlier_bytes = 1;
    job.stop_after = -1;
    const JobResult rest = launch(job, first.items);
    EXPECT_GT(rest.outcome.progress.checkpoint_rounds, 2);
    EXPECT_EQ(kv_files(), 1);
    first.items.insert(rest.items.begin(), rest.items.end());
    EXPECT_EQ(tokens_of(first.items), expected());
}

// Disk space of a long run: files are deleted with the items that need them, not at the end.
TEST_F(ReplicaResume, FilesOfFinishedItemsGoDuringTheRun) {
    Job job{base_options()};
    job.options.batch = 2;
    job.options.checkpoint.folder = folder_;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_tokens = 16;
    job.step = std::chrono::milliseconds(1);
    const std::int64_t rounds = launch(job).outcome.progress.checkpoint_rounds;
    EXPECT_GE(rounds, 3);
    EXPECT_GE(files(), rounds);

    start_anew();
    job.results_durable = true;
    EXPECT_GE(launch(job).outcome.progress.checkpoint_rounds, 3);
    EXPECT_LE(files(), 2) << "at most the round that was under way at the end: a commit and its KV";

    // Stopped in the middle: the remaining files are those that the active items need, and they suffice.
    start_anew();
    job.stop_after = 150;
    const JobResult stopped = launch(job);
    ASSERT_TRUE(stopped.outcome.stopped);
    ASSERT_GE(stopped.items.size(), 1U);
    job.options.checkpoint.epoch = 2;
    job.stop_after = -1;
    JobResult rest = launch(job, stopped.items);
    EXPECT_GT(rest.sum.resumes, 0);
    rest.items.insert(stopped.items.begin(), stopped.items.end());
    EXPECT_EQ(tokens_of(rest.items), expected());
}

// Such a model would run and generate garbage.
TEST_F(ReplicaResume, AModelOfMoreLayersThanItsConfigSaysIsRefused) {
    for (const auto& entry : std::filesystem::directory_iterator(tiny_model)) {
        std::filesystem::copy(entry.path(), folder_ / entry.path().filename());
    }
    Json config = read_json(folder_ / "config.json");
    config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() - 1;
    std::filesystem::remove(folder_ / "config.json");
    std::ofstream(folder_ / "config.json") << json_text(config);
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);
    const auto group = make_local_group();
    try {
        Model::load(folder_, Precision::bf16, *device, *group);
        FAIL() << "was loaded";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("num_hidden_layers"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace longhaul::engine
