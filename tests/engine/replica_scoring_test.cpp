// Logprobs of a replica, and the loss of given continuations by teacher forcing and by windows. The bits do not depend
// on batch, drafts, split, passes or interruptions.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "engine/json.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;

/// A text with repetitions, so that some drafts are right.
Tokens text_of(std::int64_t item, std::int64_t num_tokens) {
    Tokens text;
    for (std::int64_t i = 0; i < num_tokens; ++i)
        text.push_back(static_cast<std::int32_t>((i % 7 == 3 ? i * i / 3 : i % 13) * 5 + item * 11) % 90);
    return text;
}

Job forced_job(std::int64_t tokens = 60, std::int64_t max_tokens = 50) {
    Job job{base_options()};
    job.generation.max_tokens = max_tokens;
    for (std::int64_t i = 0; i < 5; ++i) job.continuations[i] = text_of(i, tokens - 4 * i);
    return job;
}

Job perplexity_job(std::int64_t window, std::int64_t stride, std::int64_t tokens = 300) {
    Job job = forced_job(tokens, 10000);
    job.options.scoring = ScoringWindows{.window = window, .stride = stride};
    return job;
}

struct Progress {
    Tokens tokens, logprobs;
    std::vector<std::pair<std::int64_t, double>> loss;
    std::optional<std::int64_t> greedy_tokens;
    bool operator==(const Progress&) const = default;
};

std::map<std::int64_t, Progress> progress_of(const std::map<std::int64_t, FinishedItem>& items) {
    std::map<std::int64_t, Progress> all;
    for (const auto& [index, item] : items) {
        Progress& said = all[index];
        said.tokens = item.tokens;
        said.logprobs = item.logprobs;
        for (const auto& bucket : item.statistics.loss.buckets) said.loss.emplace_back(bucket.count, bucket.nll);
        said.greedy_tokens = item.statistics.loss.greedy_tokens;
    }
    return all;
}

/// The reference launch: no drafts, batch 1, reference kernels.
std::map<std::int64_t, Progress> plainly(Job job) {
    job.options.draft.method = "ar";
    job.options.batch = 1;
    job.variant = kernels::CpuVariant::reference;
    return progress_of(launch(job).items);
}

void expect_the_same_in_every_way(const Job& job) {
    const auto expected = plainly(job);
    ASSERT_EQ(expected.size(), 5U);
    for (const int ranks : {1, 2, 4}) {
        Job other = job;
        other.ranks = ranks;
        other.options.batch = 2 * ranks - 1;
        other.options.prefill_chunk = ranks == 1 ? 7 : 64;
        other.options.draft.tree = ranks == 1 ? "5" : "3x4:8";
        EXPECT_EQ(progress_of(launch(other).items), expected) << ranks << " ranks";
    }
}

class ReplicaScoring : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("longhaul-scoring-" + std::to_string(::getpid()) + "-" +
                                                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    /// Stopped after every `stop_after` tokens and resumed with another split each time.
    std::map<std::int64_t, Progress> with_many_stops(Job job, std::int64_t stop_after) {
        std::map<std::int64_t, FinishedItem> done;
        job.options.checkpoint.folder = folder_;
        job.options.checkpoint.every_tokens = 16;
        job.stop_after = stop_after;
        for (int epoch = 1; epoch < 100 && done.size() < 5; ++epoch) {
            job.options.checkpoint.epoch = epoch;
            job.ranks = 1 + epoch % 2;
            job.options.batch = 1 + epoch % 3;
            const JobResult result = launch(job, done);
            resumes_ += result.sum.resumes;
            done.insert(result.items.begin(), result.items.end());
        }
        return progress_of(done);
    }

    std::filesystem::path folder_;
    std::int64_t resumes_ = 0;
};

TEST_F(ReplicaScoring, LogprobsAreTheSameInEveryWay) {
    Job job{base_options()};
    job.generation.max_tokens = 40;
    job.generation.logprobs = 3;
    job.own[4] = job.generation;
    job.own[4].logprobs = 1000;  // more than the vocabulary has
    expect_the_same_in_every_way(job);
    const auto said = plainly(job);
    EXPECT_EQ(said.at(4).logprobs.size(), 40 * static_cast<std::size_t>(logprob_words(96)));
    job.generation.logprobs = 0;
    job.own.clear();
    const auto without = plainly(job);
    for (const auto& [index, item] : said) EXPECT_EQ(item.tokens, without.at(index).tokens);
    EXPECT_TRUE(without.at(0).logprobs.empty());
    double greatest_sum = 0;
    for (std::size_t i = 0; i < 40; ++i) {
        const auto row = std::span(said.at(4).logprobs).subspan(i * 193, 193);
        const auto entries = read_logprobs(row, said.at(4).tokens[i]);
        ASSERT_EQ(entries.size(), 96U);
        double sum = 0;
        for (const TokenLogprob& entry : entries) sum += std::exp(static_cast<double>(entry.value));
        greatest_sum = std::max(greatest_sum, sum);
        EXPECT_NEAR(sum, 1, 1e-5);
        for (std::size_t j = 2; j < entries.size(); ++j) EXPECT_LE(entries[j].value, entries[j - 1].value);
    }
}

TEST_F(ReplicaScoring, LogprobsSurviveStops) {
    Job job{base_options()};
    job.generation.max_tokens = 60;
    job.generation.logprobs = 2;
    EXPECT_EQ(with_many_stops(job, 40), plainly(job));
    EXPECT_GT(resumes_, 4);
}

TEST_F(ReplicaScoring, ForcedTokensAreTheContinuation) {
    const Job job = forced_job();
    expect_the_same_in_every_way(job);
    const JobResult result = launch(job);
    for (const auto& [index, item] : result.items) {
        const Tokens& given = job.continuations.at(index);
        const bool cut = given.size() >= 50;
        EXPECT_EQ(item.tokens, Tokens(given.begin(), given.begin() + (cut ? 50 : std::ssize(given))));
        EXPECT_EQ(item.reason, cut ? FinishReason::length : FinishReason::stop);
        EXPECT_EQ(item.text, NumberTokenizer().decode(item.tokens, true));
        EXPECT_EQ(item.scored_bytes, std::ssize(item.text));
        EXPECT_EQ(item.statistics.loss.num_tokens(), std::ssize(item.tokens));
    }
    EXPECT_GT(result.sum.accepted, 20);
    EXPECT_GT(result.sum.drafted, result.sum.accepted);
}

// A text generated by the model itself: its loss is the sum of its logprobs.
TEST_F(ReplicaScoring, ForcedLossIsTheSumOfLogprobs) {
    Job free{base_options()};
    free.generation.max_tokens = 50;
    free.generation.logprobs = 1;
    const JobResult written = launch(free);
    Job forced = free;
    for (const auto& [index, item] : written.items) forced.continuations[index] = item.tokens;
    forced.generation.stop = {"<5>"};  // neither ends a given text
    forced.generation.eos_ids = {1, 2, 3, 4};
    for (const auto& [index, item] : launch(forced).items) {
        const FinishedItem& free_item = written.items.at(index);
        EXPECT_EQ(item.tokens, free_item.tokens);
        EXPECT_EQ(item.logprobs, free_item.logprobs);
        double sum = 0;
        for (std::size_t i = 0; i < 50; ++i)
            sum -=
                static_cast<double>(read_logprobs(std::span(item.logprobs).subspan(3 * i, 3), item.tokens[i])[0].value);
        EXPECT_NEAR(item.statistics.loss.nll(), sum, 1e-4);
        EXPECT_GT(sum, 10);
    }
}

TEST_F(ReplicaScoring, ForcedLossSurvivesStops) {
    Job job = forced_job(90, 70);
    job.generation.logprobs = 1;
    EXPECT_EQ(with_many_stops(job, 40), plainly(job));
    EXPECT_GT(resumes_, 4);
}

TEST_F(ReplicaScoring, PerplexityIsTheSameInEveryWay) {
    expect_the_same_in_every_way(perplexity_job(64, 24));
    expect_the_same_in_every_way(perplexity_job(32, 32, 150));
}

// One window that covers the whole text: tree verification and scoring give the same bits.
TEST_F(ReplicaScoring, PerplexityOfOneWindowIsTheForcedLoss) {
    Job forced = forced_job(300, 10000);
    forced.generation.logprobs = 0;
    const auto scored = progress_of(launch(perplexity_job(1024, 512)).items);
    EXPECT_EQ(scored, progress_of(launch(forced).items));
    EXPECT_GT(scored.at(0).loss.back().second, 100);
}

TEST_F(ReplicaScoring, GreedyTokensAreThoseOfGreedyDecoding) {
    Job greedy = forced_job();
    greedy.continuations.clear();
    greedy.generation.sampling = {};
    greedy.generation.sampling.temperature = 0;
    Job job = perplexity_job(1024, 512);
    for (const auto& [item, text] : plain_texts(greedy)) job.continuations[item] = text;
    job.continuations[1][20] = (job.continuations[1][20] + 1) % 90;
    for (const bool windows : {true, false}) {
        if (!windows) job.options.scoring.reset();
        const auto items = launch(job).items;
        for (const std::int64_t item : {0, 2, 3, 4}) {
            const LossByPosition& loss = items.at(item).statistics.loss;
            EXPECT_EQ(loss.greedy_tokens, std::ssize(job.continuations[item])) << item;
            EXPECT_EQ(loss.is_greedy(), true);
        }
        const LossByPosition& changed = items.at(1).statistics.loss;
        EXPECT_GE(changed.greedy_tokens, 20) << "up to the change";
        EXPECT_LT(changed.greedy_tokens, changed.num_tokens());
        EXPECT_EQ(changed.is_greedy(), false);
    }
}

// Each window is scored like its own document, whose first tokens are the prompt.
TEST_F(ReplicaScoring, WindowsBeginAnew) {
    constexpr std::int64_t window = 64;
    for (const std::int64_t stride : {24, 64}) {
        Job job = perplexity_job(window, stride);
        job.items = 1;
        const FinishedItem whole = launch(job).items.at(0);
        const LossByPosition& loss = whole.statistics.loss;
        Tokens document = prompt_of(0);
        document.insert(document.end(), job.continuations.at(0).begin(), job.continuations.at(0).end());
        const auto length = std::ssize(document);
        Job parts = forced_job(0, 10000);
        parts.continuations.clear();
        parts.items = 0;
        std::int64_t scored_end = std::ssize(prompt_of(0));
        for (std::int64_t begin = 0; scored_end < length; begin += stride) {
            const std::int64_t first = std::max(scored_end, begin + 1);
            scored_end = std::min(begin + window, length);
            parts.prompts[parts.items] = Tokens(document.begin() + begin, document.begin() + first);
            parts.continuations[parts.items++] = Tokens(document.begin() + first, document.begin() + scored_end);
        }
        double nll = 0;
        std::int64_t count = 0, bytes = 0;
        for (const auto& [index, item] : launch(parts).items) {
            bytes += item.scored_bytes;
            nll += item.statistics.loss.nll();
            count += item.statistics.loss.num_tokens();
        }
        EXPECT_GT(parts.items, 4);
        EXPECT_EQ(loss.num_tokens(), count);
        EXPECT_EQ(count, 300 - (stride == window ? 4 : 0)) << "a disjoint window's first token has no context";
        EXPECT_NEAR(loss.nll(), nll, 1e-9);
        EXPECT_EQ(whole.scored_bytes, bytes) << "those of the tokens that count";
    }
}

TEST_F(ReplicaScoring, PerplexitySurvivesStops) {
    for (const std::int64_t stride : {24, 64}) {
        std::filesystem::remove_all(folder_);
        resumes_ = 0;
        const Job job = perplexity_job(64, stride);
        EXPECT_EQ(with_many_stops(job, 100), plainly(job));
        EXPECT_GT(resumes_, 4);
    }
}

TEST_F(ReplicaScoring, PerplexityNeedsMemoryForItsWindowAlone) {
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    Job job = perplexity_job(64, 24, 900);
    const auto expected = plainly(job);
    job.options.kv_memory_bytes = 2 * static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout()));
    EXPECT_EQ(progress_of(launch(job).items), expected);
}

TEST_F(ReplicaScoring, AnItemThatCannotBeScoredFailsAlone) {
    Job job = perplexity_job(64, 24);
    job.continuations[1].clear();
    job.continuations[3].back() = 96;
    const auto items = launch(job).items;
    ASSERT_EQ(items.size(), 5U);
    EXPECT_EQ(items.at(1).error, "continuation: expected tokens to score, got none");
    EXPECT_EQ(items.at(3).error, "continuation: expected token ids below 96, got 96");
    EXPECT_EQ(items.at(3).reason, FinishReason::error);
    for (const std::int64_t good : {0, 2, 4}) EXPECT_EQ(items.at(good).reason, FinishReason::stop);
}

// Against transformers in fp32, with the loop of its documentation (tests/tools/make_perplexity_goldens.py).
TEST_F(ReplicaScoring, PerplexityEqualsTransformers) {
    const Json goldens = read_json(LONGHAUL_TEST_DATA "/parity/perplexity.json");
    int cases = 0;
    for (const Json& golden : goldens["cases"]) {
        Job job = perplexity_job(golden["window"], golden["stride"]);
        job.items = 1;
        job.precision = Precision::fp32;
        job.model = golden["model"] == "demo"
                        ? std::filesystem::path(LONGHAUL_DEMO_MODEL)
                        : std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / golden["model"].get<std::string>();
        const auto tokens = goldens["tokens"][golden["model"].get<std::string>()].get<Tokens>();
        const auto prompt = golden["prompt_tokens"].get<std::ptrdiff_t>();
        job.prompts[0] = Tokens(tokens.begin(), tokens.begin() + prompt);
        job.continuations[0] = Tokens(tokens.begin() + prompt, tokens.end());
        const FinishedItem whole = launch(job).items.at(0);
        const LossByPosition& loss = whole.statistics.loss;
        const auto nll = golden["nll"].get<double>();
        EXPECT_EQ(loss.num_tokens(), golden["num_tokens"].get<std::int64_t>()) << golden.dump();
        EXPECT_NEAR(loss.nll(), nll, 1e-4 * nll) << golden.dump();
        std::size_t bucket = 0;
        for (const Json& expected : golden["loss_by_position"]) {
            while (loss.buckets.at(bucket).count == 0) ++bucket;
            EXPECT_EQ(std::int64_t{1} << bucket, expected[0].get<std::int64_t>());
            EXPECT_EQ(loss.buckets[bucket].count, expected[1].get<std::int64_t>());
            EXPECT_NEAR(loss.buckets[bucket].nll, expected[2].get<double>(), 1e-3 * expected[2].get<double>());
            ++bucket;
        }
        ++cases;
    }
    EXPECT_GE(cases, 6);
}

}  // namespace
}  // namespace longhaul::engine
