// Medusa heads in a whole replica. Under `coupled` the text is that of plain decoding; under `recursive` it is another
// text, which does not depend on batch, split and interruptions. Also their logits against PyTorch, and folders that
// are not heads of the target.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/draft/heads.hpp"
#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Texts = std::map<std::int64_t, std::vector<std::int32_t>>;

const std::filesystem::path demo = LONGHAUL_DEMO_MODEL;
const std::filesystem::path demo_heads = demo.parent_path() / "medusa";

Job job_of(VerifyRule verify, const HeadsFolder& heads) {
    Job job{base_options()};
    job.options.draft.method = "medusa";
    job.options.draft.tree = "3,3,3";
    job.options.verify = verify;
    job.heads = heads.path();
    return job;
}

std::int64_t tiny_width() {
    return ModelConfig::load(tiny_model).hidden_size;
}

TEST(Medusa, CoupledGivesTheTextOfPlainDecoding) {
    const HeadsFolder heads(tiny_width(), 3);
    const Texts plain = plain_texts();
    for (const char* tree : {"3,3,3", "2,1", "auto"}) {
        for (const std::int64_t batch : {1, 3}) {
            Job job = job_of(VerifyRule::coupled, heads);
            job.options.draft.tree = tree;
            job.options.batch = batch;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain) << tree << ", batch " << batch;
            // `auto` gives up on random heads after a few trees.
            EXPECT_GT(result.sum.drafted, std::string(tree) == "auto" ? 0 : 200) << tree;
        }
    }
    Job split = job_of(VerifyRule::coupled, heads);
    split.ranks = 2;
    EXPECT_EQ(tokens_of(launch(split).items), plain) << "2 ranks";
}

// A tree costs one draft call at any depth: all levels come from the same hidden state.
TEST(Medusa, EveryStepDraftsButOneWithNothingBeforeTheRoot) {
    const HeadsFolder heads(tiny_width(), 3);
    Job job = job_of(VerifyRule::coupled, heads);
    job.items = 1;
    job.prompts[0] = {1};  // no token before the root: the first step has no state to draft from
    const JobResult result = launch(job);
    EXPECT_GE(result.sum.draft_calls, result.sum.target_calls - 2);  // nor does the step for the last token draft
    EXPECT_LT(result.sum.draft_calls, result.sum.target_calls);
}

TEST(Medusa, RecursiveGivesOneTextWhateverTheBatchAndTheSplit) {
    const HeadsFolder heads(tiny_width(), 3);
    Job job = job_of(VerifyRule::recursive, heads);
    job.options.batch = 1;
    const Texts alone = tokens_of(launch(job).items);
    EXPECT_NE(alone, plain_texts()) << "an independent draw";
    for (const std::int64_t batch : {2, 8}) {
        job.options.batch = batch;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << "batch " << batch;
    }
    job.ranks = 2;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "2 ranks";
}

/// Launches that each stop after 37 tokens, until all items are done.
JobResult resumed_again_and_again(Job job, bool store_kv) {
    const auto folder = std::filesystem::temp_directory_path() / ("medusa_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    job.options.checkpoint.store_kv = store_kv;
    JobResult result = launch_in_parts({job}, folder, 37);
    std::filesystem::remove_all(folder);
    return result;
}

// The hidden state is restored from the checkpoint, or recomputed with one row of the target.
TEST(Medusa, StoppedAndResumedTheTextGoesOn) {
    const HeadsFolder heads(tiny_width(), 3);
    for (const VerifyRule verify : {VerifyRule::coupled, VerifyRule::recursive}) {
        Job job = job_of(verify, heads);
        job.options.batch = 2;
        const Texts whole = tokens_of(launch(job).items);
        const JobResult stored = resumed_again_and_again(job, true);
        EXPECT_EQ(tokens_of(stored.items), whole) << verify.name();
        EXPECT_GT(stored.sum.resumes, 3);
        // If drafts decide the text, the state in the checkpoint is not trusted: the row is recomputed.
        EXPECT_EQ(stored.sum.recomputed_rows, verify == VerifyRule::coupled ? 0 : stored.sum.resumes) << verify.name();
        EXPECT_EQ(tokens_of(resumed_again_and_again(job, false).items), whole) << verify.name() << ", recomputed";
    }
}

TEST(Medusa, ShortMemoryDoesNotChangeTheText) {
    const HeadsFolder heads(tiny_width(), 3);
    Job job = job_of(VerifyRule::recursive, heads);
    const Texts whole = tokens_of(launch(job).items);
    job.options.kv_memory_bytes = std::int64_t{400} << 10;
    job.options.batch = 8;
    EXPECT_EQ(tokens_of(launch(job).items), whole);
}

// The demo's heads are right often enough to pay off: they add more than a third of a token per call.
TEST(Medusa, TheDemosHeadsGain) {
    Job job{base_options()};
    job.model = demo;
    job.options.draft.method = "ar";
    job.items = 2;
    for (std::int64_t item = 0; item < 2; ++item) job.prompts[item] = {310, 1022, 262, 700, 11};
    job.generation.sampling.penalty_window = 0;
    job.generation.sampling.repetition_penalty = 1;
    job.generation.max_tokens = 120;
    const Texts plain = tokens_of(launch(job).items);
    job.options.draft.method = "medusa";
    job.options.draft.tree = "3,3,3";
    job.heads = demo_heads;
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), plain);
    EXPECT_GT(static_cast<double>(result.sum.decode_tokens) / static_cast<double>(result.sum.target_calls), 1.33);
}

/// Expected values: PyTorch on the demo's heads in fp32 (tests/tools/make_parity_goldens.py).
void expect_logits_of_pytorch(const std::string& name) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(demo, Precision::fp32, *device, *group);
    const DraftHeads heads(demo.parent_path() / name, *model);
    std::ifstream file(LONGHAUL_TEST_DATA "/parity/demo_" + name + ".json");
    const nlohmann::json golden = nlohmann::json::parse(file);
    const auto tokens = golden["tokens"].get<std::vector<std::int32_t>>();
    PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(std::ssize(tokens)));
    std::vector<ForwardRow> rows;
    for (const std::int32_t token : tokens) rows.push_back(text_row(token, std::ssize(rows)));
    const KvView view = kv.view();
    const std::vector<std::int32_t> last{golden["position"].get<std::int32_t>()};
    const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = last},
                                {.at = Tap::At::normed_hidden, .rows = last}};
    const PassResult result = model->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = taps});
    const Norm none;
    const std::int64_t count = heads.config().num_heads, own = *heads.config().chained ? 1 : 0;
    Logits logits = model->logits(own == 1 ? chained_heads(*model, heads, result.taps[0], result.taps[1], count)
                                           : independent_heads(*model, heads, result.taps[0], count),
                                  &none);
    ASSERT_EQ(logits.num_rows(), own + 3);
    for (std::int64_t head = 0; head < 3; ++head) {
        const std::span<const float> row = logits.row(own + head);
        const auto [low, high] = std::minmax_element(row.begin(), row.end());
        const double tolerance = 1e-4 * static_cast<double>(*high - *low);
        const auto close = [&](const char* ids, const char* values, const nlohmann::json& id_list) {
            for (std::size_t i = 0; i < id_list.size(); ++i)
                EXPECT_NEAR(row[id_list[i].get<std::size_t>()], golden[values][head][i].get<double>(), tolerance)
                    << ids << " of head " << head << " of " << name;
        };
        close("ids", "logits", golden["ids"]);
        close("top_ids", "top_logits", golden["top_ids"][head]);
        EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), golden["top_ids"][head][0].get<int>());
    }
}

TEST(Heads, LogitsAreThoseOfPyTorch) {
    expect_logits_of_pytorch("medusa");
    expect_logits_of_pytorch("tokenswift");
}

// --- folders that are not heads of this target

std::string refusal(const HeadsFolder& folder) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    try {
        const DraftHeads heads(folder.path(), *model);
        return "";
    } catch (const Error& error) {
        const std::string line = error.what();
        const std::string folder_name = folder.path().string() + "/";
        return line.starts_with(folder_name) ? line.substr(folder_name.size()) : line;
    }
}

TEST(Heads, WhatDoesNotFitIsRefusedInALine) {
    const std::int64_t width = tiny_width();
    EXPECT_EQ(refusal(HeadsFolder(width, 2)), "");
    EXPECT_EQ(refusal(HeadsFolder(width, 2, {}, "{}")),
              "config.json: medusa_heads: expected the number of heads, got nothing; give a folder of heads as "
              "draft-model, or a model folder that contains heads");
    EXPECT_EQ(refusal(HeadsFolder(2 * width, 2)), "config.json: hidden_size: expected " + std::to_string(width) +
                                                      ", as the target has, got " + std::to_string(2 * width) +
                                                      "; heads belong to the model they were trained on");
    EXPECT_EQ(refusal(HeadsFolder(width, 2, {}, R"({"medusa_heads": 3})")),
              "model.safetensors: model.medusa_layers.2.linear.weight: expected a tensor of shape [" +
                  std::to_string(width) + ", " + std::to_string(width) +
                  "], got none of that name; config.json and the heads must come from the same checkpoint");
    EXPECT_EQ(refusal(HeadsFolder(width, 2, {}, R"({"medusa_heads": 1})")),
              "model.safetensors: model.medusa_layers.1.input_layernorm.weight: expected heads 0 to 0, as medusa_heads "
              "says, got head 1; config.json and the heads must come from the same checkpoint");
    EXPECT_EQ(refusal(HeadsFolder(width, 2, {}, R"({"medusa_heads": 0})")),
              "config.json: medusa_heads: expected an integer from 1 to 64, got 0");
    const auto spoil = [](const std::string& name) {
        return [=](std::vector<HeadTensor>& tensors) {
            for (HeadTensor& tensor : tensors) {
                if (tensor.name.ends_with(name)) tensor.values.back() = NAN;
            }
        };
    };
    EXPECT_EQ(refusal(HeadsFolder(width, 1, spoil("linear.weight"))),
              "model.safetensors: model.medusa_layers.0.linear.weight: expected finite weights, got NaN or infinity; "
              "download or train the heads again");
    EXPECT_EQ(refusal(HeadsFolder(width, 1, spoil("post_layernorm.weight"))),
              "model.safetensors: model.medusa_layers.0.post_layernorm.weight: expected finite weights, got NaN or "
              "infinity; download or train the heads again");
}

TEST(Medusa, TreesDeeperThanThereAreHeadsAreRefused) {
    const HeadsFolder heads(tiny_width(), 2);
    Job job = job_of(VerifyRule::coupled, heads);
    job.options.draft.tree = "2,2,2";
    EXPECT_THROW(launch(job), std::runtime_error);
    for (const char* own : {"3,3,3", "auto"}) {  // the method's default trees are cut
        job.options.draft.tree = own;
        EXPECT_EQ(tokens_of(launch(job).items), plain_texts()) << own;
    }
    const HeadsFolder chained(tiny_width(), 3, {}, R"({"medusa_heads": 3, "chained": true})");
    EXPECT_THROW(launch(job_of(VerifyRule::coupled, chained)), std::runtime_error);
}

}  // namespace
}  // namespace longhaul::engine
