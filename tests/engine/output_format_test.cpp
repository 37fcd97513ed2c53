// Structured outputs in a whole replica: every text belongs to its format, whatever the drafts, the batch, the ranks
// and the interruptions; what is possible has the target's distribution.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/output_grammar.hpp"
#include "engine/replica/output_rules_cache.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

/// The texts of NumberTokenizer's tokens, <0> to <95>.
const std::string even = "<[0-9]*[02468]>", odd = "<[0-9]*[13579]>";

OutputFormat regex_format(std::string expression) {
    return {OutputFormat::Kind::regex, {std::move(expression)}};
}

/// Items of five formats, and one without.
Job format_job(const char* draft = "ar", const char* tree = nullptr) {
    Job job{base_options()};
    job.options.draft.method = draft;
    job.options.draft.tree = tree == nullptr ? TreeSpec() : TreeSpec(tree);
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16"};
    job.generation.eos_ids = {5, 6};
    job.items = 6;
    for (std::int64_t item = 0; item < job.items; ++item) job.own[item] = job.generation;
    job.own[0].format = regex_format("(" + even + "){20}(" + odd + "){10,30}");
    job.own[1].format = regex_format("((" + even + "|<7[0-9]>)(" + odd + "))*");
    job.own[2].format = {OutputFormat::Kind::choice, {"<7><70><71>", "<8><7>", "<7><70>"}};
    job.own[3].format = regex_format("<4.>+.*");
    job.own[5].format = {OutputFormat::Kind::gbnf,
                         {"root ::= pair{4,8}\npair ::= \"<1\" [0-9] \">\" pair? \"<\" [2-9] \">\""}};
    return job;
}

bool fits(const OutputFormat& format, const std::string& text) {
    GrammarMatcher matcher(grammar_of(format));
    GrammarMatcher::State state = matcher.start();
    for (const char byte : text) state = matcher.next(state, static_cast<std::uint8_t>(byte));
    return matcher.accepts(state);
}

TEST(OutputFormats, TextsBelongToThem) {
    const Job job = format_job("ngram", "3x4:8");
    const JobResult result = launch(job);
    ASSERT_EQ(result.items.size(), 6U);
    for (const auto& [index, item] : result.items) {
        const OutputFormat& format = job.own.at(index).format;
        if (format.kind == OutputFormat::Kind::any || item.reason == FinishReason::length) continue;
        EXPECT_TRUE(fits(format, item.text)) << index << ": " << item.text;
    }
    const auto& [first, second, choice] = std::tie(result.items.at(0), result.items.at(1), result.items.at(2));
    EXPECT_TRUE(result.items.at(5).text.starts_with("<1")) << result.items.at(5).text;
    EXPECT_TRUE(std::regex_match(first.text, std::regex("(" + even + "){20}(" + odd + "){10,30}"))) << first.text;
    EXPECT_EQ(second.reason, FinishReason::length) << "an end is one of 96 tokens";
    EXPECT_TRUE(fits(regex_format("((" + even + "|<7[0-9]>)(" + odd + "))*(" + even + ")?"), second.text));
    EXPECT_EQ(choice.reason, FinishReason::stop);
    EXPECT_LE(choice.tokens.size(), 4U);
}

// Of a format that is complete, nothing can follow: the item ends without a token that says so.
TEST(OutputFormats, ACompleteTextEndsItsItem) {
    Job job = format_job();
    job.generation.eos_ids.clear();
    job.generation.sampling.min_tokens = 9;
    job.generation.stop = {"<1>"};
    job.own.clear();
    job.generation.format = regex_format("(" + even + "){7}");
    for (const auto& [index, item] : launch(job).items) {
        EXPECT_EQ(item.tokens.size(), 7U) << "also before min-tokens";
        EXPECT_EQ(item.reason, FinishReason::stop);
        EXPECT_TRUE(fits(job.generation.format, item.text)) << item.text;
    }
}

TEST(OutputFormats, AnAmbiguousOneFailsItsItem) {
    Job job = format_job();
    job.own[1].format = regex_format("(<?[0-9]?>?){5000}");
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(1).reason, FinishReason::error);
    EXPECT_NE(result.items.at(1).error.find("expected a format that the model"), std::string::npos);
    EXPECT_EQ(result.items.at(2).reason, FinishReason::stop) << "the others go on";
    job.own[1].logit_bias = {{5, 100}};  // what it then chooses is an end
    EXPECT_EQ(launch(job).items.at(1).reason, FinishReason::error);
}

TEST(OutputFormats, EndsComeWhereTheTextMayEnd) {
    Job job = format_job();
    job.own.clear();
    job.generation.logit_bias = {{5, 20}};  // this end is far more probable than all else
    job.generation.format = regex_format("((" + even + "){3})+");
    for (const auto& [index, item] : launch(job).items) {
        ASSERT_EQ(item.tokens.size(), 4U);
        EXPECT_EQ(item.tokens.back(), 5);
        EXPECT_EQ(item.reason, FinishReason::stop);
        EXPECT_TRUE(fits(job.generation.format, item.text)) << "without the end: " << item.text;
    }
    job.generation.sampling.min_tokens = 5;
    EXPECT_EQ(launch(job).items.at(0).tokens.size(), 7U);
    // An end whose own text would fit is still an end, and not where the text may not end.
    job.generation.sampling.min_tokens = 0;
    job.generation.eos_ids = {6, 6, 8};
    job.generation.logit_bias = {{6, 20}};
    for (const auto& [index, item] : launch(job).items) {
        ASSERT_EQ(item.tokens.size(), 4U);
        EXPECT_EQ(item.tokens.back(), 6);
    }
    job.generation.format = regex_format("(" + even + "){3}<[68]>*");
    for (const auto& [index, item] : launch(job).items) EXPECT_EQ(item.tokens.size(), 3U) << "only ends could follow";
}

// Heads draft without knowing which path a token is for, and the published rule looks at no node's own context.
TEST(OutputFormats, EveryRuleKeepsThem) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    Job job = format_job("tokenswift", "1,3,3,3");
    job.heads = heads.path();
    const auto plain = plain_texts(job);
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive, VerifyRule::tokenswift_paper}) {
        job.options.verify = rule;
        const JobResult result = launch(job);
        if (rule == VerifyRule::coupled) {
            EXPECT_EQ(tokens_of(result.items), plain);
        }
        for (const auto& [index, item] : result.items) {
            const OutputFormat& format = job.own.at(index).format;
            EXPECT_NE(item.reason, FinishReason::error) << item.error;
            if (format.kind == OutputFormat::Kind::any || item.reason == FinishReason::length) continue;
            EXPECT_TRUE(fits(format, item.text)) << job.options.verify.name() << ": " << item.text;
        }
    }
}

TEST(OutputFormats, DraftsBatchesRanksAndResumesLeaveTheText) {
    const auto plain = plain_texts(format_job());
    for (const auto& [draft, tree] : std::vector<std::pair<const char*, const char*>>{
             {"ngram", "3x4:8"}, {"specinfer", "3x4"}, {"rsd-s", "4x4"}, {"self", "4"}}) {
        Job job = format_job(draft, tree);
        for (const int ranks : {1, 2}) {
            job.options.batch = ranks == 1 ? 1 : 3;
            job.ranks = ranks;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain) << draft;
            EXPECT_GT(result.sum.accepted, 0) << draft;
        }
    }
    const auto folder = std::filesystem::temp_directory_path() / ("output_format." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({format_job("sd", "4"), format_job("ngram", "3x4:8")}, folder, 37);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(tokens_of(result.items), plain);
    EXPECT_GT(result.sum.resumes, 1);
}

TEST(OutputFormats, SamplingRulesGiveOneText) {
    Job job = format_job("rsd-s", "4x4");
    job.options.verify = VerifyRule::recursive;
    EXPECT_NE(expect_one_text(job), plain_texts(job)) << "an independent draw";
}

// What a format leaves has the probabilities that the target gives it, renormalized, also if drafts are sampled.
TEST(OutputFormats, TextsHaveTheTargetsDistribution) {
    const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6};
    const NumberTokenizer tokenizer;
    GenerationOptions wanted;
    wanted.format = regex_format("(" + even + "|<1.>)*");
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
        job.generation.format = regex_format("(" + even + "|<1.>)*");
        EXPECT_GT(target_distribution_p(job, prompt, 2000, sampling), 1e-4) << job.options.verify.name();
        job.generation.format = regex_format("(" + even + "|<[1-3].>)*");
        EXPECT_LT(target_distribution_p(job, prompt, 2000, sampling), 1e-9) << "the test can tell formats apart";
    }
}

}  // namespace
}  // namespace longhaul::engine
