// Draft language models in a whole replica. Under `coupled` the text is that of plain decoding; under each sampling
// rule it is another text, which does not depend on batch, split and interruptions. KV of accepted nodes is kept, not
// recomputed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "engine/draft/methods.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

const std::filesystem::path parity = LONGHAUL_TEST_DATA "/parity";

struct Method {
    const char *draft, *tree, *verify;  ///< verify: the method's sampling rule
    int models = 1;
};

const std::vector<Method> methods{
    {"sd", "4", "rejection"},        {"spectr", "3x3", "k-seq"},    {"specinfer", "3x2", "multi-round", 2},
    {"rsd-c", "2,2,1", "recursive"}, {"rsd-s", "4x3", "recursive"},
};

Job job_of(const Method& method, const std::string& verify) {
    Job job{base_options()};
    job.options.draft.method = method.draft;
    job.options.draft.tree = method.tree;
    job.options.verify = verify;
    job.draft_models = {parity / "llama-yarn-bf16", parity / "llama-modern"};
    job.draft_models.resize(static_cast<std::size_t>(method.models));
    return job;
}

using Texts = std::map<std::int64_t, std::vector<std::int32_t>>;

const Texts& plain() {
    static const Texts texts = [] {
        Job job{base_options()};
        job.options.draft.method = "ar";
        return tokens_of(launch(job).items);
    }();
    return texts;
}

TEST(LmDrafter, CoupledGivesTheTextOfPlainDecoding) {
    for (const Method& method : methods) {
        for (const std::int64_t batch : {1, 3}) {
            Job job = job_of(method, "coupled");
            job.options.batch = batch;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain()) << method.draft << ", batch " << batch;
            EXPECT_GT(result.sum.drafted, 300) << method.draft;
        }
    }
}

// OPT drafts for OPT; both have the same number of positions.
TEST(LmDrafter, OptDraftsForOpt) {
    Job job{base_options()};
    job.model = parity / "opt-bf16";
    job.items = 2;  // prompts of 20 and 57 tokens plus 60 new ones: both end within 128 positions
    job.options.draft.method = "ar";
    const Texts expected = tokens_of(launch(job).items);
    for (const Method& method : methods) {
        Job drafted = job_of(method, "coupled");
        drafted.model = job.model;
        drafted.items = job.items;
        drafted.draft_models = {parity / "opt-post-norm-bf16", parity / "opt-fp16"};
        drafted.draft_models.resize(static_cast<std::size_t>(method.models));
        const JobResult result = launch(drafted);
        EXPECT_EQ(tokens_of(result.items), expected) << method.draft;
        EXPECT_GT(result.sum.drafted, 100) << method.draft;
        drafted.ranks = 2;
        drafted.draft_sharded = true;
        EXPECT_EQ(tokens_of(launch(drafted).items), expected) << method.draft << ", 2 ranks";
    }
}

// After its last position a draft model starts a new context later in the text, and drafts as well as before.
TEST(LmDrafter, ATextMayOutgrowTheDraftsContext) {
    for (const std::int64_t item : {2, 4}) {  // 94 and 168 tokens before the first draft of a model with 128 positions
        Job plain_job{base_options()};
        plain_job.items = 1;
        plain_job.prompts[0] = prompt_of(item);
        plain_job.generation.max_tokens = 200;
        plain_job.options.draft.method = "ar";
        const Texts expected = tokens_of(launch(plain_job).items);
        for (const Method& method : methods) {
            for (const std::string verify : {"coupled", method.verify}) {
                Job job = job_of(method, verify);
                job.items = 1;
                job.prompts = plain_job.prompts;
                job.generation = plain_job.generation;
                const JobResult result = launch(job);
                const TreeShape tree = tree_of(find_draft_method(method.draft), method.tree);
                // Trees are cut at the end of a context and at the end of the text.
                EXPECT_GT(result.sum.draft_calls, (result.sum.target_calls - 10) * tree.depth)
                    << method.draft << " " << verify << ", item " << item;
                if (verify == "coupled") {
                    EXPECT_EQ(tokens_of(result.items), expected) << method.draft;
                    continue;
                }
                job.ranks = 2;
                job.draft_sharded = true;
                EXPECT_EQ(tokens_of(launch(job).items), tokens_of(result.items)) << method.draft;
            }
        }
    }
}

// Rereading tokens after a context ends counts as decoding.
TEST(LmDrafter, WhatADraftModelReadsAgainIsNoPrefill) {
    Job job = job_of(methods.front(), "coupled");
    job.items = 1;
    job.prompts[0] = {1};  // nothing to compute before the first token
    job.generation.max_tokens = 200;
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(0).statistics.prefill_seconds, 0);
    EXPECT_EQ(result.outcome.prefill_seconds, 0);
    EXPECT_EQ(result.outcome.mixed_seconds, 0);
}

// MBSU counts the cost of a level, which is the sum over all models.
TEST(LmDrafter, DraftCallsAreLevelsOfTrees) {
    for (const Method& method : {Method{"sd", "auto", ""}, Method{"specinfer", "auto", "", 2}}) {
        Job job = job_of(method, "coupled");
        job.options.draft.tree_limits = [] { return TreeLimits{.depth = 3, .width = 2}; };
        const JobResult result = launch(job);
        EXPECT_LE(result.sum.draft_calls, 3 * result.sum.target_calls) << method.draft;
        EXPECT_GT(result.sum.draft_calls, 2 * result.sum.target_calls) << method.draft;
    }
}

// The target drafts for itself, up to the last position: every guess is right, and the trees reach beyond it.
TEST(LmDrafter, OptDraftsForItselfToItsLastPosition) {
    Job plain_job{base_options()};
    plain_job.model = parity / "opt-bf16";
    plain_job.items = 1;
    plain_job.generation.max_tokens = 108;  // after a prompt of 20: all 128 positions
    for (const std::string verify : {"coupled", "rejection"}) {
        Job job = plain_job;
        job.options.draft = {};
        job.options.draft.method = "sd";
        job.options.draft.tree = "4";
        job.options.verify = verify;
        job.draft_models = {job.model};
        const JobResult result = launch(job);
        ASSERT_EQ(tokens_of(result.items).at(0).size(), 108U) << verify;
        EXPECT_LE(result.sum.target_calls, 108 / 5 + 2) << verify;
        if (verify == "rejection") continue;
        plain_job.options.draft.method = "ar";
        EXPECT_EQ(tokens_of(result.items), tokens_of(launch(plain_job).items));
    }
}

TEST(LmDrafter, CoupledAtTemperatureZero) {
    Job greedy{base_options()};
    greedy.generation.sampling = {.temperature = 0};
    greedy.options.draft.method = "ar";
    const Texts expected = tokens_of(launch(greedy).items);
    for (const Method& method : methods) {
        Job job = job_of(method, "coupled");
        job.generation.sampling = {.temperature = 0};
        EXPECT_EQ(tokens_of(launch(job).items), expected) << method.draft;
    }
}

// Greedy drafts are the draft model's most probable tokens, whatever the noise. Those of the target itself are what a
// greedy target emits, also under the sampling rules; without noise in the drafts the text stays that of `coupled`.
TEST(LmDrafter, DraftTemperatureZeroIsGreedy) {
    Job job{base_options()};
    job.generation.sampling = {.temperature = 0};
    job.options.draft.method = "ar";
    const Texts expected = tokens_of(launch(job).items);
    job.options.draft.method = "sd";
    job.options.draft.tree = "4";
    job.options.draft.model_temperature = 0;
    job.draft_models = {tiny_model};
    for (const char* verify : {"coupled", "rejection", "multi-round", "k-seq", "recursive"}) {
        job.options.verify = verify;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), expected) << verify;
        EXPECT_LE(result.sum.target_calls, 5 * 60 / 5) << verify << ": all accepted";
    }
    job.generation = base_generation();
    job.options.verify = "coupled";
    EXPECT_EQ(tokens_of(launch(job).items), plain());
}

// If the target drafts for itself, every first guess is right, under the shared noise and under a sampling rule. This
// shows that the draft's KV is that of the accepted path, at the right positions.
TEST(LmDrafter, TheTargetItselfDraftsWithoutAnError) {
    for (const Method& method : methods) {
        if (method.models > 1) continue;
        for (const std::string verify : {"coupled", method.verify}) {
            Job job = job_of(method, verify);
            job.draft_models = {tiny_model};
            job.options.batch = 2;
            const JobResult result = launch(job);
            const auto depth = static_cast<double>(tree_of(find_draft_method(method.draft), method.tree).depth);
            // 60 tokens: the last step of an item may be cut.
            const double full_steps = 60 / (depth + 1);
            EXPECT_LE(result.sum.target_calls, 5 * std::ceil(full_steps)) << method.draft << " " << verify;
            if (verify == "coupled") {
                EXPECT_EQ(tokens_of(result.items), plain());
            }
        }
    }
}

TEST(LmDrafter, SamplingRulesGiveOneTextWhateverTheBatchAndTheSplit) {
    for (const Method& method : methods) {
        Job job = job_of(method, method.verify);
        job.options.batch = 1;
        const Texts alone = tokens_of(launch(job).items);
        EXPECT_NE(alone, plain()) << "an independent draw";
        for (const std::int64_t batch : {2, 8}) {
            job.options.batch = batch;
            EXPECT_EQ(tokens_of(launch(job).items), alone) << method.draft << ", batch " << batch;
        }
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << method.draft << ", 2 ranks, whole drafts";
        job.draft_sharded = true;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << method.draft << ", 2 ranks, sharded drafts";
    }
}

TEST(LmDrafter, NgramsUnderRecursiveGiveOneText) {
    Job job{base_options()};
    job.options.verify = "recursive";
    job.options.batch = 1;
    const Texts alone = tokens_of(launch(job).items);
    for (const std::int64_t batch : {2, 8}) {
        job.options.batch = batch;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), alone) << "batch " << batch;
        EXPECT_GT(result.sum.accepted, 5);
    }
}

/// Interrupted every 37 tokens until all items are done.
Texts resumed_again_and_again(Job job, const std::string& what) {
    const auto folder = std::filesystem::temp_directory_path() / ("lm_drafter_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    job.options.checkpoint.folder = folder;
    std::map<std::int64_t, FinishedItem> done;
    int launches = 0;
    for (; done.size() < 5 && launches < 30; ++launches) {
        job.options.checkpoint.epoch = launches + 1;
        job.stop_after = 37;
        job.options.checkpoint.store_kv = launches % 2 == 0;
        for (auto& [index, item] : launch(job, done).items) done[index] = std::move(item);
    }
    EXPECT_GT(launches, 3) << what;
    std::filesystem::remove_all(folder);
    return tokens_of(done);
}

TEST(LmDrafter, StoppedAndResumedTheTextGoesOn) {
    for (const Method& method : methods) {
        for (const std::string verify : {"coupled", method.verify}) {
            Job job = job_of(method, verify);
            job.options.batch = 2;
            EXPECT_EQ(resumed_again_and_again(job, method.draft), tokens_of(launch(job).items))
                << method.draft << " " << verify;
        }
    }
}

// Entries pushed out of a table's full lists are in no checkpoint, but the drafts must still be the same.
TEST(LmDrafter, NgramsUnderRecursiveGoOnAfterAResume) {
    Job job{base_options()};
    job.options.verify = "recursive";
    job.options.draft.ngram_top = 2;
    job.options.batch = 2;
    EXPECT_EQ(resumed_again_and_again(job, "ngram"), tokens_of(launch(job).items));
}

// max-tokens of an item decides only where it ends, even if a checkpoint already has more tokens.
TEST(LmDrafter, FewerTokensAreABeginning) {
    const auto folder = std::filesystem::temp_directory_path() / ("lm_drafter_test." + std::to_string(getpid()));
    for (const Method& method : methods) {
        Job job = job_of(method, method.verify);
        job.options.batch = 2;
        Texts shorter = tokens_of(launch(job).items);
        for (auto& [index, tokens] : shorter) tokens.resize(11);
        std::filesystem::remove_all(folder);
        job.options.checkpoint.folder = folder;
        job.options.checkpoint.epoch = 1;
        job.stop_after = 45;
        launch(job);
        job.stop_after = -1;
        job.generation.max_tokens = 11;
        job.options.checkpoint.epoch = 2;
        EXPECT_EQ(tokens_of(launch(job).items), shorter) << method.draft;
    }
    std::filesystem::remove_all(folder);
}

// Memory for one sequence at a time: the others wait and then continue where they were.
TEST(LmDrafter, ShortMemoryDoesNotChangeTheText) {
    for (const Method& method : methods) {
        Job job = job_of(method, method.verify);
        const Texts whole = tokens_of(launch(job).items);
        job.options.kv_memory_bytes = std::int64_t{400} << 10;
        job.options.batch = 8;
        EXPECT_EQ(tokens_of(launch(job).items), whole) << method.draft;
    }
}

// --- trees that change from step to step

const std::vector<Method> changing{{"sd", "auto", ""},
                                   {"spectr", "auto", ""},
                                   {"specinfer", "auto", "", 2},
                                   {"rsd-c", "auto", ""},
                                   {"rsd-s", "auto", ""}};

/// No drafts for `pause` steps, then trees of every size; each call is a step.
std::function<TreeLimits()> every_size(std::int64_t pause) {
    return [pause, step = std::int64_t{0}]() mutable -> TreeLimits {
        ++step;
        if (step <= pause || step % 7 == 0) return {.depth = 0, .width = 0};
        const std::int64_t width = 1 + step % 4;
        return {.depth = 1 + step % 5, .width = width == 4 ? 6 : width};
    };
}

// The choice depends on measured time, so the number of drafts is not checked.
TEST(LmDrafter, MeasuredTreesGiveTheTextOfPlainDecoding) {
    for (const Method& method : changing) {
        for (const std::int64_t batch : {1, 4}) {
            for (const int ranks : {1, 2}) {
                Job job = job_of(method, "coupled");
                job.options.batch = batch;
                job.ranks = ranks;
                job.draft_sharded = batch == 4;
                EXPECT_EQ(tokens_of(launch(job).items), plain()) << method.draft << ", batch " << batch;
            }
        }
    }
}

TEST(LmDrafter, TreesOfAnySizeAndPausesGiveTheTextOfPlainDecoding) {
    for (const Method& method : changing) {
        for (const std::int64_t batch : {1, 4}) {
            for (const std::int64_t pause : {0, 50}) {
                Job job = job_of(method, "coupled");
                job.options.batch = batch;
                job.options.draft.tree_limits = every_size(pause);
                job.ranks = pause == 0 ? 1 : 2;
                const JobResult result = launch(job);
                EXPECT_EQ(tokens_of(result.items), plain()) << method.draft << ", batch " << batch;
                EXPECT_GT(result.sum.drafted, 30) << method.draft;
            }
        }
    }
}

// The target drafts for itself: after a pause it reads the tokens it has not seen, and every guess is right.
TEST(LmDrafter, ReadsUpAfterAPause) {
    Job job = job_of({"sd", "auto", ""}, "coupled");
    job.draft_models = {tiny_model};
    job.options.batch = 1;
    job.items = 1;
    job.options.draft.tree_limits = [step = 0]() mutable -> TreeLimits {
        ++step;  // the prompt's 20 tokens are one step
        return {.depth = step <= 11 || (step > 14 && step <= 24) ? 0 : 4, .width = 1};
    };
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(0).tokens, plain().at(0));
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    EXPECT_EQ(result.sum.target_calls, 10 + 3 + 10 + 5);  // 10 + 15 + 10 + 25 tokens
}

// After a long pause the draft model starts again from the last tokens.
TEST(LmDrafter, AfterALongPauseItDraftsFromTheLastTokens) {
    Job job{base_options()};
    job.options.draft.method = "ar";
    job.items = 1;
    job.prompts[0] = prompt_of(4);  // 168 tokens, none of which the drafter sees
    const Texts expected = tokens_of(launch(job).items);
    job.options.draft = job_of({"sd", "auto", ""}, "coupled").options.draft;
    job.draft_models = {tiny_model};
    job.options.draft.tree_limits = [step = 0]() mutable -> TreeLimits {
        return {.depth = ++step <= 20 ? 0 : 4, .width = 1};
    };
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), expected);
    EXPECT_GT(result.sum.accepted, 0);
    EXPECT_LT(result.sum.accepted, result.sum.drafted) << "it did see the whole text";
}

TEST(LmDrafter, ChangingTreesStoppedAndResumed) {
    const auto folder = std::filesystem::temp_directory_path() / ("lm_drafter_auto." + std::to_string(getpid()));
    for (const bool measured : {false, true}) {
        std::filesystem::remove_all(folder);
        std::map<std::int64_t, FinishedItem> done;
        int launches = 0;
        for (; done.size() < 5 && launches < 30; ++launches) {
            Job job = job_of({"rsd-s", "auto", ""}, "coupled");
            if (!measured) job.options.draft.tree_limits = every_size(launches * 5);
            job.options.batch = 2;
            job.options.checkpoint.folder = folder;
            job.options.checkpoint.epoch = launches + 1;
            job.options.checkpoint.store_kv = launches % 2 == 0;
            job.stop_after = 37;
            for (auto& [index, item] : launch(job, done).items) done[index] = std::move(item);
        }
        EXPECT_EQ(tokens_of(done), plain());
        EXPECT_GT(launches, 3);
    }
    std::filesystem::remove_all(folder);
}

TEST(LmDrafter, ChangingTreesInShortMemory) {
    Job job = job_of({"rsd-s", "auto", ""}, "coupled");
    job.options.kv_memory_bytes = std::int64_t{320} << 10;
    job.options.batch = 8;
    job.options.draft.tree_limits = every_size(20);
    EXPECT_EQ(tokens_of(launch(job).items), plain());
}

}  // namespace
}  // namespace longhaul::engine
