// TokenSwift in a whole replica: under `coupled` the text is that of plain decoding, under `recursive` one text of its
// own, whatever the batch, the split and the interruptions; the distribution is the target's. Also chained heads
// against their formula, in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/draft/heads.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;
using Texts = std::map<std::int64_t, Tokens>;

std::int64_t tiny_width() {
    return ModelConfig::load(tiny_model).hidden_size;
}

Tokens prompt_of(std::int32_t length) {
    Tokens tokens;
    for (std::int32_t i = 0; i < length; ++i) tokens.push_back((i * i + i / 5) % 90);
    return tokens;
}

/// Prompts and texts that are longer than their selection.
Job job_of(VerifyRule verify, const HeadsFolder& heads, PartialMode::Value mode = PartialMode::dynamic) {
    Job job{base_options()};
    job.options.draft.method = "tokenswift";
    job.options.draft.tree = "1,3,3,3";
    job.options.draft.partial_cache = {.mode = mode, .max_positions = 256, .of_prompt = true};
    job.options.verify = verify;
    job.heads = heads.path();
    job.items = 3;
    for (std::int32_t item = 0; item < job.items; ++item) {
        for (std::int32_t i = 0; i < 200 + 60 * item; ++i) job.prompts[item].push_back((i * i + 3 * item + i / 5) % 90);
    }
    job.generation.max_tokens = 150;
    return job;
}

TEST(TokenSwift, CoupledGivesTheTextOfPlainDecoding) {
    const HeadsFolder heads(tiny_width(), 3);
    for (const auto mode : {PartialMode::window, PartialMode::dynamic, PartialMode::fixed_start, PartialMode::full}) {
        for (const char* tree : {"1,3,3,3", "2,1", "auto"}) {
            Job job = job_of(VerifyRule::coupled, heads, mode);
            job.options.draft.tree = tree;
            job.options.batch = mode == PartialMode::window ? 1 : 3;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_texts(job)) << tree;
            EXPECT_GT(result.sum.accepted, 0) << tree;
        }
    }
    Job split = job_of(VerifyRule::coupled, heads);
    split.ranks = 2;
    EXPECT_EQ(tokens_of(launch(split).items), plain_texts(split)) << "2 ranks";
}

// A preempted sequence waits until there are pages for a selection as long as its own prompt: admitted earlier, it
// would be preempted again after each step. There are only two items, so none comes next.
TEST(TokenSwift, APreemptedSequenceWaitsForThePagesOfItsOwnPrompt) {
    const HeadsFolder heads(tiny_width(), 3);
    Job job = job_of(VerifyRule::coupled, heads);
    job.items = 2;
    job.prompts = {{0, prompt_of(1100)}, {1, prompt_of(1500)}};
    job.options.prefix_caching = false;  // the second prompt begins as the first does
    job.options.draft.partial_cache.max_positions = 0;
    const auto device = kernels::make_cpu_device(job.variant, 1);  // the page size depends on the variant
    const auto group = make_local_group();
    const auto model = Model::load(job.model, job.precision, *device, *group);
    job.options.kv_memory_bytes = 75 * static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout()));
    const std::int64_t prefilled = launch(job).outcome.progress.prefilled_tokens;
    const std::int64_t twice = 1100 + 2 * (1500 - 1);
    EXPECT_GE(prefilled, twice) << "the second one is preempted";
    EXPECT_LT(prefilled, twice + job.generation.max_tokens) << "only once";
}

TEST(TokenSwift, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    const HeadsFolder heads(tiny_width(), 3);
    const Job job = job_of(VerifyRule::recursive, heads);
    EXPECT_NE(expect_one_text(job), plain_texts(job)) << "an independent draw";
}

TEST(TokenSwift, TextsAreDistributedAsTheTargets) {
    const HeadsFolder heads(tiny_width(), 2);
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive}) {
        for (const std::int64_t passes : {1, 2}) {
            Job job = job_of(rule, heads);
            job.options.draft.tree = "2,2";
            job.options.draft.passes = passes;
            if (passes == 2) job.copy = Precision::int4;
            expect_distribution_of_target(std::move(job), prompt_of(passes == 1 ? 6 : 300), passes == 1 ? 2000 : 800);
        }
    }
}

// The published selection is there for comparison: its texts do not follow the target's distribution, those of
// `recursive` with the same drafts do. It gives one text whatever the batch and the split.
TEST(TokenSwift, TheTextsOfThePublishedSelectionAreNotTheTargets) {
    const HeadsFolder heads(tiny_width(), 2);
    SamplingParams sampling = four_tokens();
    sampling.repetition_penalty = 1;
    Job job = job_of(VerifyRule::tokenswift_paper, heads, PartialMode::full);
    job.options.draft.tree = "1,3,3";
    job.options.draft.before_filters = true;
    EXPECT_LT(target_distribution_p(job, prompt_of(6), 1000, sampling), 1e-9);
    job.options.verify = VerifyRule::recursive;
    EXPECT_GT(target_distribution_p(job, prompt_of(6), 1000, sampling), 1e-4);

    job = job_of(VerifyRule::tokenswift_paper, heads);
    job.options.draft.tree = "1,3,3";
    const Texts texts = tokens_of(launch(job).items);
    job.options.batch = 1;
    EXPECT_EQ(tokens_of(launch(job).items), texts) << "another batch";
    job.ranks = 2;
    EXPECT_EQ(tokens_of(launch(job).items), texts) << "2 ranks";
    job.generation.sampling.temperature = 0;
    job.generation.sampling.repetition_penalty = 1;
    EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job)) << "greedy decoding without a penalty has but one text";
}

// Passes of a copy with fewer bits, and several of them, before the heads.
TEST(TokenSwift, PassesOfACopyChangeTheDraftsNotTheText) {
    const HeadsFolder heads(tiny_width(), 2);
    for (const auto& [passes, tree] : {std::pair<std::int64_t, const char*>{1, "1,2,2"}, {3, "2,2"}, {4, "auto"}}) {
        Job job = job_of(VerifyRule::coupled, heads);
        job.copy = Precision::int4;
        job.options.draft.passes = passes;
        job.options.draft.tree = tree;
        const Texts plain = plain_texts(job);
        for (const int ranks : {1, 2}) {
            job.ranks = ranks;
            job.options.batch = ranks == 1 ? 3 : 1;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain) << passes << " passes, tree " << tree << ", ranks " << ranks;
            EXPECT_GT(result.sum.accepted, 0);
        }
    }
    for (const Precision precision : {Precision::bf16, Precision::fp32}) {  // the heads', too
        Job job = job_of(VerifyRule::recursive, heads);
        job.precision = precision;
        job.copy = Precision::int8;
        job.options.draft.passes = 2;
        job.options.draft.tree = "2,2";
        const Texts texts = tokens_of(launch(job).items);
        job.options.batch = 1;
        EXPECT_EQ(tokens_of(launch(job).items), texts) << "another batch";
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), texts) << "2 ranks";
    }
}

// The passes are the target's own: with all keys and values they are right in every step.
TEST(TokenSwift, EveryPassFindsTheTargetsTokenWithTheFullCache) {
    const HeadsFolder heads(tiny_width(), 1);
    Job job = job_of(VerifyRule::coupled, heads, PartialMode::full);
    job.options.draft.tree = "1";
    job.options.draft.passes = 4;
    job.options.draft.ngram_top = 0;
    job.generation.max_tokens = 61;
    const JobResult result = launch(job);
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    EXPECT_GT(result.sum.drafted, 3 * 45) << "most of the tokens";
}

// The demo's heads are right often enough to pay off: beside the token of the pass and the target's, a fifth of a token
// per call from chains, two fifths from trees.
TEST(TokenSwift, TheDemosHeadsGain) {
    Job job{base_options()};
    job.model = LONGHAUL_DEMO_MODEL;
    job.items = 2;
    for (std::int64_t item = 0; item < 2; ++item) job.prompts[item] = {310, 1022, 262, 700, 11};
    job.generation.sampling.penalty_window = 0;
    job.generation.sampling.repetition_penalty = 1;
    job.generation.max_tokens = 120;
    const Texts plain = plain_texts(job);
    job.options.draft.method = "tokenswift";
    job.options.draft.partial_cache = {.mode = PartialMode::window, .of_prompt = true};
    job.heads = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "tokenswift";
    for (const auto& [tree, least] : {std::pair("1,1,1,1", 2.2), {"1,3,3,3", 2.4}}) {
        job.options.draft.tree = tree;
        job.options.draft.ngram_top = 0;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain) << tree;
        EXPECT_GT(static_cast<double>(result.sum.decode_tokens) / static_cast<double>(result.sum.target_calls), least);
    }
}

// The first level is the target's own head: with all keys and values it is right in every step.
TEST(TokenSwift, TheFirstTokenIsTheTargetsWithTheFullCache) {
    const HeadsFolder heads(tiny_width(), 1);
    Job job = job_of(VerifyRule::coupled, heads, PartialMode::full);
    job.options.draft.tree = "1";
    job.options.draft.ngram_top = 0;
    job.generation.max_tokens = 61;
    const JobResult result = launch(job);
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    EXPECT_GT(result.sum.drafted, 50);
}

// Drafts without filters are still those of the biased logits: as right as the target's own.
TEST(TokenSwift, DraftsBeforeFiltersHaveTheBiasesOfTheTarget) {
    const HeadsFolder heads(tiny_width(), 1);
    Job job = job_of(VerifyRule::coupled, heads, PartialMode::full);
    job.options.draft.tree = "1";
    job.options.draft.ngram_top = 0;
    job.options.draft.before_filters = true;
    job.generation.sampling = {.temperature = 0.7, .repetition_penalty = 1};
    for (std::int32_t token = 0; token < 90; token += 7) job.generation.logit_bias.push_back({token, 3});
    const JobResult result = launch(job);
    EXPECT_EQ(result.sum.accepted, result.sum.drafted);
    EXPECT_GT(result.sum.drafted, 50);
}

// N-grams that followed a first token before are accepted where random heads guess wrong: here in a text that repeats
// itself, as most probable tokens do.
TEST(TokenSwift, NgramsFollowTheFirstToken) {
    const HeadsFolder heads(tiny_width(), 3);
    Job job = job_of(VerifyRule::coupled, heads, PartialMode::full);
    job.generation.sampling = {.temperature = 0};
    const JobResult with = launch(job);
    EXPECT_GT(with.sum.accepted_ngram, 20);
    EXPECT_GE(with.sum.accepted_ngram_path, 2 * with.sum.accepted_ngram) << "with the first tokens before them";
    EXPECT_LE(with.sum.accepted_ngram_path, with.sum.accepted);
    job.options.draft.ngram_top = 0;
    const JobResult without = launch(job);
    EXPECT_EQ(without.sum.accepted_ngram, 0);
    EXPECT_EQ(without.sum.accepted_ngram_path, 0);
    EXPECT_GT(with.sum.accepted, without.sum.accepted);
}

/// norm(x) * gain, in double precision.
std::vector<double> normed(const std::vector<double>& x, const std::vector<float>& gain, double eps) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    std::vector<double> y;
    for (std::size_t i = 0; i < x.size(); ++i)
        y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps) * double{gain[i]});
    return y;
}

TEST(Heads, ChainedHeadsReadTheStateBefore) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::fp32, *device, *group);
    const std::int64_t width = tiny_width();
    std::vector<HeadTensor> tensors;
    const HeadsFolder folder(width, 3, [&](std::vector<HeadTensor>& written) { tensors = written; });
    const DraftHeads heads(folder.path(), *model);
    HiddenStates h0 = model->hidden_states(2), first = model->hidden_states(2);
    for (std::int64_t i = 0; i < 2 * width; ++i) {
        h0.data()[i] = std::sin(static_cast<float>(i));
        first.data()[i] = std::cos(static_cast<float>(i));
    }
    HiddenStates out = chained_heads(*model, heads, h0, first, 3);
    ASSERT_EQ(out.num_rows(), 8);
    const auto rounded = [](float value) {  // as the folder stores it
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000U);
    };
    for (HeadTensor& tensor : tensors)
        std::transform(tensor.values.begin(), tensor.values.end(), tensor.values.begin(), rounded);
    for (std::int64_t row = 0; row < 2; ++row) {
        std::vector<double> h(h0.data() + row * width, h0.data() + (row + 1) * width);
        for (std::int64_t i = 0; i < width; ++i) EXPECT_EQ(out.data()[row * width + i], first.data()[row * width + i]);
        for (std::size_t head = 0; head < 3; ++head) {
            const std::vector<float>& matrix = tensors[3 * head].values;
            const std::vector<double> x = normed(h, tensors[3 * head + 1].values, heads.config().norm_eps);
            for (std::int64_t n = 0; n < width; ++n) {
                for (std::int64_t k = 0; k < width; ++k) h[n] += double{matrix[n * width + k]} * x[k];
            }
            const std::vector<double> y = normed(h, tensors[3 * head + 2].values, heads.config().norm_eps);
            const auto at = static_cast<std::int64_t>(2 * (head + 1)) + row;
            for (std::int64_t i = 0; i < width; ++i)
                ASSERT_NEAR(out.data()[at * width + i], y[i], 1e-4) << "head " << head << ", row " << row;
        }
    }
}

TEST(TokenSwift, TreesAreAsDeepAsThereAreHeadsAndOne) {
    const HeadsFolder heads(tiny_width(), 2);
    Job job = job_of(VerifyRule::coupled, heads);
    for (const char* tree : {"1,2,2", "1,3,3,3"}) {  // the method's default tree is cut
        job.options.draft.tree = tree;
        EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job)) << tree;
    }
    job.options.draft.tree = "1,2,2,2";
    EXPECT_THROW(launch(job), std::runtime_error);
    const HeadsFolder independent(tiny_width(), 3, {}, R"({"medusa_heads": 3, "chained": false})");
    EXPECT_THROW(launch(job_of(VerifyRule::coupled, independent)), std::runtime_error);
}

}  // namespace
}  // namespace longhaul::engine
