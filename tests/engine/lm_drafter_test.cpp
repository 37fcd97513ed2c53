// Drafts of language models in a whole replica: the text of plain decoding under `coupled`, one text of their own under
// the sampling rules, whatever the batch, the split and the interruptions; and keys and values of accepted nodes that
// are kept, not computed again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "engine/draft/methods.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

const std::filesystem::path parity = LONGHAUL_TEST_DATA "/parity";

struct Method {
    const char *draft, *tree, *verify;  ///< verify: its own sampling rule
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
    job.options.draft.verify = verify;
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

// With the target as its own draft every first guess is right, under the shared noise as under a rule of sampling. So
// keys and values of the draft are those of the accepted path, at the right positions, all the way.
TEST(LmDrafter, TheTargetItselfDraftsWithoutAnError) {
    for (const Method& method : methods) {
        if (method.models > 1) continue;
        for (const std::string verify : {"coupled", method.verify}) {
            if (verify == "k-seq") continue;  // its discount rejects equals
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
    job.options.draft.verify = "recursive";
    job.options.batch = 1;
    const Texts alone = tokens_of(launch(job).items);
    for (const std::int64_t batch : {2, 8}) {
        job.options.batch = batch;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), alone) << "batch " << batch;
        EXPECT_GT(result.sum.accepted, 5);
    }
}

/// Interrupted every 37 tokens until all is done.
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

// What was pushed out of a table's full lists is in no checkpoint, and the drafts must be the same all the same.
TEST(LmDrafter, NgramsUnderRecursiveGoOnAfterAResume) {
    Job job{base_options()};
    job.options.draft.verify = "recursive";
    job.options.draft.ngram_top = 2;
    job.options.batch = 2;
    EXPECT_EQ(resumed_again_and_again(job, "ngram"), tokens_of(launch(job).items));
}

// How many tokens an item may have decides where it ends, and nothing else; also where a checkpoint has more already.
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

// Memory for one sequence at a time: the others wait, and go on where they were.
TEST(LmDrafter, ShortMemoryDoesNotChangeTheText) {
    for (const Method& method : methods) {
        Job job = job_of(method, method.verify);
        const Texts whole = tokens_of(launch(job).items);
        job.options.kv_memory_bytes = std::int64_t{400} << 10;
        job.options.batch = 8;
        EXPECT_EQ(tokens_of(launch(job).items), whole) << method.draft;
    }
}

}  // namespace
}  // namespace longhaul::engine
