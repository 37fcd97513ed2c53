// What a job needs of a device with memory of its own, and what is said where it has too little.
#include "runner/memory_plan.hpp"

#include <gtest/gtest.h>

#include "engine/error.hpp"
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

    /// So much of 16 GiB is free beside the sixteenth that is the device's own.
    void set_room(std::int64_t bytes) { device.memory = {16 * gib, gib + bytes}; }

    [[nodiscard]] std::string refusal(int ranks = 1) const {
        try {
            check_memory(settings, device, ranks);
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code(), ExitCode::error);
            return error.what();
        }
        return "";
    }

    /// What the job takes at the least.
    [[nodiscard]] std::int64_t need() const {
        const ModelParts parts = parts_of(settings);
        return weight_bytes(settings, parts, device) + workspace_bytes(settings, parts) +
               item_kv_bytes(parts, device, settings.max_tokens + 1, settings.max_tokens + 1);
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

// What it names does fit.
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

TEST_F(MemoryPlan, DraftModelsCount) {
    set_room(need());
    settings.draft = "sd";
    settings.draft_tree = "4";
    const auto draft = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft";
    settings.draft_model = {draft, draft, draft};
    EXPECT_NE(refusal(), "");
}

TEST_F(MemoryPlan, KeysAndValuesGetWhatIsLeft) {
    set_room(7 * gib);
    const std::int64_t workspace = workspace_bytes(settings, parts_of(settings));
    EXPECT_GT(workspace, 0);
    EXPECT_EQ(kv_memory_bytes(settings, device, 1), 7 * gib - workspace);
    EXPECT_EQ(kv_memory_bytes(settings, device, 2), 7 * gib / 2 - workspace);
    EXPECT_EQ(kv_memory_bytes(settings, device, 1, gib), 6 * gib - workspace);
    settings.memory = gib;
    EXPECT_EQ(kv_memory_bytes(settings, device, 1), gib);
}

TEST_F(MemoryPlan, PromptsByALibraryTakeMore) {
    const std::int64_t without = workspace_bytes(settings, parts_of(settings));
    settings.kernels = "cuda-cublas";
    EXPECT_GT(workspace_bytes(settings, parts_of(settings)), without);
}

// Of the node's memory more may be had than is free: nothing is refused.
TEST_F(MemoryPlan, ProcessorsRefuseNothing) {
    const auto cpu = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    settings.max_tokens = std::int64_t{1} << 40;
    EXPECT_NO_THROW(check_memory(settings, *cpu, 1));
}

}  // namespace
}  // namespace longhaul::runner
