// The device memory that a job needs, and the message if there is too little.
#include "runner/launch/memory_plan.hpp"

#include <gtest/gtest.h>

#include <map>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_options.hpp"
#include "engine/error.hpp"
#include "kernels/device.hpp"
#include "tests/engine/remote_device.hpp"

namespace longhaul::runner {
namespace {

using engine::testing::RemoteDevice;

struct MemoryPlan : testing::Test {
    MemoryPlan() {
        settings.task = "prompts";
        settings.model = LONGHAUL_DEMO_MODEL;
        settings.device = "cpu";
        settings.kv_precision = "bf16";
        settings.max_tokens = 2000;
        settings.draft = "ar";
    }

    static constexpr std::int64_t gib = std::int64_t{1} << 30;

    void set_room(std::int64_t bytes) { device.memory = {16 * gib, bytes}; }

    [[nodiscard]] std::string refusal(int ranks = 1) const {
        try {
            check_memory(settings, device, ranks, ranks);
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::error);
            return error.what();
        }
        return "";
    }

    /// The minimum that the job needs.
    [[nodiscard]] std::int64_t need() const {
        const ModelParts parts = parts_of(settings);
        return weight_bytes(settings, parts, device) + workspace_bytes(settings, parts) +
               reserved_bytes(settings, parts, device) +
               item_kv_bytes(parts, device, settings.max_tokens + 1, settings.max_tokens + 1);
    }

    /// The least room that the job is not refused with.
    [[nodiscard]] std::int64_t device_bytes_wanted() {
        std::int64_t refused = 0, taken = 16 * gib;
        while (taken - refused > 1) {
            const std::int64_t middle = (refused + taken) / 2;
            set_room(middle);
            (refusal().empty() ? taken : refused) = middle;
        }
        return taken;
    }

    Settings settings;
    RemoteDevice device{kernels::make_cpu_device(kernels::CpuVariant::reference, 1)};
};

TEST_F(MemoryPlan, AJobThatFitsIsNotRefused) {
    set_room(need());
    EXPECT_EQ(refusal(), "");
    set_room(need() - 1);
    EXPECT_NE(refusal(), "");
    set_room(2 * need());
    EXPECT_EQ(refusal(2), "") << "two ranks share it";
    EXPECT_NE(refusal(3), "");
}

TEST_F(MemoryPlan, SaysInALineWhatWouldFit) {
    set_room(need() - 1);
    const std::string line = refusal();
    EXPECT_EQ(line.find("memory: expected room on a rank's device for weights of 13."), 0U) << line;
    EXPECT_NE(line.find("and keys and values of 2001 tokens, "), std::string::npos) << line;
    EXPECT_NE(line.find(" on far away; what fits: "), std::string::npos) << line;
    EXPECT_NE(line.find("max-tokens = "), std::string::npos) << line;
    EXPECT_NE(line.find("kv-precision = int8"), std::string::npos) << line;
    EXPECT_NE(line.find("precision = int8"), std::string::npos) << line;
    EXPECT_NE(line.find("tensor-parallel = 2 with a device for each rank"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
    set_room(1 << 20);
    EXPECT_NE(refusal().find("; a device with more memory, or a smaller model"), std::string::npos) << refusal();
}

// Following the hint in the message makes the job fit.
TEST_F(MemoryPlan, WhatIsSaidToFitFits) {
    settings.batch = 64;
    settings.draft = "ngram";
    settings.draft_tree = "8x8:60";
    set_room(need() - 1);
    const std::string line = refusal();
    const auto number_after = [&](const std::string& key) {
        const std::size_t at = line.find(key);
        EXPECT_NE(at, std::string::npos) << line;
        return at == std::string::npos ? 1 : std::stoll(line.substr(at + key.size()));
    };
    const std::int64_t batch = number_after("batch = "), tokens = number_after("max-tokens = ");
    EXPECT_LT(batch, 64);
    EXPECT_LT(tokens, 2000);
    EXPECT_GT(tokens, 100);
    Settings asked = settings;
    settings.batch = batch;
    EXPECT_EQ(refusal(), "");
    settings = asked;
    settings.max_tokens = tokens;
    EXPECT_EQ(refusal(), "");
    settings.max_tokens = tokens + 64;
    EXPECT_NE(refusal(), "");
}

// Without the model's own layer for drafts there is room for a longer item.
TEST_F(MemoryPlan, AModelMayDraftWithoutItsLayer) {
    settings.model = LONGHAUL_TEST_DATA "/mtp/qwen3-next";
    settings.max_tokens = 64;
    settings.draft = "mtp";
    settings.draft_tree = "3";
    const std::string hint = "draft = self with draft-precision = same";
    const std::int64_t with_layer = device_bytes_wanted();
    set_room(with_layer - 1);
    EXPECT_NE(refusal().find(hint), std::string::npos) << refusal();
    settings.draft = "self";
    settings.draft_precision = "same";
    EXPECT_EQ(refusal(), "") << "following the hint";
    settings.draft = "mtp";
    set_room(with_layer);
    EXPECT_EQ(refusal(), "");
}

TEST_F(MemoryPlan, DraftModelsCount) {
    set_room(need());
    settings.draft = "sd";
    settings.draft_tree = "4";
    const auto draft = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft";
    settings.draft_model = {draft, draft, draft};
    EXPECT_NE(refusal(), "");
}

/// A checkpoint round copies the states of all items in flight.
TEST_F(MemoryPlan, RoundsOfStatesTakeMemoryOfTheHost) {
    const auto host = kernels::make_cpu_device(kernels::CpuVariant::avx2, 1);
    settings.model = LONGHAUL_TEST_DATA "/parity/qwen3.5";
    settings.batch = std::int64_t{1} << 40;
    settings.checkpoint_kv = "store";
    EXPECT_EQ(kv_memory_bytes(settings, *host, 1), 0);
    settings.checkpoint_kv = "recompute";
    EXPECT_GT(kv_memory_bytes(settings, *host, 1), 0);
    settings.batch = 1;
    settings.checkpoint_kv = "store";
    EXPECT_GT(kv_memory_bytes(settings, *host, 1), 0);
}

TEST_F(MemoryPlan, KeysAndValuesGetWhatIsLeft) {
    set_room(7 * gib);
    const ModelParts parts = parts_of(settings);
    const std::int64_t passes = workspace_bytes(settings, parts) + reserved_bytes(settings, parts, device);
    EXPECT_EQ(kv_memory_bytes(settings, device, 1), 7 * gib - passes);
    EXPECT_EQ(kv_memory_bytes(settings, device, 2), 7 * gib / 2 - passes);
    EXPECT_EQ(kv_memory_bytes(settings, device, 1, gib), 6 * gib - passes);
    settings.memory = gib;
    EXPECT_EQ(kv_memory_bytes(settings, device, 1), gib);
    EXPECT_EQ(kv_memory_within(settings, device, 7 * gib), gib);
}

// The second job of a process finds the first one's workspace allocated, which it will reuse.
TEST_F(MemoryPlan, WhatIsFreeLaterDoesNotCount) {
    const ModelParts parts = parts_of(settings);
    const std::int64_t fixed = weight_bytes(settings, parts, device) + workspace_bytes(settings, parts) +
                               reserved_bytes(settings, parts, device);
    set_room(7 * gib);
    const std::int64_t room = own_room(device, 2).value();
    EXPECT_EQ(room, 7 * gib / 2);
    set_room(gib);
    EXPECT_EQ(kv_memory_within(settings, device, room), room - fixed);
    const auto cpu = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    EXPECT_FALSE(own_room(*cpu, 1).has_value());
}

TEST_F(MemoryPlan, ACorpusTakesHostMemoryWhereItIsUsed) {
    EXPECT_EQ(corpus_bytes(settings), 0);
    settings.draft_corpus = "any";
    settings.draft = "ngram";
    EXPECT_EQ(corpus_bytes(settings), engine::max_corpus_bytes);
    settings.draft = "ar";
    EXPECT_EQ(corpus_bytes(settings), 0);
}

TEST_F(MemoryPlan, PromptsByALibraryTakeMore) {
    const std::int64_t without = workspace_bytes(settings, parts_of(settings));
    settings.kernels = "cuda-cublas";
    EXPECT_GT(workspace_bytes(settings, parts_of(settings)), without);
}

TEST_F(MemoryPlan, WhatIsReservedIsCounted) {
    const ModelParts parts = parts_of(settings);
    const std::int64_t before = reserved_bytes(settings, parts, device);
    set_room(need());
    device.operations_take = 1000;
    EXPECT_EQ(reserved_bytes(settings, parts, device), before + 1000);
    EXPECT_NE(refusal(), "");
}

TEST_F(MemoryPlan, LinearAttentionReservesMemoryOfItsOwn) {
    settings.model = LONGHAUL_TEST_DATA "/parity/qwen3.5";
    const ModelParts parts = parts_of(settings);
    const std::int64_t before = reserved_bytes(settings, parts, device);
    device.operations_take = 1000;
    EXPECT_EQ(reserved_bytes(settings, parts, device), before + 2000);
}

// The copy of the target that drafts has weights, but its keys and values are the target's.
TEST_F(MemoryPlan, ACopyOfTheTargetNeedsItsWeightsAlone) {
    settings.precision = "bf16";
    settings.draft = "ar";
    const ModelParts plain = parts_of(settings);
    settings.draft = "self";
    settings.draft_precision = "int4";
    const ModelParts parts = parts_of(settings);
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(item_kv_bytes(parts, device, 500, 500), item_kv_bytes(plain, device, 500, 500));
    const std::int64_t target = weight_bytes(settings, plain, device);
    const std::int64_t copy = weight_bytes(settings, parts, device) - target;
    Settings alone = settings;
    alone.draft = "ar";
    alone.precision = "int4";
    EXPECT_EQ(copy, weight_bytes(alone, parts_of(alone), device));
    settings.precision = "int8";
    for (const char* precision : {"same", "int8"}) {  // nothing below the model's own
        settings.draft_precision = precision;
        EXPECT_EQ(parts_of(settings).size(), 1U) << precision;
    }
}

// What a draft layer takes is what loading it allocates, and keys and values of one more layer. Replicated, every rank
// holds all of it.
TEST_F(MemoryPlan, ADraftLayerTakesWhatItsRankHolds) {
    settings.precision = "bf16";
    for (const char* method : {"eagle", "lyanna", "mtp"}) {
        settings.draft = "ar";
        settings.draft_parallel = "auto";
        settings.draft_model.clear();
        if (method == std::string("mtp")) settings.model = LONGHAUL_TEST_DATA "/mtp/glm4-moe";
        settings.tensor_parallel = 1;
        const ModelParts plain = parts_of(settings);
        settings.draft = method;
        if (!settings.draft->own_layer)
            settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / method};
        const ModelParts parts = parts_of(settings);
        ASSERT_EQ(parts.size(), 2U);
        const std::int64_t layer = weight_bytes(settings, parts, device) - weight_bytes(settings, plain, device);
        const std::int64_t per_layer = item_kv_bytes(plain, device, 512, 512) / plain.front().config.num_layers;
        EXPECT_NEAR(
            static_cast<double>(item_kv_bytes(parts, device, 512, 512) - item_kv_bytes(plain, device, 512, 512)),
            static_cast<double>(per_layer), 0.1 * static_cast<double>(per_layer));
        EXPECT_GT(workspace_bytes(settings, parts), workspace_bytes(settings, plain));

        const auto group = engine::make_local_group();
        const auto model = engine::Model::load(settings.model, engine::Precision::bf16, device, *group);
        std::int64_t allocated = 0;
        device.allocates = [&](std::size_t num_bytes) { allocated += static_cast<std::int64_t>(num_bytes); };
        const engine::DraftLayer loaded(draft_folders(settings).layer, *model, *settings.draft);
        device.allocates = {};
        // Six experts of two matrices, which move into one buffer when all are there.
        if (settings.draft->own_layer) allocated -= std::int64_t{6} * 2 * 3072;
        EXPECT_NEAR(static_cast<double>(allocated), static_cast<double>(layer), 0.02 * static_cast<double>(layer));

        settings.tensor_parallel = 2;
        settings.draft_parallel = "replicated";
        const ModelParts whole = parts_of(settings);
        EXPECT_EQ(whole.back().split.size, 1);
        EXPECT_EQ(whole.back().layouts.front().num_kv_heads, parts.back().layouts.front().num_kv_heads);
        settings.draft_parallel = "sharded";
        EXPECT_EQ(parts_of(settings).back().split.size, 2);
        EXPECT_LT(weight_bytes(settings, parts_of(settings), device), weight_bytes(settings, whole, device));
        settings.draft_parallel = "auto";
        EXPECT_EQ(parts_of(settings).back().split.size, 1) << "a small one";
    }
}

// A job that chooses between a copy and a draft model holds both.
TEST_F(MemoryPlan, AChoiceOfMethodsNeedsThePartsOfBoth) {
    settings.precision = "bf16";
    settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    settings.draft_tree = "auto";
    settings.draft_precision = "int4";
    std::map<std::string, std::int64_t> weights, kv;
    for (const char* method : {"ar", "self", "sd", "self-or-sd"}) {
        settings.draft = method;
        weights[method] = weight_bytes(settings, parts_of(settings), device);
        kv[method] = item_kv_bytes(parts_of(settings), device, 5000, 5000);
    }
    EXPECT_EQ(weights["self-or-sd"], weights["self"] + weights["sd"] - weights["ar"]);
    EXPECT_EQ(kv["self-or-sd"], kv["sd"]) << "all positions of the draft model, none of the copy";
    const std::int64_t copy = weights["self"] - weights["ar"];
    const auto cpu = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    EXPECT_TRUE(copy_fits(settings, *cpu, 0)) << "unknown";
    EXPECT_FALSE(copy_fits(settings, *cpu, copy));
    EXPECT_TRUE(copy_fits(settings, *cpu, 3 * copy));
    settings.draft_precision = "same";
    EXPECT_TRUE(copy_fits(settings, *cpu, copy)) << "no copy";
    settings.draft_precision = "int4";
    settings.draft = "self";
    EXPECT_TRUE(copy_fits(settings, *cpu, copy)) << "it has nothing else";
}

TEST_F(MemoryPlan, OperationsAreAskedAboutTheJobsPasses) {
    settings.batch = 6;
    settings.draft = "ngram";
    settings.draft_tree = "4x3:10";
    settings.precision = "bf16";
    const ModelParts parts = parts_of(settings);
    reserved_bytes(settings, parts, device);
    EXPECT_EQ(device.last_pass.logit_rows, 6 * 11);
    EXPECT_EQ(device.last_pass.rows, 6 * 11 + 256);
    EXPECT_EQ(device.last_pass.widest_quantized, 0);
    settings.precision = "int8";
    reserved_bytes(settings, parts_of(settings), device);
    EXPECT_EQ(device.last_pass.widest_quantized, 2 * parts.front().split.intermediate) << "gate and up";
}

TEST_F(MemoryPlan, LogitsThatDevicesGatherAreCounted) {
    settings.batch = 8;
    settings.tensor_parallel = 2;
    const ModelParts parts = parts_of(settings);
    const std::int64_t on_host = reserved_bytes(settings, parts, device);
    device.chooses = true;
    EXPECT_EQ(reserved_bytes(settings, parts, device), on_host + 2 * 8 * 4 * (2 * parts.front().split.vocab));
    settings.tensor_parallel = 1;
    EXPECT_EQ(reserved_bytes(settings, parts_of(settings), device), on_host) << "alone it has them whole";

    settings.tensor_parallel = 2;
    settings.draft = "sd";
    settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    settings.draft_tree = "3";
    settings.draft_parallel = "replicated";
    const std::int64_t of_target = reserved_bytes(settings, parts_of(settings), device);
    settings.draft_parallel = "sharded";
    const ModelParts sharded = parts_of(settings);
    EXPECT_EQ(reserved_bytes(settings, sharded, device) - of_target,
              2 * 8 * (1 + 3) * 4 * (2 * sharded.back().split.vocab))
        << "those of a draft model, too";
}

/// With trees that the run chooses, drafting pauses; then a draft model reads what it missed of all texts in one pass,
/// and passes of up to 64 rows are timed.
TEST_F(MemoryPlan, PausesOfDraftingAreCounted) {
    settings.draft = "sd";
    settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    const auto workspace = [&](std::int64_t batch, const char* tree) {
        settings.batch = batch;
        settings.draft_tree = tree;
        return workspace_bytes(settings, parts_of(settings));
    };
    EXPECT_LT(workspace(64, "48"), workspace(64, "auto")) << "128 tokens of each text are more than its 48 nodes";
    static_cast<void>(workspace(1, "auto"));
    reserved_bytes(settings, parts_of(settings), device);
    EXPECT_GE(device.last_pass.logit_rows, 64);
}

// A device that decides nodes by the sampling rules needs memory for the draft distributions and for work space.
TEST_F(MemoryPlan, DistributionsThatDevicesKeepAreCounted) {
    settings.batch = 3;
    settings.draft = "sd";
    settings.draft_tree = "4";
    settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    device.chooses = true;
    const ModelParts parts = parts_of(settings);
    const std::int64_t coupled = reserved_bytes(settings, parts, device);
    EXPECT_EQ(device.last_pass.decided_vocab, 0);
    settings.verify = "rejection";
    const std::int64_t vocab = parts.front().config.vocab_size;
    // A slab of 16; with the demo's vocabulary it is smaller than one granule.
    ASSERT_LT(16 * kernels::KeptDistribution::num_bytes(vocab), std::size_t{2} << 20);
    EXPECT_EQ(reserved_bytes(settings, parts, device), coupled + (std::int64_t{2} << 20));
    settings.batch = 7;
    EXPECT_EQ(device.last_pass.decided_vocab, vocab);
    const std::int64_t three_slabs = 3 * (std::int64_t{2} << 20);
    settings.verify = "coupled";
    const std::int64_t larger = reserved_bytes(settings, parts, device);
    settings.verify = "rejection";
    EXPECT_EQ(reserved_bytes(settings, parts, device), larger + three_slabs);
    EXPECT_EQ(device.last_pass.decided_vocab, vocab);
    device.chooses = false;
    EXPECT_EQ(reserved_bytes(settings, parts, device), coupled);
    EXPECT_EQ(device.last_pass.decided_vocab, 0);
}

// Logits of a scoring pass take a few megabytes at most, for any number of rows.
TEST_F(MemoryPlan, LogitsOfScoringAreBounded) {
    settings.mode = Mode::perplexity;
    ModelParts parts = parts_of(settings);
    const std::int64_t all = workspace_bytes(settings, parts);
    parts.front().config.vocab_size = 1 << 20;
    const std::int64_t rows = 256 + settings.batch, bounded_rows = 16;
    EXPECT_EQ(all - workspace_bytes(settings, parts), (rows - bounded_rows) * 4 * parts.front().split.vocab);
}

// Host memory is only for the target's KV cache.
TEST_F(MemoryPlan, HostMemoryIsNothingToDraftModels) {
    settings.draft = "sd";
    settings.draft_tree = "4";
    settings.draft_model = {std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft"};
    settings.host_memory = gib;
    const ModelParts parts = parts_of(settings);
    const std::int64_t drafts = item_kv_bytes(parts, device, 0, settings.max_tokens + 1);
    EXPECT_GT(drafts, 0);
    const std::int64_t least = weight_bytes(settings, parts, device) + workspace_bytes(settings, parts) +
                               reserved_bytes(settings, parts, device) + window_bytes(parts, device, gib) + drafts;
    set_room(least);
    EXPECT_EQ(refusal(), "");
    set_room(least - 1);
    EXPECT_NE(refusal(), "");
}

// Half of the KV cache in host memory, and the staging window it passes through on the device.
TEST_F(MemoryPlan, HostMemoryHoldsWhatTheDeviceCannot) {
    settings.max_tokens = 100'000;
    const ModelParts parts = parts_of(settings);
    const std::int64_t fixed = weight_bytes(settings, parts, device) + workspace_bytes(settings, parts) +
                               reserved_bytes(settings, parts, device);
    set_room(fixed + (need() - fixed) / 2);
    const std::string line = refusal();
    const std::size_t at = line.find("host-memory = ");
    ASSERT_NE(at, std::string::npos) << line;
    const std::int64_t mebibytes = std::stoll(line.substr(at + 14));
    EXPECT_EQ(line.substr(line.find("MiB", at)), "MiB (slow)") << line;
    try {  // divided among that many ranks, the node's memory is too small
        check_memory(settings, device, 1, 1 << 20);
        ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find("host-memory"), std::string::npos) << error.what();
    }
    settings.host_memory = mebibytes << 20;
    EXPECT_EQ(refusal(), "");
    const std::int64_t window = window_bytes(parts, device, host_bytes(settings, device));
    EXPECT_GT(window, settings.host_memory / 4) << "two of the model's eight layers";
    EXPECT_EQ(kv_memory_bytes(settings, device, 1, weight_bytes(settings, parts, device)),
              (need() - fixed) / 2 - window);
    EXPECT_NO_THROW(check_host_memory(settings, device, 1));
    settings.host_memory -= 4 << 20;
    EXPECT_NE(refusal().find(" and host-memory of "), std::string::npos) << refusal();
    device.host_memory = false;
    EXPECT_EQ(host_bytes(settings, device), 0);
    EXPECT_EQ(refusal().find("host-memory"), std::string::npos) << refusal();
}

TEST_F(MemoryPlan, HeadsThatAreTooWideForTheDeviceAreRefused) {
    set_room(2 * need());
    device.widest_head = 32;
    EXPECT_NO_THROW(check_memory(settings, device, 1, 1));
    device.widest_head = 30;
    try {
        check_memory(settings, device, 1, 1);
        FAIL() << "not refused";
    } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(),
                     "job: kv-precision: expected a type with which heads may have 32 dimensions, got 'bf16'; "
                     "with this one a GPU takes at most 30");
    }
}

TEST_F(MemoryPlan, HostMemoryThatTheNodeHasNotIsRefused) {
    settings.host_memory = std::int64_t{1} << 50;
    try {
        check_host_memory(settings, device, 4);
        FAIL() << "not refused";
    } catch (const Error& error) {
        const std::string line = error.what();
        EXPECT_EQ(line.find("host-memory: expected at most "), 0U) << line;
        EXPECT_NE(line.find(" free for 4 ranks, got 1024.0 TiB; "), std::string::npos) << line;
    }
    device.host_memory = false;
    EXPECT_NO_THROW(check_host_memory(settings, device, 4));
}

// The node may grant more memory than is free, so nothing is refused.
TEST_F(MemoryPlan, ProcessorsRefuseNothing) {
    const auto cpu = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    settings.max_tokens = std::int64_t{1} << 40;
    EXPECT_NO_THROW(check_memory(settings, *cpu, 1, 1));
}

}  // namespace
}  // namespace longhaul::runner
