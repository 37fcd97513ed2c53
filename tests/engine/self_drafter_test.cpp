// Draft method `self` in a whole replica: the model drafts for itself over a part of its own keys and values. Under
// `coupled` the text is that of plain decoding; under the sampling rules it is one text of its own, whatever the batch,
// the split and the interruptions, and its distribution is the target's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <optional>

#include "engine/draft/drafter.hpp"
#include "engine/kv/partial_kv.hpp"
#include "engine/sampling/pipeline.hpp"
#include "tests/engine/chi_square.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;
using Texts = std::map<std::int64_t, Tokens>;

Job job_of(VerifyRule verify, std::optional<Precision> copy, const char* tree = "4") {
    Job job{base_options()};
    job.options.draft.method = "self";
    job.options.draft.tree = tree;
    job.options.draft.partial_cache = {.mode = PartialMode::window, .max_positions = 128};
    job.options.verify = verify;
    job.copy = copy;
    return job;
}

Texts plain_texts() {
    Job job{base_options()};
    job.options.draft.method = "ar";
    return tokens_of(launch(job).items);
}

TEST(SelfDrafter, CoupledGivesTheTextOfPlainDecoding) {
    const Texts plain = plain_texts();
    for (const auto copy :
         {std::optional<Precision>(), std::optional(Precision::int8), std::optional(Precision::int4)}) {
        for (const char* tree : {"4", "3x4:7", "auto"}) {
            for (const auto mode : {PartialMode::window, PartialMode::full}) {
                Job job = job_of(VerifyRule::coupled, copy, tree);
                job.options.draft.partial_cache.mode = mode;
                job.options.batch = copy ? 3 : 1;
                const JobResult result = launch(job);
                EXPECT_EQ(tokens_of(result.items), plain) << tree;
                EXPECT_GT(result.sum.accepted, std::string(tree) == "auto" ? 0 : result.sum.drafted / 8) << tree;
            }
        }
    }
}

TEST(SelfDrafter, CoupledOnTwoRanks) {
    for (const auto copy : {std::optional<Precision>(), std::optional(Precision::int4)}) {
        for (const char* tree : {"4", "auto"}) {  // `auto`: the first rank's measured prices decide for both
            Job job = job_of(VerifyRule::coupled, copy, tree);
            job.ranks = 2;
            EXPECT_EQ(tokens_of(launch(job).items), plain_texts()) << tree;
        }
    }
}

// Its own weights over all of its keys and values are the target, to the bit: every draft is accepted.
TEST(SelfDrafter, TheWholeModelIsRightInEveryDraft) {
    for (const double temperature : {0.0, 0.8}) {
        Job job = job_of(VerifyRule::coupled, {});
        job.options.draft.partial_cache.mode = PartialMode::full;
        job.generation.sampling.temperature = temperature;
        job.generation.max_tokens = 61;  // 1 + 12 steps of 5
        const JobResult result = launch(job);
        EXPECT_EQ(result.sum.accepted, result.sum.drafted) << temperature;
        EXPECT_GT(result.sum.drafted, 0);
    }
}

TEST(SelfDrafter, APromptOfOneToken) {
    Job job = job_of(VerifyRule::coupled, Precision::int8);
    job.items = 1;
    job.prompts[0] = {1};
    const Texts drafted = tokens_of(launch(job).items);
    job.options.draft.method = "ar";
    EXPECT_EQ(tokens_of(launch(job).items), drafted);
}

TEST(SelfDrafter, SamplingRulesGiveOneTextWhateverTheBatchAndTheSplit) {
    for (const char* verify : {"recursive", "rejection"}) {
        Job job = job_of(verify, Precision::int4);
        if (std::string(verify) == "recursive") job.options.draft.tree = "3x3";
        job.options.batch = 1;
        const Texts alone = tokens_of(launch(job).items);
        EXPECT_NE(alone, plain_texts()) << "an independent draw";
        job.options.batch = 8;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << verify;
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << verify << ", 2 ranks";
    }
}

// Nothing of the draft is stored, and what it reads follows from the text alone.
TEST(SelfDrafter, StoppedAndResumedTheTextGoesOn) {
    const auto folder = std::filesystem::temp_directory_path() / ("self_drafter_test." + std::to_string(getpid()));
    for (const VerifyRule verify : {VerifyRule::coupled, VerifyRule::recursive}) {
        for (const bool store_kv : {true, false}) {
            Job job = job_of(verify, Precision::int8, "2x3");
            const Texts whole = tokens_of(launch(job).items);
            job.options.checkpoint.store_kv = store_kv;
            std::filesystem::remove_all(folder);
            const JobResult result = launch_in_parts({job}, folder, 37);
            EXPECT_EQ(tokens_of(result.items), whole) << verify.name();
            EXPECT_GT(result.sum.resumes, 3);
        }
    }
    std::filesystem::remove_all(folder);
}

TEST(SelfDrafter, ShortMemoryDoesNotChangeTheText) {
    Job job = job_of(VerifyRule::recursive, Precision::int8, "2x3");
    const Texts whole = tokens_of(launch(job).items);
    job.options.kv_memory_bytes = std::int64_t{400} << 10;
    job.options.batch = 8;
    EXPECT_EQ(tokens_of(launch(job).items), whole);
}

TEST(SelfDrafter, PlansCountItsNodes) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    for (const char* tree : {"", "auto", "5", "3x4:7"}) {
        for (const std::int64_t top : {0, 20}) {
            DraftOptions options;
            options.method = "self";
            options.tree = tree;
            options.ngram_top = top;
            options.models = {model.get()};
            EXPECT_EQ(make_drafter({options, model.get()})->max_nodes(), max_tree_nodes(options)) << tree;
        }
    }
}

// --- the distribution of texts

constexpr std::int64_t emitted = 3;

SamplingParams four_tokens() {
    SamplingParams wanted;
    wanted.temperature = 1.3;
    wanted.top_k = 4;
    wanted.repetition_penalty = 1.2;  // each node has its own context
    wanted.penalty_window = 64;
    return wanted;
}

/// The target's distribution after `context`.
Distribution next_token(Model& model, const Tokens& context) {
    PagePool pool(model.device(), model.kv_layout(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    EXPECT_TRUE(kv.reserve(std::ssize(context)));
    std::vector<ForwardRow> rows;
    for (const std::int32_t token : context) rows.push_back(text_row(token, std::ssize(rows)));
    rows.back().wants_logits = true;
    const KvView view = kv.view();
    PassResult result = model.forward({.rows = rows, .sequences = std::span(&view, 1)});
    return LogitsPipeline(four_tokens(), model.config().vocab_size).apply(result.logits.all(), {context, {}});
}

/// The probabilities of all texts of `emitted` tokens after `prompt`.
std::map<Tokens, double> joint_distribution(const Tokens& prompt) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    std::map<Tokens, double> texts{{{}, 1.0}};
    for (std::int64_t i = 0; i < emitted; ++i) {
        std::map<Tokens, double> longer;
        for (const auto& [text, probability] : texts) {
            Tokens context = prompt;
            context.insert(context.end(), text.begin(), text.end());
            const Distribution next = next_token(*model, context);
            for (std::size_t v = 0; v < next.ids.size(); ++v) {
                Tokens all = text;
                all.push_back(next.ids[v]);
                longer[all] = probability * next.q[v];
            }
        }
        texts = std::move(longer);
    }
    return texts;
}

TEST(SelfDrafter, TextsAreDistributedAsTheTargets) {
    const Tokens prompt = prompt_of(4);
    const std::map<Tokens, double> expected = joint_distribution(prompt);
    ASSERT_EQ(expected.size(), 64U);
    struct Case {
        const char *verify, *tree;
    };
    for (const Case& wanted : {Case{"coupled", "3"}, Case{"rejection", "3"}, Case{"recursive", "3x2"},
                               Case{"recursive", "3x2:4"}, Case{"k-seq", "2"}, Case{"multi-round", "2"}}) {
        Job job = job_of(wanted.verify, Precision::int4, wanted.tree);
        job.options.draft.partial_cache.max_positions = 64;
        job.options.batch = 16;
        job.generation.sampling = four_tokens();
        job.generation.max_tokens = emitted;
        job.items = 2000;
        for (std::int64_t item = 0; item < job.items; ++item) job.prompts[item] = prompt;
        const JobResult result = launch(job);
        std::map<Tokens, std::int64_t> counts;
        for (const auto& [index, item] : result.items) ++counts[item.tokens];
        EXPECT_GT(chi_square_p(counts, expected), 1e-4) << wanted.verify;
        EXPECT_GT(result.sum.accepted, job.items / 4) << wanted.verify << ": drafts must be accepted";
        EXPECT_LT(result.sum.accepted, job.items * (emitted - 1)) << wanted.verify << ": and rejected";
    }
}

// --- the selection

TEST(PartialKv, TheWindowHasTheFirstPageAndTheLast) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    kernels::KvLayout layout{.dtype = kernels::DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    layout.pages_together = device->kv_pages_together(layout);
    PagePool pool(*device, layout, std::int64_t{1} << 30);
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(1000));
    const PartialCache window{.mode = PartialMode::window, .max_positions = 200};  // four pages
    const auto selected = [&](std::int64_t committed, const PartialCache& cache) {
        kv.set_committed(committed);
        const PartialKv partial = PartialKv::select(kv, cache);
        std::vector<std::int64_t> pages;
        for (const std::byte* page : partial.pages)
            pages.push_back(std::find(kv.pages().begin(), kv.pages().end(), page) - kv.pages().begin());
        return std::pair(pages, partial.num_slots);
    };
    using Selected = std::pair<std::vector<std::int64_t>, std::int64_t>;
    EXPECT_EQ(selected(0, window), (Selected{{}, 0}));
    EXPECT_EQ(selected(10, window), (Selected{{0}, 10}));
    EXPECT_EQ(selected(256, window), (Selected{{0, 1, 2, 3}, 256}));
    EXPECT_EQ(selected(257, window), (Selected{{0, 2, 3, 4}, 193}));
    EXPECT_EQ(selected(900, window), (Selected{{0, 12, 13, 14}, 196}));
    EXPECT_EQ(selected(900, {.mode = PartialMode::full}).second, 900);
}

}  // namespace
}  // namespace longhaul::engine
