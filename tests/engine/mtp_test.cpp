// A model's own layer for multi-token prediction (`draft = mtp`) in a whole replica, with the families that have one:
// its drafts change the speed, never the text of `coupled`; `recursive` gives one text. Its logits are PyTorch's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/draft/layer_drafter.hpp"
#include "engine/error.hpp"
#include "engine/model/model_plan.hpp"
#include "tests/engine/draft_layer_harness.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

/// Attention over KV heads, latent attention, and models with linear attention; with one MLP and with experts.
constexpr const char* mtp_models[] = {"glm4-moe", "deepseek-v3", "qwen3.5-images", "qwen3.5-moe", "qwen3-next"};

std::filesystem::path mtp_folder(const std::string& name) {
    return std::filesystem::path(LONGHAUL_TEST_DATA "/mtp") / name;
}

Job mtp_job(const std::string& name, VerifyRule verify = VerifyRule::coupled) {
    Job job{base_options()};
    job.model = job.layer = mtp_folder(name);
    job.options.draft.method = "mtp";
    job.options.draft.tree = "4x3:8";
    job.options.verify = verify;
    job.generation.max_tokens = 60;
    return job;
}

TEST(Mtp, LayersGiveTheLogitsOfPyTorch) {
    for (const char* name : mtp_models) {
        SCOPED_TRACE(name);
        LayerGolden(std::string("mtp/") + name, "mtp").expect_chain();
    }
}

class MtpTexts : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, MtpTexts, ::testing::ValuesIn(mtp_models), [](const auto& info) {
    std::string name = info.param;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
    return name;
});

TEST_P(MtpTexts, CoupledGivesTheTextOfPlainDecoding) {
    Job job = mtp_job(GetParam());
    const auto plain = plain_texts(job);
    for (const char* tree : {"3", "4x3:8", "auto"}) {
        job.options.draft.tree = tree;
        EXPECT_EQ(tokens_of(launch(job).items), plain) << tree;
    }
    job.options.draft.tree = "4x3:8";
    job.options.batch = 4;
    for (const auto parallel : {DraftLayer::Parallel::sharded, DraftLayer::Parallel::replicated}) {
        job.ranks = 2;
        job.layer_parallel = parallel;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain);
        EXPECT_GT(result.sum.accepted, 10);
    }
}

TEST_P(MtpTexts, CoupledGivesTheTextOfPlainDecodingWithQuantizedWeights) {
    for (const Precision precision : {Precision::int8, Precision::int4}) {
        Job job = mtp_job(GetParam());
        job.precision = precision;
        const auto plain = plain_texts(job);
        EXPECT_EQ(tokens_of(launch(job).items), plain);
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), plain) << "2 ranks";
    }
}

TEST_P(MtpTexts, CoupledGoesOnAfterInterruptions) {
    const auto folder = std::filesystem::temp_directory_path() / ("mtp_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    const Job job = mtp_job(GetParam());
    const JobResult result = launch_in_parts({job}, folder, 97);
    EXPECT_EQ(tokens_of(result.items), plain_texts(job));
    EXPECT_GT(result.sum.resumes, 1);
    // A few rows for the states of the layer; none where linear attention would have to begin again.
    EXPECT_LE(result.sum.recomputed_rows, 20 * result.sum.resumes);
    std::filesystem::remove_all(folder);
}

TEST_P(MtpTexts, RecursiveGivesOneTextWhateverTheBatchAndTheInterruptions) {
    Job job = mtp_job(GetParam(), VerifyRule::recursive);
    const auto alone = expect_one_text(job);
    EXPECT_NE(alone, plain_texts(job)) << "an independent draw";
    job.ranks = 2;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "2 ranks";
    job.layer_parallel = DraftLayer::Parallel::replicated;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "2 ranks, each with the whole layer";
}

// After a resume a few states may be missing. They are not worth all that came before.
TEST(Mtp, ASmallGapOfStatesIsFilled) {
    LayerGolden golden("mtp/glm4-moe", "mtp");
    PagePool pool(*golden.device, golden.layer.kv_layout(), std::int64_t{1} << 30);
    for (const auto& [first, one_text, kept] : {std::tuple{15, false, true}, {500, false, false}, {15, true, false}}) {
        LayerSequence sequence(pool, "kind", one_text);
        sequence.keep(0, golden.model->hidden_states(10));
        sequence.reserve(10, 0);
        sequence.commit_pending(10);
        sequence.keep(first, golden.model->hidden_states(2));
        EXPECT_EQ(sequence.first_pending(), kept ? 10 : first);
        EXPECT_EQ(sequence.num_pending(), kept ? 7 : 2);
        EXPECT_EQ(sequence.known(), first + 2);
    }
}

TEST(Mtp, ItsSizeCountsTheExpertsOfOneToken) {
    const auto config = ModelConfig::load(mtp_folder("qwen3.5-moe"));
    const auto layer = DraftLayerConfig::load(mtp_folder("qwen3.5-moe"), config, find_draft_method("mtp"));
    const std::int64_t expert = 3 * 12 * 32;  // 5 of them, 2 for each token
    EXPECT_EQ(layer.num_stored_parameters() - layer.num_parameters(), 3 * expert);
    EXPECT_GT(layer.num_parameters(), 2 * 32 * 32 + 2 * expert);
    EXPECT_LT(layer.num_stored_parameters(), num_parameters(config));
}

TEST(Mtp, FoldersWithoutSuchALayerAreRefusedInOneLine) {
    const auto message = [](const std::filesystem::path& folder) -> std::string {
        try {
            DraftLayerConfig::load(folder, ModelConfig::load(folder), find_draft_method("mtp"));
        } catch (const InputError& error) {
            return error.what();
        }
        return "(no error)";
    };
    EXPECT_EQ(message(mtp_folder("glm4-moe")), "(no error)");
    const std::filesystem::path llama = LONGHAUL_TEST_DATA "/parity/llama-default";
    EXPECT_EQ(message(llama), (llama / "config.json").string() +
                                  ": model_type: expected a model with a layer for multi-token prediction with draft = "
                                  "mtp, got \"llama\"; draft = self drafts without one");
    const std::filesystem::path without = LONGHAUL_TEST_DATA "/parity/qwen3.5";
    EXPECT_EQ(message(without),
              without.string() +
                  ": mtp.fc.weight: expected a layer for multi-token prediction with draft = mtp, got "
                  "none; draft = self drafts without one");
    EXPECT_TRUE(holds_mtp_layer(mtp_folder("qwen3-next")));
    EXPECT_FALSE(holds_mtp_layer(without));
    EXPECT_FALSE(holds_mtp_layer(llama));
    EXPECT_FALSE(holds_mtp_layer("/no/such/folder"));
}

TEST(Mtp, TensorsOfAWrongShapeAreNamed) {
    // Only eh_proj is there, and not in its shape.
    const std::filesystem::path part = LONGHAUL_TEST_DATA "/parity/glm4-moe";
    const auto faults = draft_layer_faults(part, ModelConfig::load(part), find_draft_method("mtp"));
    ASSERT_GT(faults.size(), 10U);
    EXPECT_NE(faults.front().find("model.layers.3.eh_proj.weight: expected shape [32, 64], as config.json says, "
                                  "got [32, 2]"),
              std::string::npos)
        << faults.front();
}

}  // namespace
}  // namespace longhaul::engine
