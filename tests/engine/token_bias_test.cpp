// Biases of tokens, and outputs with a minimum length: in the logits pipeline, and in a whole replica, where drafts,
// batches, ranks and resumes leave the text as it is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "engine/sampling/pipeline.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using BiasTokens = std::vector<std::int32_t>;

TEST(TokenBias, IsAddedBeforePenaltiesAndTemperature) {
    SamplingParams params{.temperature = 0.5, .repetition_penalty = 2, .penalty_window = 1};
    const std::vector<TokenBias> biases{{0, 3}, {2, -1}, {9, 5}, {-1, 5}};
    params.biases = biases;
    LogitsPipeline pipeline(params, 3);
    const BiasTokens context{0};
    EXPECT_EQ(pipeline.apply(std::vector<float>{1, 2, 3}, {context, {}}).log_weights, (std::vector<double>{4, 4, 4}));
    EXPECT_FALSE(LogitsPipeline::fits_device(params, 1)) << "a Choice cannot say it";
    params.temperature = 0;
    pipeline.set_params(params);
    EXPECT_EQ(pipeline.apply(std::vector<float>{4, 2, 3.5}, {context, {}}).ids, BiasTokens{0});
}

TEST(TokenBias, EndsHaveNoChanceBeforeTheMinimum) {
    SamplingParams params{.repetition_penalty = 1, .min_tokens = 3, .prompt_tokens = 2};
    const BiasTokens ends{1, 2};
    params.ends = ends;
    LogitsPipeline pipeline(params, 4);
    const std::vector<float> logits{1, 9, 8, 2};
    const BiasTokens context{0, 1, 0, 0}, path{3};  // two tokens of output, and one of the tree
    EXPECT_EQ(pipeline.apply(logits, {context, {}}).ids, (BiasTokens{0, 3}));
    EXPECT_EQ(pipeline.apply(logits, {context, path}).ids, (BiasTokens{0, 1, 2, 3})) << "the fourth may be one";
    EXPECT_FALSE(LogitsPipeline::fits_device(params, 4));
    EXPECT_TRUE(LogitsPipeline::fits_device(params, 5)) << "from here on a device can choose";
}

/// Ends at any of a tenth of the tokens.
Job ending_job(std::int64_t min_tokens, const char* draft = "ar", const char* tree = nullptr) {
    Job job{base_options()};
    job.options.draft.method = draft;
    job.options.draft.tree = tree == nullptr ? TreeSpec() : TreeSpec(tree);
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16"};
    for (std::int32_t token = 5; token < 96; token += 10) job.generation.eos_ids.push_back(token);
    job.generation.sampling.min_tokens = min_tokens;
    return job;
}

bool is_end(std::int32_t token) {
    return token % 10 == 5;
}

TEST(MinTokens, OutputsAreSoLongAndThenEndAtTheFirstEnd) {
    constexpr std::int64_t min_tokens = 40;
    const auto free = plain_texts(ending_job(0));
    std::int64_t shorter = 0;
    for (const auto& [item, tokens] : free) shorter += std::ssize(tokens) <= min_tokens ? 1 : 0;
    ASSERT_GT(shorter, 2) << "without a minimum most end before it";
    std::int64_t ended = 0;
    for (const auto& [item, tokens] : plain_texts(ending_job(min_tokens))) {
        ASSERT_GE(std::ssize(tokens), min_tokens);
        const auto first = std::find_if(tokens.begin(), tokens.end(), is_end);
        EXPECT_TRUE(first >= tokens.end() - 1) << "the last one at most";
        ended += first == tokens.end() - 1 ? 1 : 0;
        const BiasTokens& before = free.at(item);  // up to its end, which had to be another token
        EXPECT_TRUE(std::equal(before.begin(), before.end() - 1, tokens.begin()));
    }
    EXPECT_GT(ended, 2);
    // An end as token number `at` is one when at - 1 others are the minimum, and none when `at` are.
    const BiasTokens& text = free.at(0);
    const auto at = std::ssize(text);
    ASSERT_GT(at, 1);
    EXPECT_EQ(plain_texts(ending_job(at - 1)).at(0), text);
    EXPECT_NE(plain_texts(ending_job(at)).at(0), text);
}

TEST(MinTokens, DraftsBatchesRanksAndResumesLeaveTheText) {
    const auto plain = plain_texts(ending_job(40));
    for (const auto& [draft, tree] : std::vector<std::pair<const char*, const char*>>{
             {"ngram", "3x4:8"}, {"specinfer", "3x4"}, {"rsd-s", "4x4"}, {"self", "4"}}) {
        Job job = ending_job(40, draft, tree);
        job.options.batch = 3;
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), plain) << draft;
    }
    const auto folder = std::filesystem::temp_directory_path() / ("min_tokens." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({ending_job(40, "sd", "4"), ending_job(40, "ngram", "3x4:8")}, folder, 37);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(tokens_of(result.items), plain);
    EXPECT_GT(result.sum.resumes, 1);
}

TEST(MinTokens, StopStringsBeforeItAreNoEnd) {
    Job job = ending_job(0);
    job.generation.eos_ids.clear();
    const std::string text = launch(job).items.at(0).text;
    job.generation.stop = {text.substr(text.size() / 4, 2)};
    const FinishedItem early = launch(job).items.at(0);
    ASSERT_LT(early.text.size(), text.size() / 3);
    EXPECT_TRUE(text.starts_with(early.text));
    job.generation.sampling.min_tokens = 55;
    const FinishedItem late = launch(job).items.at(0);
    EXPECT_GT(std::ssize(late.tokens), 55);
    EXPECT_TRUE(text.starts_with(late.text));
    EXPECT_NE(late.text.find(job.generation.stop.front()), std::string::npos) << "it stays in the text";
}

TEST(TokenBiasReplica, BansAndForcesTokensOfItsItemAlone) {
    Job job = ending_job(0, "ngram", "3x4:8");
    job.generation.eos_ids.clear();
    const auto free = plain_texts(job);
    job.options.batch = 3;
    job.ranks = 2;
    job.own[1] = job.own[2] = job.generation;
    const std::set<std::int32_t> seen(free.at(1).begin(), free.at(1).end());
    for (const std::int32_t token : seen) job.own[1].logit_bias.push_back({token, -100});
    job.own[2].logit_bias = {{77, 100}};
    const auto texts = tokens_of(launch(job).items);
    for (const std::int32_t token : texts.at(1)) EXPECT_FALSE(seen.contains(token));
    EXPECT_EQ(texts.at(2), BiasTokens(60, 77));
    for (const std::int64_t item : {0, 3, 4}) EXPECT_EQ(texts.at(item), free.at(item));
}

}  // namespace
}  // namespace longhaul::engine
