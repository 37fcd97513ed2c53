// The engine on devices whose memory the host cannot access (device_cases.hpp, remote_device.hpp): the text is the same
// as on every other device.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "engine/draft/draft_sampler.hpp"
#include "tests/engine/device_cases.hpp"
#include "tests/engine/fabric.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/model_harness.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
namespace fs = std::filesystem;

const fs::path parity = LONGHAUL_TEST_DATA "/parity";

std::vector<DeviceCase> cases() {
    std::vector<DeviceCase> all = gpu_cases();
    all.push_back({"remote", [] { return make_remote(); }, true, 4, 40});
    return all;
}

class OtherDevice : public ::testing::TestWithParam<DeviceCase> {
  protected:
    OtherDevice() : folder_(fs::temp_directory_path() / ("longhaul-other-device-" + std::to_string(::getpid()))) {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    ~OtherDevice() override { fs::remove_all(folder_); }
    void SetUp() override {
        if (GetParam().make() == nullptr) GTEST_SKIP() << "needs an NVIDIA GPU";
    }

    [[nodiscard]] static Job job() {
        Job job{base_options()};
        job.items = GetParam().items;
        job.generation.max_tokens = GetParam().tokens;
        job.options.batch = 3;
        job.make_device = GetParam().make;
        return job;
    }
    /// Autoregressive decoding with batch 1: the reference for all other configurations.
    [[nodiscard]] static std::map<std::int64_t, std::vector<std::int32_t>> expected() {
        Job plain = job();
        plain.options.draft.method = "ar";
        plain.options.batch = 1;
        if (GetParam().as_cpu) plain.make_device = {};
        return tokens_of(launch(plain).items);
    }
    [[nodiscard]] static engine::testing::Run logits(const char* model, Precision precision, const DeviceMaker& make,
                                                     int ranks, std::int64_t chunk, const fs::path& packed = {}) {
        // Beyond a sliding window, if there is one.
        const auto size = static_cast<std::int32_t>(23 + ModelConfig::load(parity / model).layer(0).attention_window);
        std::vector<std::int32_t> tokens;
        for (std::int32_t i = 0; i < size; ++i) tokens.push_back(1 + i * i % 60);
        return run_model(parity / model, precision, make, tokens, {0, 3, size - 2, size - 1}, ranks, chunk, {}, packed);
    }

    fs::path folder_;
};

/// Relative L2 distance: |values - right| / |right|.
double distance(const std::vector<float>& values, const std::vector<float>& right) {
    double difference = 0, length = 0;
    for (std::size_t i = 0; i < right.size(); ++i) {
        difference += std::pow(static_cast<double>(values[i]) - static_cast<double>(right[i]), 2);
        length += std::pow(static_cast<double>(right[i]), 2);
    }
    return std::sqrt(difference / length);
}

TEST_P(OtherDevice, LogitsAreTheSameInEveryChunkAndSplit) {
    const DeviceMaker cpu = [] { return kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1); };
    // A model for each kernel that not all have: what else families differ in, families_test.cpp compares.
    constexpr const char* models[] = {"llama-default-bf16",
                                      "qwen2",               // biases
                                      "opt-post-norm-bf16",  // LayerNorm, ReLU, learned positions
                                      "gemma3-bf16",         // windows, norms of heads, GELU as a gate
                                      "phi3-bf16",           // a rotation of a part of each head
                                      "qwen3-moe",           // experts
                                      "gpt-oss",             // sinks, biases of experts
                                      "ministral3",          // queries that grow
                                      "deepseek-v3",         // latent attention
                                      "olmo3",               // a norm of all heads together
                                      "gemma4-e2b-bf16",     // embeddings per layer, shared keys, a soft cap of logits
                                      "qwen3.5",             // linear attention, gated attention
                                      "granite4-h",          // Mamba-2
                                      "nemotron3-latent-modern",  // squared ReLU, norms of groups of heads
                                      "gpt-neox",                 // exact GELU
                                      "gemma2"};                  // a soft cap of scores
    const auto expect_same = [&](const char* model, Precision precision) {
        SCOPED_TRACE(std::string(model) + " " + std::to_string(static_cast<int>(precision)));
        const DeviceMaker& judge = GetParam().as_cpu ? cpu : GetParam().make;
        const std::vector<float> right = logits(model, precision, judge, 1, 64).logits();
        EXPECT_LT(distance(right, logits(model, precision, cpu, 1, 64).logits()), 0.01) << "bf16 keeps 8 bits";
        EXPECT_EQ(logits(model, precision, GetParam().make, 1, 3).logits(), right);
        const auto ranks = logits(model, precision, GetParam().make, 2, 64).all_ranks;
        for (const std::vector<float>& rank : ranks) EXPECT_EQ(rank, GetParam().any_split ? right : ranks.front());
    };
    for (const char* model : models) expect_same(model, Precision::bf16);
    if (!GetParam().any_split) return;  // the other precisions use no library
    // Their kernels know no model: rows of one of each kind, and those of experts.
    for (const char* model : {"llama-default-bf16", "qwen3-moe"}) {
        for (const Precision precision : {Precision::fp32, Precision::int8, Precision::int4})
            expect_same(model, precision);
    }
}

// Hidden states stay on the device: the head reads them there, and a pass takes rows from them.
TEST_P(OtherDevice, HiddenStatesGoFromPassToPass) {
    std::vector<ForwardRow> rows;
    std::vector<std::int32_t> all;
    for (std::int32_t p = 0; p < 9; ++p) {
        rows.push_back(engine::testing::wanted(engine::text_row(1 + p * p % 60, p)));
        all.push_back(p);
    }
    const std::vector<engine::Tap> taps{{.at = engine::Tap::At::layer_input, .layer = 0, .rows = all},
                                        {.at = engine::Tap::At::last_hidden, .rows = all}};
    const auto action = [&](Model& model, int) {
        KvPool pool(model.device(), model.kv_layouts(), engine::testing::plenty);
        KvSequence kv(pool);
        ASSERT_TRUE(kv.reserve(9));
        const KvView view = kv.view();
        PassResult result = model.forward({.rows = rows, .sequences = std::span(&view, 1), .taps = taps});
        const auto all_of = [](Logits logits) { return std::vector<float>(logits.all().begin(), logits.all().end()); };
        const std::vector<float> right = all_of(std::move(result.logits));
        EXPECT_EQ(all_of(model.logits(result.taps[1])), right);
        std::vector<ForwardRow> entered = rows;
        for (std::int32_t r = 0; r < 9; r += 2) entered[static_cast<std::size_t>(r)].state = r;
        EXPECT_EQ(engine::testing::logits_of(model, entered, kv, &result.taps[0]), right);
    };
    for (const int ranks : {1, 2}) {
        engine::testing::on_each_rank(parity / "llama-default-bf16", Precision::bf16, GetParam().make, ranks, action);
    }
}

TEST_P(OtherDevice, PackedWeightsAreWrittenAndTakenBack) {
    const auto run = [&](const fs::path& packed) {
        return logits("llama-default-bf16", Precision::bf16, GetParam().make, 2, 64, packed);
    };
    const engine::testing::Run plain = run({}), written = run(folder_), mapped = run(folder_);
    EXPECT_TRUE(written.loaded.front().starts_with("packed into"));
    EXPECT_TRUE(mapped.loaded.front().starts_with("mapped from"));
    EXPECT_EQ(plain.all_ranks, written.all_ranks);
    EXPECT_EQ(plain.all_ranks, mapped.all_ranks);
}

TEST_P(OtherDevice, OneTextForEveryBatchDraftAndSplit) {
    const auto right = expected();
    ASSERT_EQ(right.begin()->second.size(), static_cast<std::size_t>(GetParam().tokens));
    for (const std::int64_t batch : {1, 3}) {
        for (const int ranks : {1, 2}) {
            if (ranks > 1 && !GetParam().any_split) continue;
            Job drafted = job();
            drafted.options.batch = batch;
            drafted.ranks = ranks;
            EXPECT_EQ(tokens_of(launch(drafted).items), right) << "batch " << batch << ", ranks " << ranks;
        }
    }
}

TEST_P(OtherDevice, DraftModelsGiveTheTextOfPlainDecoding) {
    const auto right = expected();
    for (const bool sharded : {false, true}) {
        if (sharded && !GetParam().any_split) continue;
        Job drafted = job();
        drafted.options.draft.method = "rsd-s";
        drafted.options.draft.tree = "3x3";
        drafted.options.verify = "coupled";
        drafted.draft_models = {parity / "llama-yarn-bf16"};
        drafted.ranks = GetParam().any_split ? 2 : 1;
        drafted.draft_sharded = sharded;
        const JobResult result = launch(drafted);
        EXPECT_EQ(tokens_of(result.items), right) << "sharded " << sharded;
        EXPECT_GT(result.sum.drafted, 0);
    }
}

// States are changed by accepted drafts, those of the drafting model too.
TEST_P(OtherDevice, DraftsOverLinearAttentionGiveTheTextOfPlainDecoding) {
    Job drafted = job();
    drafted.model = parity / "qwen3.5";
    drafted.items = 3;
    drafted.generation.max_tokens = 16;
    Job plain = drafted;
    plain.options.draft.method = "ar";
    if (GetParam().as_cpu) plain.make_device = {};
    const auto right = tokens_of(launch(plain).items);
    drafted.options.draft.method = "rsd-s";
    drafted.options.draft.tree = "2x3";
    drafted.options.verify = "coupled";
    drafted.draft_models = {drafted.model};
    const JobResult result = launch(drafted);
    EXPECT_EQ(tokens_of(result.items), right);
    EXPECT_GT(result.sum.drafted, 0);
    std::int64_t num_tokens = 0;
    for (const auto& [index, tokens] : right) num_tokens += std::ssize(tokens);
    EXPECT_LT(result.sum.target_calls, num_tokens) << "some drafts are accepted";
}

TEST_P(OtherDevice, StoppedAndResumedTheTextGoesOn) {
    Job two_ranks = job();
    two_ranks.ranks = GetParam().any_split ? 2 : 1;
    const JobResult result = launch_in_parts({two_ranks, job()}, folder_, GetParam().tokens);
    EXPECT_EQ(tokens_of(result.items), expected());
    EXPECT_EQ(result.outcome.checkpoint_error, "");
    EXPECT_GT(result.sum.resumes, 0);
    EXPECT_EQ(result.sum.recomputed_rows, 0);
}

// `allow-device-change`: each device continues from the KV that the other computed.
TEST_P(OtherDevice, GoesOnFromAProcessorAndBack) {
    Job on_processor = job();
    on_processor.make_device = {};
    const auto processors = tokens_of(launch(on_processor).items);
    const auto tokens = static_cast<std::size_t>(GetParam().tokens);
    const JobResult result = launch_in_parts({on_processor, job()}, folder_, GetParam().tokens * GetParam().items / 4);
    EXPECT_EQ(result.outcome.checkpoint_error, "");
    EXPECT_GT(result.sum.resumes, 1) << "there and back";
    EXPECT_EQ(result.sum.recomputed_rows, 0);
    ASSERT_EQ(result.items.size(), processors.size());
    for (const auto& [index, item] : result.items) EXPECT_EQ(item.tokens.size(), tokens);
    EXPECT_TRUE(tokens_of(result.items) == processors || !GetParam().as_cpu);
}

/// Devices that compute prompts and decoded tokens with different arithmetic.
class TwoArithmetics : public OtherDevice {};

// The position alone decides which arithmetic is used, even if the KV of prompt and output is recomputed in one go or
// in different chunks.
TEST_P(TwoArithmetics, WhatIsComputedAgainIsTheSame) {
    const auto right = expected();
    Job job = this->job();
    job.options.prefill_chunk = 7;
    job.options.checkpoint.folder = folder_;
    job.options.checkpoint.store_kv = false;
    job.options.checkpoint.every_tokens = 8;
    job.options.checkpoint.epoch = 1;
    job.stop_after = GetParam().tokens * 3 / 2;  // the first item's text, and half of the second's
    const JobResult begun = launch(job);
    job.options.prefill_chunk = 40;
    job.options.checkpoint.epoch = 2;
    job.stop_after = -1;
    JobResult ended = launch(job, begun.items);
    EXPECT_GT(ended.sum.recomputed_rows, 0);
    ended.items.insert(begun.items.begin(), begun.items.end());
    EXPECT_EQ(tokens_of(ended.items), right);
}

TEST_P(TwoArithmetics, ScoresAreTheSameHoweverPassesFall) {
    const auto losses = [](std::int64_t batch, std::int64_t chunk) {
        Job scored = job();
        scored.items = 2;
        for (std::int64_t i = 0; i < 2; ++i) scored.continuations[i] = prompt_of(1 + i);
        scored.options.scoring = ScoringWindows{.window = 40, .stride = 20};
        scored.options.batch = batch;
        scored.options.prefill_chunk = chunk;
        std::vector<double> all;
        for (const auto& [index, item] : launch(scored).items) {
            for (const auto& bucket : item.statistics.loss.buckets) all.push_back(bucket.nll);
        }
        return all;
    };
    const std::vector<double> alone = losses(1, 7);
    EXPECT_FALSE(alone.empty());
    EXPECT_EQ(losses(2, 64), alone);
}

static std::vector<DeviceCase> cases_of_two_arithmetics() {
    std::vector<DeviceCase> all = cases();
    std::erase_if(all, [](const DeviceCase& device) { return device.any_split; });
    return all;
}

/// Counts the downloads of at least one row of logits, over all devices that `make` made.
struct Counted {
    explicit Counted(DeviceMaker made_by) : inner(std::move(made_by)) {}

    std::unique_ptr<RemoteDevice> make() {
        std::unique_ptr<kernels::Device> device = inner();
        std::unique_ptr<RemoteDevice> remote;
        if (auto* already = dynamic_cast<RemoteDevice*>(device.get())) {
            static_cast<void>(device.release());
            remote.reset(already);
        } else {
            remote = std::make_unique<RemoteDevice>(std::move(device));
        }
        can_choose = remote->token_chooser() != nullptr;
        remote->allocates = [this](std::size_t num_bytes) { kept += num_bytes == kept_bytes ? 1 : 0; };
        remote->downloads = [this](std::size_t num_bytes) { rows += num_bytes >= row_bytes ? 1 : 0; };
        return remote;
    }

    DeviceMaker inner;
    std::atomic<std::int64_t> rows{0};
    std::atomic<std::int64_t> kept{0};  ///< slabs for distributions
    std::atomic<bool> can_choose{false};
    static constexpr std::size_t row_bytes = 96 * sizeof(float);  ///< of the tiny model
    static constexpr std::size_t kept_bytes = kept_per_slab * kernels::KeptDistribution::num_bytes(96);
};

/// Items with all kinds of sampling parameters.
Job with_all_settings(Job job) {
    job.items = 5;
    job.generation.max_tokens = 3;
    job.options.batch = 5;
    for (std::int32_t item = 0; item < 5; ++item) job.prompts[item] = {item, 5, 7, 5, 7, item};
    GenerationOptions options = job.generation;
    const auto set = [&](std::int64_t item, const SamplingParams& sampling) {
        options.sampling = sampling;
        job.own[item] = options;
    };
    set(0, {.temperature = 0});
    set(1, {.temperature = 0.9, .top_p = 0.9});
    set(2, {.temperature = 1.2, .top_k = 12, .top_p = 0.95, .eta = 1e-2, .repetition_penalty = 1.2});
    set(3, {.temperature = 1.0, .eta = 1e-2});
    set(4, {.temperature = 1.0});
    return job;
}

TEST_P(OtherDevice, ChoosesTokensWhereTheLogitsAre) {
    Job plain = with_all_settings(job());
    if (GetParam().as_cpu) plain.make_device = {};
    plain.options.draft.method = "ar";
    const auto right = tokens_of(launch(plain).items);

    Counted device(GetParam().make);
    Job drafted = with_all_settings(job());
    drafted.make_device = [&] { return device.make(); };
    EXPECT_EQ(tokens_of(launch(drafted).items), right);
    if (device.can_choose) {
        EXPECT_EQ(device.rows, 0);
    } else {
        EXPECT_GT(device.rows, 0);
    }

    // Log-probabilities need the rows of the emitted tokens, and no others.
    if (!GetParam().as_cpu) return;  // these use the exact device's kernels for this
    device.rows = 0;
    for (auto& [item, options] : drafted.own) options.logprobs = 2;
    const JobResult with_logprobs = launch(drafted);
    EXPECT_EQ(tokens_of(with_logprobs.items), right);
    if (device.can_choose) {
        EXPECT_EQ(device.rows, with_logprobs.sum.decode_tokens);
    }
}

// A device cannot choose with DRY, biases, formats or ends that have no chance yet: the host does, of trees and drafts
// of such items, and the others stay on the device.
TEST_P(OtherDevice, LeavesDryBiasesAndFormatsToTheHost) {
    if (!GetParam().as_cpu) return;  // the texts are compared with the CPU's
    for (const auto& [method, tree, rule] :
         {std::tuple{"ngram", "3x2", "coupled"}, {"rsd-s", "3x2", "coupled"}, {"rsd-s", "3x2", "recursive"}}) {
        Job job = with_all_settings(this->job());
        job.options.draft.method = method;
        job.options.draft.tree = tree;
        job.options.verify = rule;
        if (method != std::string("ngram")) job.draft_models = {parity / "llama-yarn-bf16"};
        for (const std::int64_t item : {1, 4}) {
            job.own[item].sampling.repetition_penalty = 0.2;
            job.own[item].sampling.dry = {.multiplier = 9, .allowed_length = 1};
            job.own[item].dry_breakers = {"<3"};
        }
        job.own[0].format = {OutputFormat::Kind::regex, {"(<[0-9]*[13579]>)*"}};
        job.own[2].logit_bias = {{7, 4}, {9, -100}};
        for (std::int32_t token = 0; token < 90; ++token) job.own[3].eos_ids.push_back(token);
        job.own[3].sampling.min_tokens = 2;
        Job plain = job;
        plain.make_device = {};
        const JobResult right = launch(plain);
        Counted device(GetParam().make);
        job.make_device = [&] { return device.make(); };
        const JobResult decided = launch(job);
        EXPECT_EQ(tokens_of(decided.items), tokens_of(right.items)) << method << ", " << rule;
        EXPECT_EQ(decided.sum.accepted, right.sum.accepted) << method << ", " << rule;
        EXPECT_GT(device.rows, 0);
        for (auto& [item, options] : plain.own) options.sampling.dry = {};
        EXPECT_NE(tokens_of(launch(plain).items), tokens_of(right.items)) << "DRY changes nothing";
    }
}

// Up to the limit of its reasoning an item stays on the device, also where the tree reaches beyond it or the end came
// by itself; the host writes the end, and the device goes on behind it.
TEST_P(OtherDevice, LeavesTheLimitOfReasoningToTheHost) {
    if (!GetParam().as_cpu) return;  // the texts are compared with the CPU's
    for (const auto& [method, rule] : {std::pair{"ngram", "coupled"}, {"rsd-s", "coupled"}, {"rsd-s", "recursive"}}) {
        Job job = with_all_settings(this->job());
        job.options.draft.method = method;
        job.options.draft.tree = "3x2";
        job.options.verify = rule;
        if (method != std::string("ngram")) job.draft_models = {parity / "llama-yarn-bf16"};
        for (auto& [item, options] : job.own) {
            options.max_tokens = 24;
            options.reasoning = {.end = "<2><7>", .max_tokens = 6 + item};
        }
        Job plain = job;
        plain.make_device = {};
        const JobResult right = launch(plain);
        Counted device(GetParam().make);
        job.make_device = [&] { return device.make(); };
        const JobResult chosen = launch(job);
        EXPECT_EQ(tokens_of(chosen.items), tokens_of(right.items)) << method << ", " << rule;
        for (const auto& [index, item] : chosen.items) {
            EXPECT_EQ(item.tokens[6 + index], 2) << method << ", " << rule;
            EXPECT_EQ(item.tokens[7 + index], 7) << method << ", " << rule;
        }
        EXPECT_GT(device.rows, 0);
        if (device.can_choose && rule == std::string("coupled")) {
            EXPECT_LT(device.rows, chosen.sum.decode_tokens / 2) << method;
        }
    }
}

/// The part that `job`'s method drafts with: nothing, `heads`, a layer, or another tiny model.
void give_part(Job& job, const HeadsFolder& heads) {
    if (job.options.draft.method->part == DraftPart::heads) job.heads = heads.path();
    if (job.options.draft.method->part == DraftPart::layer)
        job.layer = LONGHAUL_TEST_DATA + std::string(job.options.draft.method->chains_states ? "/lyanna/lyanna-llama"
                                                                                             : "/eagle/eagle1-llama");
    if (job.options.draft.method->part == DraftPart::language_model) job.draft_models = {parity / "llama-yarn-bf16"};
}

HeadsFolder heads_of_tiny_model() {
    return {ModelConfig::load(tiny_model).hidden_size, 3};
}

/// Drafts on a device with the CPU's bits are those of the CPU; on any device the text is that of plain decoding there.
/// No row of logits is downloaded if the device can choose.
void expect_same_drafts(Job job, const DeviceCase& other) {
    Job plain = job;
    if (other.as_cpu) {
        plain.make_device = {};
    } else {
        plain.options.draft.method = "ar";
    }
    const JobResult right = launch(plain);
    Counted device(other.make);
    job.make_device = [&] { return device.make(); };
    const JobResult drawn = launch(job);
    EXPECT_EQ(tokens_of(drawn.items), tokens_of(right.items));
    if (other.as_cpu) {
        EXPECT_EQ(drawn.sum.drafted, right.sum.drafted);
        EXPECT_EQ(drawn.sum.accepted, right.sum.accepted);
    }
    EXPECT_GT(drawn.sum.drafted, 0);
    EXPECT_EQ(device.rows == 0, device.can_choose);
}

// Draft models and heads too: tree nodes and their probabilities are downloaded, not the rows they were drawn from.
TEST_P(OtherDevice, DrawsDraftsWhereTheLogitsAre) {
    if (!GetParam().any_split) return;  // other products for prompts alone
    const HeadsFolder heads = heads_of_tiny_model();
    for (const auto& [method, tree] : {std::pair{"sd", "3"},
                                       {"rsd-c", "2,2,1"},
                                       {"rsd-s", "3x2"},
                                       {"spectr", "3x2"},
                                       {"medusa", "2,2,1"},
                                       {"eagle", "3x2:4"},
                                       {"lyanna", "3x3:4"},
                                       {"triforce", "4"}}) {
        SCOPED_TRACE(method);
        Job job = with_all_settings(this->job());
        job.options.draft.method = method;
        job.options.draft.tree = tree;
        job.options.verify = "coupled";
        give_part(job, heads);
        expect_same_drafts(job, GetParam());
    }
}

// The logits of a draft's own vocabulary (EAGLE-3) are widened to the target's where they are.
TEST_P(OtherDevice, DrawsDraftsOfAnOwnVocabulary) {
    if (!GetParam().any_split) return;  // other products for prompts alone
    Job job = this->job();
    job.model = parity / "llama-8-layers";
    job.options.draft.method = "eagle";
    job.options.draft.tree = "4x2:8";
    job.options.verify = "coupled";
    job.layer = LONGHAUL_TEST_DATA "/eagle/speculators-llama";  // has norms of states and taps, too
    expect_same_drafts(job, GetParam());
}

TEST_P(OtherDevice, DrawsDraftsOfTheModelsOwnLayer) {
    if (!GetParam().any_split) return;  // other products for prompts alone
    Job job = this->job();
    job.model = job.layer = LONGHAUL_TEST_DATA "/mtp/qwen3.5-images";
    job.options.draft.method = "mtp";
    job.options.draft.tree = "4x2:8";
    job.options.verify = "coupled";
    expect_same_drafts(job, GetParam());
}

// The sampling rules: neither draft nor target distributions are downloaded, and the text equals the CPU's.
TEST_P(OtherDevice, DecidesNodesWhereTheLogitsAre) {
    if (!GetParam().as_cpu) return;  // these use the exact device's kernels for this
    const HeadsFolder heads = heads_of_tiny_model();
    struct Case {
        const char *method, *tree, *rule;
    };
    for (const Case& wanted : {Case{"sd", "3", "rejection"},
                               {"sd", "2", "recursive"},
                               {"rsd-c", "2,2", "recursive"},
                               {"rsd-s", "3x2", "recursive"},
                               {"spectr", "3x2", "multi-round"},
                               {"ngram", "", "recursive"},
                               {"medusa", "2,2", "recursive"},
                               {"eagle", "3x2:4", "recursive"},
                               {"lyanna", "3x3:4", "recursive"},
                               {"triforce", "4", "recursive"},
                               {"spectr", "3x2", "k-seq"}}) {
        SCOPED_TRACE(std::string(wanted.method) + " " + wanted.rule);
        Job job = with_all_settings(this->job());
        job.options.draft.method = wanted.method;
        job.options.draft.tree = wanted.tree;
        job.options.verify = wanted.rule;
        give_part(job, heads);
        Job plain = job;
        if (GetParam().as_cpu) plain.make_device = {};
        const JobResult right = launch(plain);
        Counted device(GetParam().make);
        job.make_device = [&] { return device.make(); };
        const JobResult decided = launch(job);
        EXPECT_EQ(tokens_of(decided.items), tokens_of(right.items));
        EXPECT_EQ(decided.sum.drafted, right.sum.drafted);
        EXPECT_EQ(decided.sum.accepted, right.sum.accepted);
        EXPECT_EQ(device.rows == 0, device.can_choose);
        // Slots for the distributions of one tree per item are reused.
        EXPECT_LE(device.kept, 3) << "of 16, for 5 trees of 7 nodes";
    }
}

// More drafts at a node than a device tries: the host decides, from the draft distributions that the device kept. The
// low temperature gives unlikely tokens probabilities that carry no information.
TEST_P(OtherDevice, FetchesWhatTheHostMustDecideBy) {
    if (!GetParam().as_cpu) return;  // as above
    Job job = with_all_settings(this->job());
    for (auto& [item, options] : job.own) {
        options.sampling = {.temperature = item < 4 ? 1.0 : 2e-5};
        options.max_tokens = 12;
    }
    job.draft_models = {parity / "llama-yarn-bf16"};
    for (const auto& [method, tree, rule] :
         {std::tuple{"spectr", "65x1", "k-seq"}, {"spectr", "65x1", "multi-round"}, {"rsd-c", "3,2", "recursive"}}) {
        job.options.draft.method = method;
        job.options.draft.tree = tree;
        job.options.verify = rule;
        Job plain = job;
        if (GetParam().as_cpu) plain.make_device = {};
        const JobResult right = launch(plain);
        Counted device(GetParam().make);
        Job remote = job;
        remote.make_device = [&] { return device.make(); };
        const JobResult decided = launch(remote);
        EXPECT_EQ(tokens_of(decided.items), tokens_of(right.items));
        EXPECT_EQ(decided.sum.accepted, right.sum.accepted);
        EXPECT_GT(device.rows, 0);
    }
}

// Rows that the device leaves to the host are downloaded, and the text is the same.
TEST_P(OtherDevice, LeavesToTheHostWhatItDoesNotKnow) {
    Job plain = with_all_settings(job());
    plain.items = 1;
    plain.own[0].sampling = {.temperature = 1.0, .eta = 1e-2, .min_keep = 3};
    Job drafted = plain;
    if (GetParam().as_cpu) plain.make_device = {};
    plain.options.draft.method = "ar";
    Counted device(GetParam().make);
    drafted.make_device = [&] { return device.make(); };
    EXPECT_EQ(tokens_of(launch(drafted).items), tokens_of(launch(plain).items));
    EXPECT_GT(device.rows, 0);
}

// Two connected devices: the parts of the vocabulary are gathered on the devices.
TEST_P(OtherDevice, ChoosesTokensOfAllRanksPartsOverLinks) {
    if (!GetParam().as_cpu) return;  // as above
    Job plain = with_all_settings(job());
    plain.make_device = {};
    const auto right = tokens_of(launch(plain).items);

    Fabric fabric{.addresses = {"a/0", "a/1"}};
    Counted device(GetParam().make);
    std::atomic<std::size_t> made{0};
    std::vector<std::unique_ptr<FabricLinks>> links(2);
    Job split = with_all_settings(job());
    split.ranks = 2;
    split.make_device = [&] {
        const std::size_t number = made++;
        auto remote = device.make();
        links[number] = std::make_unique<FabricLinks>(fabric, *remote, fabric.addresses[number]);
        remote->device_links = links[number].get();
        return remote;
    };
    EXPECT_EQ(tokens_of(launch(split).items), right);
    EXPECT_GT(fabric.sums, 0);
    EXPECT_EQ(fabric.gathers > 0, device.can_choose);
}

INSTANTIATE_TEST_SUITE_P(Devices, OtherDevice, ::testing::ValuesIn(cases()),
                         [](const auto& of) { return of.param.name; });
INSTANTIATE_TEST_SUITE_P(Devices, TwoArithmetics, ::testing::ValuesIn(cases_of_two_arithmetics()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace longhaul::engine
