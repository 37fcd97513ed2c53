// TriForce in a whole replica: two stages of drafts change the speed, never the text of `coupled`; `recursive` gives
// one text; and what the middle stage confirms is what the target would write over the same keys and values.
#include <gtest/gtest.h>

#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using TextsByItem = std::map<std::int64_t, std::vector<std::int32_t>>;

const std::filesystem::path small_model = LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16";

/// Prompts and texts that are longer than their selection.
Job triforce_job(VerifyRule verify, PartialMode::Value mode = PartialMode::dynamic) {
    Job job{base_options()};
    job.options.draft.method = "triforce";
    job.options.draft.tree = "6";
    job.options.draft.partial_cache = {.mode = mode, .max_positions = 256, .of_prompt = true};
    job.options.verify = verify;
    job.draft_models = {small_model};
    job.items = 3;
    for (std::int32_t item = 0; item < job.items; ++item) {
        for (std::int32_t i = 0; i < 200 + 60 * item; ++i) job.prompts[item].push_back((i * i + 3 * item + i / 5) % 90);
    }
    job.generation.max_tokens = 120;
    return job;
}

TEST(TriForce, CoupledGivesTheTextOfPlainDecoding) {
    for (const auto mode : {PartialMode::window, PartialMode::dynamic, PartialMode::fixed_start, PartialMode::full}) {
        Job job = triforce_job(VerifyRule::coupled, mode);
        job.options.batch = mode == PartialMode::window ? 1 : 3;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain_texts(job));
        EXPECT_GT(result.sum.accepted, 100);
    }
    Job split = triforce_job(VerifyRule::coupled);
    split.ranks = 2;
    split.copy = Precision::int4;
    for (const char* tree : {"1", "2", "5"}) {
        split.options.draft.tree = tree;
        EXPECT_EQ(tokens_of(launch(split).items), plain_texts(split)) << "2 ranks, an int4 copy, tree " << tree;
    }
}

TEST(TriForce, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    const Job job = triforce_job(VerifyRule::recursive);
    EXPECT_NE(expect_one_text(job), plain_texts(job)) << "an independent draw";
}

TEST(TriForce, TextsAreDistributedAsTheTargets) {
    ASSERT_GT(prompt_of(8).size(), 256U) << "longer than what is selected";
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive})
        expect_distribution_of_target(triforce_job(rule), prompt_of(8), 800);
}

// With all keys and values the middle stage writes what the target writes, whatever the small model drafts.
TEST(TriForce, EveryDraftIsRightWithTheFullCache) {
    Job job = triforce_job(VerifyRule::coupled, PartialMode::full);
    const JobResult result = launch(job);
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    EXPECT_GT(result.sum.drafted, 300 * 5 / 7);
}

// A small model that agrees saves passes of the middle stage: here the target itself, which is always right.
TEST(TriForce, ASmallModelThatAgreesSavesPasses) {
    Job job = triforce_job(VerifyRule::coupled, PartialMode::full);
    const std::int64_t unrelated = launch(job).sum.draft_calls;
    job.draft_models = {tiny_model};
    const JobResult result = launch(job);
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    // Four tokens a pass, then two; alone it is one.
    EXPECT_LT(result.sum.draft_calls, result.sum.drafted * 2 / 6 + 10);
    EXPECT_GT(unrelated, 2 * result.sum.draft_calls);
}

// Texts that outgrow the small model's window: it reads the end of the text afresh.
TEST(TriForce, TextsOutgrowTheSmallModelsWindow) {
    Job job = triforce_job(VerifyRule::coupled, PartialMode::full);
    job.items = 1;
    job.prompts[0].clear();
    for (std::int32_t i = 0; i < 1000; ++i) job.prompts[0].push_back((i * i + i / 5) % 90);
    job.draft_models = {tiny_model};
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), plain_texts(job));
    EXPECT_LT(result.sum.draft_calls, result.sum.drafted * 4 / 5) << "it agrees at times, whatever part it reads";
}

// Also a window that is less than the small model's context, and trained models, which agree often.
TEST(TriForce, TheDemosModelsGain) {
    Job job{base_options()};
    job.model = LONGHAUL_DEMO_MODEL;
    job.items = 1;
    for (std::int32_t i = 0; i < 980; ++i) job.prompts[0].push_back(300 + (i * i + i / 5) % 900);
    job.generation.max_tokens = 120;  // to the other side of 1,024
    const TextsByItem plain = plain_texts(job);
    job.options.draft.method = "triforce";
    job.options.draft.tree = "6";
    job.options.draft.partial_cache = {.mode = PartialMode::window, .of_prompt = true};
    job.draft_models = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), plain);
    EXPECT_GT(result.sum.accepted, 60);
    EXPECT_LT(result.sum.draft_calls, result.sum.drafted * 3 / 4) << "the small model saves passes";
}

}  // namespace
}  // namespace longhaul::engine
