// Draft method `self-or-sd` in a whole replica: whichever method drafts a step, the text is that of plain decoding, at
// any batch size and number of ranks, after any interruption, and in runs that change between it and its parts.
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/draft/drafter.hpp"
#include "engine/error.hpp"
#include "engine/verify/verifier.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Texts = std::map<std::int64_t, std::vector<std::int32_t>>;

Job alternatives_job(const char* method = "self-or-sd") {
    Job job{base_options()};
    job.options.draft.method = method;
    job.options.draft.tree = "auto";
    job.options.draft.partial_cache = {.mode = PartialMode::window, .max_positions = 128};
    job.options.verify = VerifyRule::coupled;
    if (job.options.draft.method->part == DraftPart::language_model)
        job.draft_models = {LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16"};
    if (job.options.draft.method->copies_target) job.copy = Precision::int4;
    return job;
}

const Texts& plain_text() {
    static const Texts texts = plain_texts();
    return texts;
}

/// The methods take turns of `turn` steps, with trees of every size and pauses; each call is a step.
std::function<TreeLimits()> turns(std::int64_t turn) {
    return [turn, step = std::int64_t{0}]() mutable -> TreeLimits {
        ++step;
        const std::int64_t method = step / turn % 2;
        if (step % 7 == 0) return {.depth = 0, .width = 0, .method = method};
        return {.depth = 1 + step % 5, .width = 1 + step % 3, .method = method};
    };
}

std::filesystem::path fresh_folder() {
    const auto folder = std::filesystem::temp_directory_path() / ("alternatives_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    return folder;
}

// The choice depends on measured time, so the number of drafts is not checked.
TEST(Alternatives, MeasuredChoicesGiveTheTextOfPlainDecoding) {
    for (const std::int64_t batch : {1, 3}) {
        for (const int ranks : {1, 2}) {
            for (const bool copy : {true, false}) {
                Job job = alternatives_job();
                job.options.batch = batch;
                job.ranks = ranks;
                job.draft_sharded = copy;
                if (!copy) job.copy.reset();
                EXPECT_EQ(tokens_of(launch(job).items), plain_text()) << batch << ", " << ranks << " ranks";
            }
        }
    }
}

TEST(Alternatives, StepsOfBothMethodsGiveTheTextOfPlainDecoding) {
    for (const std::int64_t batch : {1, 3}) {
        for (const std::int64_t turn : {1, 3, 20}) {
            Job job = alternatives_job();
            job.options.batch = batch;
            job.ranks = turn == 3 ? 2 : 1;
            job.options.draft.tree_limits = turns(turn);
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_text()) << batch << ", turns of " << turn;
            EXPECT_GT(result.sum.draft_model_calls, 20);
            EXPECT_GT(result.sum.draft_calls, result.sum.draft_model_calls + 20);
        }
    }
}

// The draft model is the target: whatever was drafted before, all of its guesses are right, since it has read up.
TEST(Alternatives, ADraftModelThatWasNotUsedReadsUp) {
    Job job = alternatives_job();
    job.draft_models = {tiny_model};
    job.options.batch = 1;
    job.items = 1;
    job.options.draft.ngram_top = 0;
    job.options.draft.tree_limits = [step = 0]() mutable -> TreeLimits {
        return {.depth = 3, .width = 1, .method = ++step % 8 == 0 ? 1 : 0};
    };
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(0).tokens, plain_text().at(0));
    EXPECT_GT(result.sum.accepted_draft_model, 3);
    EXPECT_EQ(result.sum.accepted_draft_model, result.sum.draft_model_calls) << "a call is a draft of a chain";
}

TEST(Alternatives, StatisticsTellWhoDrafted) {
    for (const std::int64_t method : {0, 1}) {
        Job job = alternatives_job();
        job.options.draft.ngram_top = 0;
        job.options.draft.tree_limits = [method]() -> TreeLimits { return {.depth = 3, .width = 1, .method = method}; };
        const ItemStatistics sum = launch(job).sum;
        EXPECT_GT(sum.accepted, 0);
        EXPECT_EQ(sum.draft_model_calls, method == 1 ? sum.draft_calls : 0);
        EXPECT_EQ(sum.accepted_draft_model, method == 1 ? sum.accepted : 0);
    }
    Job alone = alternatives_job("sd");
    alone.options.draft.tree = "3";
    const ItemStatistics sum = launch(alone).sum;
    EXPECT_EQ(sum.accepted_draft_model, sum.accepted);
    EXPECT_EQ(sum.draft_model_calls, sum.draft_calls);
}

// While the draft model drafts, the n-grams count on.
TEST(Alternatives, NgramsLearnFromEveryStep) {
    Job job = alternatives_job();
    job.items = 1;
    for (std::int32_t i = 0; i < 60; ++i) job.continuations[0].push_back(11 + i % 5);
    job.options.draft.tree_limits = [step = 0]() mutable -> TreeLimits {
        return {.depth = 0, .width = 0, .method = ++step <= 20 ? 1 : 0};
    };
    const JobResult result = launch(job);
    EXPECT_GT(result.sum.accepted_ngram, 20);
    EXPECT_LT(result.sum.target_calls, 20 + 20) << "the first step of n-grams knows the twenty tokens before it";
}

TEST(Alternatives, StoppedOnTwoRanksAndResumedOnOne) {
    for (const bool store_kv : {true, false}) {
        const auto folder = fresh_folder();
        Job two = alternatives_job();
        two.options.batch = 3;
        two.options.checkpoint.store_kv = store_kv;
        two.options.draft.tree_limits = turns(5);
        two.ranks = 2;
        Job one = two;
        one.ranks = 1;
        const JobResult result = launch_in_parts({two, one}, folder, 37);
        EXPECT_EQ(tokens_of(result.items), plain_text());
        EXPECT_GT(result.sum.resumes, 3);
        std::filesystem::remove_all(folder);
    }
}

// A run of an earlier version, or one with a draft method of its own, goes on with the choice, and the other way round.
TEST(Alternatives, RunsGoOnWithOtherMethods) {
    const auto folder = fresh_folder();
    std::vector<Job> jobs{alternatives_job("sd"), alternatives_job(), alternatives_job("self"), alternatives_job(),
                          alternatives_job("ar")};
    for (Job& job : jobs) {
        job.options.batch = 2;
        if (job.options.draft.method->chooses_method()) job.options.draft.tree_limits = turns(4);
    }
    const JobResult result = launch_in_parts(jobs, folder, 31);
    EXPECT_EQ(tokens_of(result.items), plain_text());
    EXPECT_GT(result.sum.resumes, 3);
    std::filesystem::remove_all(folder);
}

TEST(Alternatives, ShortMemoryDoesNotChangeTheText) {
    Job job = alternatives_job();
    job.options.kv_memory_bytes = std::int64_t{400} << 10;
    job.options.batch = 8;
    job.options.draft.tree_limits = turns(9);
    EXPECT_EQ(tokens_of(launch(job).items), plain_text());
}

TEST(Alternatives, PlansCountItsNodesAndItsMemory) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto made = [&](const char* method, std::vector<Model*> models) {
        DraftOptions options;
        options.method = method;
        options.tree = "auto";
        options.models = std::move(models);
        auto drafter = make_drafter({options, model.get()});
        EXPECT_LE(drafter->max_nodes(), max_tree_nodes(options, options.shape())) << method;
        return drafter;
    };
    const auto both = made("self-or-sd", {model.get(), model.get()});
    const auto self = made("self", {model.get()}), sd = made("sd", {model.get()});
    EXPECT_EQ(both->max_nodes(), self->max_nodes());
    EXPECT_EQ(both->max_depth(), std::max(self->max_depth(), sd->max_depth()));
    EXPECT_EQ(both->bytes_per_token(), sd->bytes_per_token());
    EXPECT_TRUE(both->adapts());
}

TEST(Alternatives, MeasuredTimeMayOnlyDecideUnderCoupled) {
    const DraftMethod& method = find_draft_method("self-or-sd");
    EXPECT_NO_THROW(check_lossless(VerifyRule::coupled, method, 1, "auto"));
    for (const char* rule : {"rejection", "multi-round", "k-seq", "recursive", "tokenswift-paper"}) {
        EXPECT_THROW(check_lossless(VerifyRule(rule), method, 1, "auto"), UsageError) << rule;
        const auto names = methods_of_rule(VerifyRule(rule));
        EXPECT_EQ(std::count(names.begin(), names.end(), method.name), 0) << rule;
    }
    EXPECT_THROW(tree_of(method, "4"), UsageError) << "each step has the tree of its method";
}

}  // namespace
}  // namespace longhaul::engine
