// Presence and frequency penalties: what they count, in the pipeline and in whole replicas.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "engine/sampling/output_counts.hpp"
#include "engine/sampling/pipeline.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

using Tokens = std::vector<std::int32_t>;

// An output that grows, is cut, or is another sequence's, with paths of any length behind it.
TEST(OutputCounts, AreThoseOfTheWholeOutput) {
    std::mt19937 random(3);
    const auto tokens = [&](std::size_t count) {
        Tokens made(count);
        for (auto& token : made) token = static_cast<std::int32_t>(random() % 9);
        return made;
    };
    OutputCounts counts(7);  // tokens 7 and 8 are not in the vocabulary
    Tokens output;
    for (int trial = 0; trial < 1000; ++trial) {
        const auto change = random() % 4;
        if (change == 0) output = tokens(random() % 20);
        if (change == 1) output.resize(output.size() / 2);
        if (change == 2) {
            const Tokens more = tokens(random() % 5);
            output.insert(output.end(), more.begin(), more.end());
        }
        const Tokens path = tokens(random() % 6);
        std::map<std::int32_t, std::int32_t> expected, found;
        for (const Tokens& part : {output, path}) {
            for (const std::int32_t token : part)
                if (token < 7) ++expected[token];
        }
        counts.each(output, path, [&](std::int32_t token, std::int32_t count) {
            EXPECT_TRUE(found.emplace(token, count).second) << "a token is told once";
        });
        ASSERT_EQ(found, expected) << "trial " << trial;
    }
}

TEST(OutputPenalties, AreSubtractedForTokensOfTheOutputAlone) {
    SamplingParams params;
    params.repetition_penalty = 2;
    params.penalty_window = 1;
    params.output = {.presence = 0.5, .frequency = 0.25};
    params.prompt_tokens = 2;
    LogitsPipeline pipeline(params, 5);
    const std::vector<float> logits{2, 2, 2, 2, -std::numeric_limits<float>::infinity()};
    // The prompt is 0 1; the output is 1 2, and 2 3 on the path. The repetition penalty halves 3 before.
    const Distribution& found = pipeline.apply(logits, {Tokens{0, 1, 1, 2}, Tokens{2, 3}});
    EXPECT_EQ(found.ids, (Tokens{0, 1, 2, 3}));
    EXPECT_EQ(found.log_weights, (std::vector<double>{2, 1.25, 1, 0.25}));
    params.prompt_tokens = 9;  // more than the context has
    pipeline.set_params(params);
    EXPECT_EQ(pipeline.apply(logits, {Tokens{0, 1, 1, 2}, {}}).log_weights, (std::vector<double>{2, 2, 1, 2}));
    EXPECT_FALSE(LogitsPipeline::fits_device(params, 9)) << "a Choice cannot say it";
    params.output = {.presence = -2};
    pipeline.set_params(params);
    EXPECT_EQ(pipeline.apply(logits, {Tokens{4}, Tokens{1}}).log_weights, (std::vector<double>{2, 3, 2, 2}))
        << "negative ones favour what is there; impossible stays impossible";
}

Job penalised_job(const char* draft = "ar", const char* tree = nullptr) {
    Job job{base_options()};
    job.options.draft.method = draft;
    job.options.draft.tree = tree == nullptr ? TreeSpec() : TreeSpec(tree);
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16"};
    job.generation.sampling = {.temperature = 0.7, .min_p = 0.02};
    job.generation.sampling.output = {.presence = 0.3, .frequency = 0.2};
    return job;
}

const std::map<std::int64_t, Tokens>& plain_penalised() {
    static const auto texts = plain_texts(penalised_job());
    return texts;
}

TEST(OutputPenaltiesReplica, EachCounts) {
    const auto repeats = [](const std::map<std::int64_t, Tokens>& texts) {
        std::int64_t count = 0;
        for (const auto& [item, tokens] : texts)
            count += std::ssize(tokens) - std::ssize(std::set<std::int32_t>(tokens.begin(), tokens.end()));
        return count;
    };
    Job presence = penalised_job(), frequency = penalised_job(), none = penalised_job(), both = penalised_job();
    presence.generation.sampling.output.frequency = 0;
    frequency.generation.sampling.output.presence = 0;
    none.generation.sampling.output = {};
    both.generation.sampling.output = {.presence = 2, .frequency = 2};
    EXPECT_NE(plain_texts(presence), plain_penalised());
    EXPECT_NE(plain_texts(frequency), plain_penalised());
    EXPECT_LT(repeats(plain_penalised()), repeats(plain_texts(none)));
    EXPECT_LT(repeats(plain_texts(both)), repeats(plain_penalised()));
}

TEST(OutputPenaltiesReplica, DraftsBatchesRanksAndResumesLeaveTheText) {
    for (const auto& [draft, tree] : std::vector<std::pair<const char*, const char*>>{
             {"ngram", "3x4:8"}, {"specinfer", "3x4"}, {"rsd-s", "4x4"}, {"self", "4"}}) {
        Job job = penalised_job(draft, tree);
        job.options.batch = 3;
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), plain_penalised()) << draft;
    }
    const auto folder = std::filesystem::temp_directory_path() / ("output_penalties." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({penalised_job("sd", "4"), penalised_job("ngram", "3x4:8")}, folder, 97);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(tokens_of(result.items), plain_penalised());
    EXPECT_GT(result.sum.resumes, 1);
}

// Whole paths of right drafts: every node counts its own path, at any depth.
TEST(OutputPenaltiesReplica, RightDraftsAreAllAccepted) {
    Job job = penalised_job("replay", "9");
    job.options.draft.recorded = [](const std::string& id, std::int64_t) {
        return plain_penalised().at(std::stoll(id.substr(5)));
    };
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), plain_penalised());
    EXPECT_GT(result.sum.block_efficiency(), 9.9);
}

TEST(OutputPenaltiesReplica, SamplingRulesEmitTheTargetsDistribution) {
    const Tokens prompt{31, 7, 52, 31, 7, 52, 31, 7, 52, 31, 7};
    SamplingParams sampling = four_tokens();
    sampling.repetition_penalty = 0.5;  // favours the tokens of the context: drafts are accepted
    const auto without = texts_after(prompt, sampling);
    sampling.output = {.presence = 0.8, .frequency = 0.4};
    sampling.prompt_tokens = std::ssize(prompt);
    double difference = 0;
    for (const auto& [text, probability] : texts_after(prompt, sampling)) {
        const auto other = without.find(text);
        difference += std::abs(probability - (other == without.end() ? 0 : other->second));
    }
    ASSERT_GT(difference, 0.1) << "without penalties the test would pass as well";
    for (const auto& [draft, tree, rule] : std::vector<std::tuple<const char*, const char*, const char*>>{
             {"sd", "2", "rejection"}, {"spectr", "3x2", "k-seq"}, {"rsd-s", "3x2", "recursive"}}) {
        Job job = penalised_job(draft, tree);
        job.options.verify = rule;
        EXPECT_GT(target_distribution_p(job, prompt, 2000, sampling), 1e-4) << draft << ", " << rule;
    }
}

}  // namespace
}  // namespace longhaul::engine
