// Lyanna in a whole replica: a chain of hidden states, token info and re-sampling change the speed, never the text of
// `coupled`; `recursive` gives one text, whatever the batch, the split and the interruptions. Also its logits and trees
// against PyTorch, and folders with faults.
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/draft/drafter.hpp"
#include "engine/error.hpp"
#include "tests/engine/draft_layer_harness.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using LyannaTexts = std::map<std::int64_t, std::vector<std::int32_t>>;

constexpr Resample all_ways[] = {Resample::fused, Resample::separate, Resample::off};

std::string chain_config(std::int64_t rank = 4) {
    return config_with("}", R"(, "draft_layer": "lyanna", "token_info_rank": )" + std::to_string(rank) + "}");
}

/// Every third token.
std::vector<std::int64_t> some_hot_tokens() {
    std::vector<std::int64_t> hot;
    for (std::int64_t token = 0; token < 96; token += 3) hot.push_back(token);
    return hot;
}

TEST(Lyanna, CoupledGivesTheTextOfPlainDecoding) {
    const TensorsFolder all(with_token_info(layer_tensors()), chain_config());
    const TensorsFolder hot(with_token_info(layer_tensors(), some_hot_tokens()), chain_config());
    const TensorsFolder without(layer_tensors(), chain_config(0));
    for (const TensorsFolder* layer : {&all, &hot, &without}) {
        Job job = layer_job("lyanna", VerifyRule::coupled, *layer);
        const LyannaTexts plain = plain_texts(job);
        for (const Resample way : all_ways) {
            for (const std::int64_t batch : {1, 4}) {
                job.options.batch = batch;
                job.options.draft.resample = way;
                const JobResult result = launch(job);
                EXPECT_EQ(tokens_of(result.items), plain) << static_cast<int>(way) << ", batch " << batch;
                EXPECT_GT(result.sum.accepted, 20);
            }
        }
    }
    Job job = layer_job("lyanna", VerifyRule::coupled, hot);
    const LyannaTexts plain = plain_texts(job);
    for (const char* tree : {"1", "3", "10x4:20", "auto"}) {
        job.options.draft.tree = tree;
        EXPECT_EQ(tokens_of(launch(job).items), plain) << tree;
    }
    for (const int ranks : {2, 4}) {
        job.ranks = ranks;
        EXPECT_EQ(tokens_of(launch(job).items), plain) << ranks << " ranks";
    }
    job.ranks = 1;
    job.generation.sampling.temperature = 0;
    EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job)) << "greedy";
    for (const Precision precision : {Precision::fp32, Precision::int8}) {
        job.precision = precision;
        EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job));
    }
}

TEST(Lyanna, CoupledGoesOnAfterInterruptions) {
    const TensorsFolder layer(with_token_info(layer_tensors()), chain_config());
    const auto folder = std::filesystem::temp_directory_path() / ("lyanna_test." + std::to_string(getpid()));
    for (const Resample way : all_ways) {
        std::filesystem::remove_all(folder);
        Job job = layer_job("lyanna", VerifyRule::coupled, layer);
        job.options.draft.resample = way;
        job.ranks = 2;
        Job alone = job;
        alone.ranks = 1;
        const JobResult result = launch_in_parts({job, alone}, folder, 97);
        EXPECT_EQ(tokens_of(result.items), plain_texts(job));
        EXPECT_GT(result.sum.resumes, 1);
    }
    std::filesystem::remove_all(folder);
}

// With `draft-tree = auto` trees have other sizes in each step, and drafting pauses: for a while, in which the layer
// catches up afterwards, and for so long that it begins anew.
TEST(Lyanna, TreesOfAnySizeAndPausesChangeNoText) {
    const TensorsFolder chain(with_token_info(layer_tensors()), chain_config());
    const TensorsFolder eagle(layer_tensors(), layer_config);
    for (const auto& [method, way] : {std::pair<std::string, Resample>{"lyanna", Resample::fused},
                                      {"lyanna", Resample::separate},
                                      {"eagle", Resample::fused}}) {
        Job job = layer_job("lyanna", VerifyRule::coupled, method == "eagle" ? eagle : chain);
        job.items = 2;
        job.generation.max_tokens = 400;
        const LyannaTexts plain = plain_texts(job);
        job.options.draft.method = method;
        job.options.draft.resample = way;
        job.options.draft.tree = "auto";
        std::int64_t step = 0, drafting_steps = 0;
        job.options.draft.tree_limits = [&]() -> TreeLimits {
            ++step;
            if (step % 300 > 120 || step % 7 == 3) return {.depth = 0, .width = 0};
            ++drafting_steps;
            return {.depth = 1 + step % 5, .width = 1 + step % 8};
        };
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain) << method;
        EXPECT_GT(result.sum.accepted, drafting_steps / 10) << method;
        EXPECT_GT(step, 320);
        EXPECT_GT(result.sum.drafted, drafting_steps) << method;
    }
}

// The chains that re-sampling uses come from the step before. The drafts decide the text, so it shows that a resumed or
// preempted sequence has the chain that it had.
TEST(Lyanna, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    const TensorsFolder layer(with_token_info(layer_tensors(), some_hot_tokens()), chain_config());
    LyannaTexts last;
    const std::pair<Resample, std::int64_t> with_threshold[] = {
        {Resample::fused, 0}, {Resample::fused, 1}, {Resample::separate, 0}, {Resample::off, 0}};
    for (const auto& [way, threshold] : with_threshold) {
        Job job = layer_job("lyanna", VerifyRule::recursive, layer);
        job.options.draft.resample = way;
        job.options.draft.resample_threshold = threshold;
        const LyannaTexts alone = expect_one_text(job);
        EXPECT_NE(alone, last) << "another text with each way";
        last = alone;
        job.ranks = 4;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << "4 ranks";
        job.layer_parallel = DraftLayer::Parallel::replicated;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << "4 ranks, each with the whole layer";
        job.ranks = 1;
        job.options.batch = 3;
        job.options.prefill_chunk = 7;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << "other chunks";
        job.options.kv_memory_bytes = std::int64_t{400} << 10;  // sequences are preempted
        job.options.batch = 8;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << "short memory";
    }
}

TEST(Lyanna, TextsAreDistributedAsTheTargets) {
    const std::vector<std::int32_t> prompt{0, 1, 4, 9, 17, 26};
    const TensorsFolder layer(with_token_info(tensors_that_know(prompt)), chain_config());
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive}) {
        for (const Resample way : {Resample::fused, Resample::separate}) {
            Job job = layer_job("lyanna", rule, layer);
            job.options.draft.tree = "3x2:4";
            job.options.draft.resample = way;
            expect_distribution_of_target(job, prompt, 2000);
        }
    }
}

// The demo's layer: what a rejected token leaves of a chain drafts again.
TEST(Lyanna, ResamplingOnTheDemo) {
    Job job{base_options()};
    job.model = LONGHAUL_DEMO_MODEL;
    job.items = 2;
    for (std::int64_t item = 0; item < 2; ++item) job.prompts[item] = {310, 1022, 262, 700, 11};
    job.generation.sampling.penalty_window = 0;
    job.generation.sampling.repetition_penalty = 1;
    job.generation.max_tokens = 120;
    const LyannaTexts plain = plain_texts(job);
    job.options.draft.method = "lyanna";
    job.layer = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "lyanna";
    job.options.draft.tree = "4x3:12";
    const auto decoded = [&](Resample way) {
        job.options.draft.resample = way;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain);
        return result.sum;
    };
    const ItemStatistics off = decoded(Resample::off);
    EXPECT_GT(off.block_efficiency(), 1.9);
    EXPECT_EQ(off.accepted_resampled, 0);
    const ItemStatistics fused = decoded(Resample::fused);
    EXPECT_GT(fused.accepted_resampled, 0);
    EXPECT_GE(fused.block_efficiency(), off.block_efficiency());
    const ItemStatistics separate = decoded(Resample::separate);
    EXPECT_GT(separate.accepted_resampled, fused.accepted_resampled) << "also those that a regular tree would have";
    EXPECT_GT(separate.target_calls, fused.target_calls);
    job.options.draft.resample_threshold = 1;
    EXPECT_LT(decoded(Resample::separate).accepted_resampled, separate.accepted_resampled);
}

TEST(TokenTree, MergeAddsTheBestOfWhatIsMissing) {
    TokenTree tree, other;
    for (TokenTree* each : {&tree, &other}) each->reset(9);
    tree.add(tree.add(0, 1, Origin::model, 0.5), 2, Origin::model, 0.1);
    const std::int32_t same = other.add(0, 1, Origin::model, 0.5);
    const std::int32_t fresh = other.add(0, 5, Origin::model, 0.25);
    const std::int32_t rare = other.add(0, 6, Origin::model, 0.1);
    other.add(same, 3, Origin::model, 0.4);
    other.add(fresh, 2, Origin::model, 0.2);
    other.add(rare, 2, Origin::model, 0.1);
    tree.merge(other, Origin::resampled, 3);
    EXPECT_EQ(tree.token, (std::vector<std::int32_t>{9, 1, 5, 2, 3, 2}));
    EXPECT_EQ(tree.parent, (std::vector<std::int32_t>{-1, 0, 0, 1, 1, 2}));
    EXPECT_EQ(tree.origin, (std::vector<Origin>{Origin::root, Origin::model, Origin::resampled, Origin::model,
                                                Origin::resampled, Origin::resampled}));
    EXPECT_FLOAT_EQ(tree.probability[2], 0.25F);
}

TEST(Lyanna, PlansCountItsNodes) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const TensorsFolder folder(with_token_info(layer_tensors()), chain_config());
    DraftLayer layer(folder.path(), *model, find_draft_method("lyanna"));
    for (const char* tree : {"auto", "5", "4x3:12"}) {
        for (const Resample way : all_ways) {
            DraftOptions options;
            options.method = "lyanna";
            options.tree = tree;
            options.layer = &layer;
            options.resample = way;
            options.resample_tree = "6x2:8";
            EXPECT_EQ(make_drafter({options, model.get()})->max_nodes(), max_tree_nodes(options, options.shape()))
                << tree;
        }
    }
}

TEST(Lyanna, LogitsTokenInfoAndTreesAreThoseOfPyTorch) {
    for (const char* name : {"lyanna/lyanna-llama", "lyanna/lyanna-qwen2"}) {
        SCOPED_TRACE(name);
        LayerGolden golden(name, "lyanna");
        HiddenStates state = golden.first_state();
        const KvView view = golden.layer_kv.view();
        for (std::size_t level = 0; level < golden.json["logits"].size(); ++level) {
            golden.expect_logits(state, level);
            const ForwardRow next = text_row(0, golden.size() - 1 + static_cast<std::int64_t>(level));
            state = golden.layer.forward_states(std::span(&next, 1), std::span(&view, 1), std::move(state));
        }
        TokenInfo& info = *golden.layer.token_info();
        for (const Json& expected : golden.json["info"]) {
            const auto token = expected["token"].get<std::int32_t>();
            std::vector<float> got(static_cast<std::size_t>(golden.model->config().vocab_size), 0.0F);
            std::vector<float> row(info.columns().tokens().size());
            golden.device->download(row.data(), reinterpret_cast<const std::byte*>(info.rows(std::span(&token, 1))),
                                    row.size() * sizeof(float));
            for (std::size_t i = 0; i < row.size(); ++i) got[info.columns().tokens()[i]] = row[i];
            const auto added = expected["added"].get<std::vector<float>>();
            for (std::size_t v = 0; v < added.size(); ++v) EXPECT_NEAR(got[v], added[v], 1e-4) << token << ", " << v;
        }
        DraftOptions options;
        options.method = "lyanna";
        options.tree = "3x3:8";
        options.resample = Resample::separate;
        options.resample_tree = "3x2:4";
        options.layer = &golden.layer;
        const LayerGolden::Drafting drafting = golden.drafting(options);
        expect_tree(golden.propose(drafting, golden.tokens, 3), golden.json["tree"]);
        // Its first level is rejected, the bonus emitted: the two levels behind it make the small tree.
        std::vector<std::int32_t> context = golden.tokens;
        context.push_back(golden.json["resampled"]["bonus"].get<std::int32_t>());
        expect_tree(golden.propose(drafting, context, 0), golden.json["resampled"]);
    }
}

TEST(Lyanna, FoldersWithFaultsAreRefusedInOneLine) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto message = [&](std::vector<HeadTensor> tensors, const std::string& config,
                             const char* method = "lyanna") -> std::string {
        const TensorsFolder folder(tensors, config);
        try {
            DraftLayer layer(folder.path(), *model, find_draft_method(method));
        } catch (const Error& error) {
            return error.what();
        }
        return "(no error)";
    };
    const auto expect_refused = [](const std::string& message, const std::string& part) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos);
    };
    const std::vector<HeadTensor> whole = with_token_info(layer_tensors());
    EXPECT_EQ(message(whole, chain_config()), "(no error)");
    EXPECT_EQ(message(layer_tensors(), chain_config(0)), "(no error)") << "token info may be left out";
    expect_refused(message(layer_tensors(), layer_config),
                   "draft_layer: expected \"lyanna\", got nothing; give a folder that was trained for draft = lyanna");
    expect_refused(message(whole, chain_config(), "eagle"), "draft_layer: expected none, as in a layer of EAGLE, got ");
    expect_refused(message(layer_tensors(), chain_config()), "token_info.down.weight");
    expect_refused(message(whole, chain_config(0)), "token_info_rank: expected the rank of token_info.up.weight");
    expect_refused(message(whole, chain_config(5)), "token_info.down.weight: expected shape [5, 64]");
    std::vector<HeadTensor> without_norm = whole;
    without_norm.pop_back();
    expect_refused(message(without_norm, chain_config()), "token_info.norm.weight");
    for (const std::vector<std::int64_t>& hot :
         {std::vector<std::int64_t>{3, 3}, {5, 4}, {0, 96}, {-1, 4}, {0, std::int64_t{1} << 40}})
        expect_refused(message(with_token_info(layer_tensors(), hot), chain_config()),
                       "hot_tokens: expected ascending tokens below 96, each once, got ");
    std::vector<HeadTensor> no_hot_tokens = with_token_info(layer_tensors(), {1});
    no_hot_tokens.back() = {"hot_tokens", {0}, {}, {}};
    expect_refused(message(no_hot_tokens, chain_config()), "hot_tokens: expected at least one token, got none");
    std::vector<HeadTensor> fewer = with_token_info(layer_tensors(), {1, 2, 3});
    fewer.back() = {"hot_tokens", {2}, {}, {1, 2}};
    expect_refused(message(fewer, chain_config()), "token_info.up.weight: expected shape [2, 4]");
    std::vector<HeadTensor> not_integers = with_token_info(layer_tensors(), {1, 2, 3});
    not_integers.back() = {"hot_tokens", {3}, {1, 2, 3}};
    expect_refused(message(not_integers, chain_config()), "hot_tokens: expected one row of I64, got BF16");
    std::vector<HeadTensor> not_finite = whole;
    not_finite.back().values[2] = std::nanf("");
    expect_refused(message(not_finite, chain_config()), "token_info.norm.weight: expected finite weights");
}

}  // namespace
}  // namespace longhaul::engine
