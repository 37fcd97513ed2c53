// DRY in whole replicas: drafts, batch, ranks and resumes leave the text, and the sampling rules its distribution.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

const std::filesystem::path other_models = LONGHAUL_TEST_DATA "/parity";

/// A penalty below 1 favours repetitions, which DRY then breaks off: nearly every token is decided by both.
Job dry_job(const std::string& draft = "ar", const std::string& tree = "") {
    Job job{base_options()};
    job.options.draft.method = draft;
    job.options.draft.tree = tree.empty() ? TreeSpec() : TreeSpec(tree);
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {other_models / "llama-yarn-bf16"};
    job.generation.sampling = {.temperature = 0.7, .min_p = 0.02, .repetition_penalty = 0.5, .penalty_window = 12};
    job.generation.sampling.dry = {.multiplier = 1.5, .base = 1.5, .allowed_length = 1, .window = 50};
    job.generation.dry_breakers = {"<1", "5>"};  // tokens 1, 10 to 19; 5, 15, 25, …
    return job;
}

const std::map<std::int64_t, std::vector<std::int32_t>>& plain_dry() {
    static const auto texts = plain_texts(dry_job());
    return texts;
}

TEST(DryReplica, EveryOptionCounts) {
    for (const auto& change : std::vector<std::function<void(GenerationOptions&)>>{
             [](auto& options) { options.sampling.dry.multiplier = 0; },
             [](auto& options) { options.sampling.dry.base = 3; },
             [](auto& options) { options.sampling.dry.allowed_length = 2; },
             [](auto& options) { options.sampling.dry.window = 4; },
             [](auto& options) { options.dry_breakers.clear(); }}) {
        Job job = dry_job();
        change(job.generation);
        EXPECT_NE(plain_texts(job), plain_dry());
    }
}

TEST(DryReplica, CoupledGivesTheTextOfPlainDecoding) {
    const std::vector<std::pair<const char*, const char*>> drafts{
        {"ngram", "3x4:8"}, {"sd", "4"}, {"specinfer", "3x4"}, {"rsd-c", "2,2,1"}, {"rsd-s", "4x4"}, {"self", "4"}};
    for (const auto& [draft, tree] : drafts) {
        for (const std::int64_t batch : {1, 3}) {
            Job job = dry_job(draft, tree);
            job.options.batch = batch;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_dry()) << draft << ", batch " << batch;
            EXPECT_GT(result.sum.accepted, 5) << draft;
        }
    }
    Job job = dry_job("rsd-s", "4x4");
    job.ranks = 2;
    job.options.batch = 3;
    EXPECT_EQ(tokens_of(launch(job).items), plain_dry()) << "2 ranks";
}

// Whole paths of right drafts: every node has the penalties of its own context, at any depth.
TEST(DryReplica, RightDraftsAreAllAccepted) {
    Job job = dry_job("replay", "9");
    job.options.draft.recorded = [](const std::string& id, std::int64_t) {
        return plain_dry().at(std::stoll(id.substr(5)));
    };
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), plain_dry());
    EXPECT_GT(result.sum.block_efficiency(), 9.9);
}

TEST(DryReplica, ResumesGoOnWithTheSameText) {
    const auto folder = std::filesystem::temp_directory_path() / ("dry_replica_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({dry_job("sd", "4"), dry_job("ngram", "3x4:8")}, folder, 97);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(tokens_of(result.items), plain_dry());
    EXPECT_GT(result.sum.resumes, 1);
}

TEST(DryReplica, ItemsHaveOptionsOfTheirOwn) {
    Job job = dry_job("ngram", "3x4:8");
    job.options.batch = 5;
    job.own[1] = job.generation;
    job.own[1].dry_breakers = {"7"};
    job.own[2] = job.generation;
    job.own[2].sampling.dry = {};
    const auto mixed = tokens_of(launch(job).items);
    Job second = job, third = job;
    second.generation = job.own[1];
    third.generation = job.own[2];
    second.own = third.own = {};
    EXPECT_EQ(mixed.at(0), plain_dry().at(0));
    EXPECT_EQ(mixed.at(1), plain_texts(second).at(1));
    EXPECT_EQ(mixed.at(2), plain_texts(third).at(2));
    EXPECT_EQ(mixed.at(3), plain_dry().at(3));
}

// A context that repeats itself: each of the first tokens would go on with it.
const std::vector<std::int32_t> repeating{31, 7, 52, 31, 7, 52, 31, 7, 52, 31, 7};

TEST(DryReplica, SamplingRulesEmitTheTargetsDistribution) {
    SamplingParams sampling = four_tokens();
    sampling.repetition_penalty = 0.5;  // favours the tokens that DRY penalises
    const auto without = texts_after(repeating, sampling);
    sampling.dry = {.multiplier = 1.2, .base = 1.3, .allowed_length = 1, .window = 0};
    double difference = 0;
    for (const auto& [text, probability] : texts_after(repeating, sampling)) {
        const auto other = without.find(text);
        difference += std::abs(probability - (other == without.end() ? 0 : other->second));
    }
    ASSERT_GT(difference, 0.2) << "without DRY the test would pass as well";
    const std::vector<std::tuple<const char*, const char*, const char*>> cases{
        {"sd", "2", "rejection"},      {"sd", "2", "multi-round"},
        {"spectr", "3x2", "k-seq"},    {"specinfer", "3x2", "multi-round"},
        {"rsd-c", "3,2", "recursive"}, {"rsd-s", "3x2", "recursive"}};
    for (const auto& [draft, tree, rule] : cases) {
        Job job = dry_job(draft, tree);
        job.options.verify = rule;
        job.generation.dry_breakers = {};
        EXPECT_GT(target_distribution_p(job, repeating, 2000, sampling), 1e-4) << draft << ", " << rule;
    }
}

}  // namespace
}  // namespace longhaul::engine
