// Reasoning in a whole replica: its limit and the format behind it hold whatever the drafts, the batch, the ranks and
// the interruptions, and what they leave has the target's distribution.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "engine/replica/output_rules_cache.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

/// Of tokens <0> to <95>: five with even numbers.
const OutputFormat five_even{OutputFormat::Kind::regex, {"(<[0-9]*[02468]>){5}"}};

/// Items whose reasoning ends by itself or at its limit, with and without a format, and one that does not reason.
Job reasoning_job(const char* draft = "ar", const char* tree = nullptr) {
    Job job{base_options()};
    job.options.draft.method = draft;
    job.options.draft.tree = tree == nullptr ? TreeSpec() : TreeSpec(tree);
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16"};
    job.generation.eos_ids = {5, 6};
    job.generation.max_tokens = 90;
    for (std::int64_t item = 0; item < 5; ++item) job.own[item] = job.generation;
    job.own[0].reasoning = {.end = "<3>", .max_tokens = 12};  // a special token
    job.own[0].format = five_even;
    job.own[1].reasoning = {.end = "<8", .max_tokens = 0};  // within a token
    job.own[1].format = {OutputFormat::Kind::regex, {"[0-9]?>(<[0-9]*[02468]>){5}"}};
    job.own[2].reasoning = {.end = "<2><4>", .max_tokens = 25};
    job.own[3].reasoning = {.end = "<7>", .max_tokens = 60};
    job.own[3].format = five_even;
    return job;
}

std::string shown(const std::vector<std::int32_t>& tokens) {
    return NumberTokenizer().decode(tokens, false);
}

TEST(Reasoning, AFormatIsTheAnswers) {
    const JobResult result = launch(reasoning_job("ngram", "3x4:8"));
    for (const std::int64_t index : {0, 1, 3}) {
        const FinishedItem& item = result.items.at(index);
        EXPECT_EQ(item.reason, FinishReason::stop) << item.error;
        ASSERT_TRUE(item.has_reasoning && item.answer);
        const char* wanted = index == 1 ? "[0-9]?>(<[0-9]*[02468]>){5}" : "(<[0-9]*[02468]>){5}";
        EXPECT_TRUE(std::regex_match(*item.answer, std::regex(wanted))) << index << ": " << *item.answer;
        EXPECT_TRUE(item.text.ends_with(*item.answer));
        const std::int64_t reasoning = std::ssize(item.tokens) - 5;
        EXPECT_GT(reasoning, 1) << "it does reason";
        for (std::int64_t i = 0; i < reasoning; ++i)
            EXPECT_TRUE(item.tokens[i] != 5 && item.tokens[i] != 6) << "an end within reasoning";
    }
    EXPECT_FALSE(result.items.at(4).has_reasoning);
}

TEST(Reasoning, EndsAtItsLimit) {
    Job job = reasoning_job();
    const auto texts = plain_texts(job);
    for (GenerationOptions* options : {&job.own[0], &job.own[2], &job.own[3]}) options->reasoning.max_tokens = 0;
    for (const std::int64_t item : {0, 3}) job.own[item].max_tokens = 400;
    const auto without = plain_texts(job);
    int cut = 0;
    for (const std::int64_t index : {0, 2, 3}) {
        const std::int64_t limit = reasoning_job().own[index].reasoning.max_tokens;
        const std::vector<std::int32_t>&with = texts.at(index), &free = without.at(index);
        const std::string& end = job.own[index].reasoning.end;
        const std::size_t same = std::mismatch(with.begin(), with.end(), free.begin(), free.end()).first - with.begin();
        if (with == free) continue;  // its reasoning ended before
        ++cut;
        EXPECT_GE(same, static_cast<std::size_t>(limit)) << index << ": up to the limit nothing changes";
        const std::string behind = shown({with.begin() + limit, with.end()});
        EXPECT_TRUE(behind.starts_with(end)) << index << ": " << behind;
    }
    EXPECT_GT(cut, 0);
}

TEST(Reasoning, WithoutLimitAndFormatOnlyFindsTheAnswer) {
    Job job{base_options()};
    const auto texts = plain_texts(job);
    job.generation.reasoning.end = "<1";
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), texts);
    int found = 0;
    for (const auto& [index, item] : result.items) {
        const std::size_t at = item.text.find("<1");
        EXPECT_EQ(item.answer.has_value(), at != std::string::npos);
        if (item.answer) {
            EXPECT_EQ(*item.answer, item.text.substr(at + 2));
            ++found;
        }
    }
    EXPECT_GT(found, 0);
}

TEST(Reasoning, DraftsBatchesRanksAndResumesLeaveTheText) {
    const JobResult plain = launch(reasoning_job());
    for (const auto& [draft, tree] : std::vector<std::pair<const char*, const char*>>{
             {"ngram", "3x4:8"}, {"specinfer", "3x4"}, {"rsd-s", "4x4"}, {"self", "4"}}) {
        Job job = reasoning_job(draft, tree);
        for (const int ranks : {1, 2}) {
            job.options.batch = ranks == 1 ? 1 : 3;
            job.ranks = ranks;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), tokens_of(plain.items)) << draft;
            EXPECT_GT(result.sum.accepted, 0) << draft;
            for (const auto& [index, item] : result.items) EXPECT_EQ(item.answer, plain.items.at(index).answer);
        }
    }
    const auto folder = std::filesystem::temp_directory_path() / ("reasoning." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({reasoning_job("sd", "4"), reasoning_job("ngram", "3x4:8")}, folder, 37);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(tokens_of(result.items), tokens_of(plain.items));
    for (const auto& [index, item] : result.items) EXPECT_EQ(item.answer, plain.items.at(index).answer);
    EXPECT_GT(result.sum.resumes, 1);
}

// Heads draft without knowing which path a token is for, and the published rule looks at no node's own context.
TEST(Reasoning, EveryRuleKeepsItsLimit) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    Job job = reasoning_job("tokenswift", "1,3,3,3");
    job.heads = heads.path();
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive, VerifyRule::tokenswift_paper}) {
        job.options.verify = rule;
        for (const auto& [index, item] : launch(job).items) {
            const GenerationOptions& options = job.own.at(index);
            const std::int64_t limit = options.reasoning.max_tokens;
            EXPECT_NE(item.reason, FinishReason::error)
                << index << job.options.verify.name() << ": " << shown(item.tokens);
            if (limit == 0 || std::ssize(item.tokens) < limit + 3) continue;
            const std::string text = shown(item.tokens);
            const std::size_t free = shown({item.tokens.begin(), item.tokens.begin() + limit}).size();
            EXPECT_LE(text.find(options.reasoning.end), free) << job.options.verify.name() << ": " << text;
        }
    }
}

// The end of the reasoning falls into a tree, by itself or at the limit, and the answer's format behind it.
TEST(Reasoning, TextsHaveTheTargetsDistribution) {
    const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6};
    const NumberTokenizer tokenizer;
    for (const std::int64_t limit : {0, 1}) {
        GenerationOptions wanted;
        wanted.reasoning = {.end = limit == 0 ? "<8" : "<8>", .max_tokens = limit};
        wanted.format = {OutputFormat::Kind::regex,
                         {limit == 0 ? "[0-9]?>(<[0-9]*[02468]>|<1.>)*" : "(<[0-9]*[02468]>|<1.>)*"}};
        OutputConstraint constraint(OutputRulesCache(tokenizer, 96).of(wanted), prompt);
        SamplingParams sampling = four_tokens();
        sampling.constraint = &constraint;
        sampling.prompt_tokens = std::ssize(prompt);
        for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive}) {
            Job job{base_options()};
            job.options.draft.method = "rsd-s";
            job.options.draft.tree = "2x2";
            job.options.draft.model_temperature = 3;
            job.options.verify = rule;
            job.draft_models = {tiny_model};
            job.generation.reasoning = wanted.reasoning;
            job.generation.format = wanted.format;
            EXPECT_GT(target_distribution_p(job, prompt, 1000, sampling, limit == 0 ? 64 : 28), 1e-4)
                << job.options.verify.name();
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
