// What settings mean to the engine.
#include "runner/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/error.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

engine::ModelConfig config_of(std::int64_t context) {
    engine::ModelConfig config;
    config.max_positions = context;
    config.eos_ids = {2, 7};
    return config;
}

TEST(GenerationOptions, AreTheSettingsOfAnItem) {
    Settings settings;
    settings.max_tokens = 33;
    settings.seed = 5;
    settings.temperature = 0.25;
    settings.stop = {"END"};
    settings.logprobs = 4;
    auto options = generation_options(settings, config_of(100));
    EXPECT_EQ(options->max_tokens, 33);
    EXPECT_EQ(options->seed, 5U);
    EXPECT_EQ(options->sampling.temperature, 0.25);
    EXPECT_EQ(options->stop, settings.stop);
    EXPECT_EQ(options->logprobs, 4);
    EXPECT_EQ(options->eos_ids, (std::vector<std::int32_t>{2, 7}));
    settings.ignore_eos = true;
    EXPECT_TRUE(generation_options(settings, config_of(100))->eos_ids.empty());
}

/// A machine's files, as far as memory goes.
struct MemoryGroups : testing::Test {
    TemporaryFolder temporary;

    void write(const std::string& name, const std::string& text) const {
        const std::filesystem::path path = temporary.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    [[nodiscard]] std::optional<std::int64_t> bytes() const { return group_memory_bytes(temporary.path()); }
};

TEST_F(MemoryGroups, TheTightestGroupAroundTheProcessCounts) {
    EXPECT_EQ(bytes(), std::nullopt);
    write("proc/self/cgroup", "0::/slurm/job_12/step_0\n");
    write("sys/fs/cgroup/slurm/job_12/step_0/memory.max", "max\n");
    write("sys/fs/cgroup/slurm/job_12/step_0/memory.current", "50\n");
    EXPECT_EQ(bytes(), std::nullopt);
    write("sys/fs/cgroup/slurm/job_12/memory.max", "1000\n");
    write("sys/fs/cgroup/slurm/job_12/memory.current", "300\n");
    EXPECT_EQ(bytes(), 700);
    write("sys/fs/cgroup/slurm/job_12/memory.stat", "anon 200\ninactive_file 80\n");
    EXPECT_EQ(bytes(), 780) << "file pages are given up";
    write("sys/fs/cgroup/memory.max", "600\n");  // a container's
    write("sys/fs/cgroup/memory.current", "500\n");
    EXPECT_EQ(bytes(), 100);
}

TEST_F(MemoryGroups, OfVersionOne) {
    write("proc/self/cgroup", "4:cpu,memory:/slurm/job_12\n3:freezer:/\n0::/\n");
    write("sys/fs/cgroup/memory/slurm/job_12/memory.limit_in_bytes", "1000\n");
    write("sys/fs/cgroup/memory/slurm/job_12/memory.usage_in_bytes", "2000\n");
    EXPECT_EQ(bytes(), 0);
    write("sys/fs/cgroup/memory/slurm/job_12/memory.usage_in_bytes", "400\n");
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "400\n");
    EXPECT_EQ(bytes(), 600);
}

TEST(SlurmMemory, IsWhatTheJobWasGrantedLessWhatItHolds) {
    const auto set = [](const std::map<std::string, const char*>& variables) {
        for (const char* name : {"SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"}) ::unsetenv(name);
        for (const auto& [name, value] : variables) ::setenv(name.c_str(), value, 1);
    };
    constexpr std::int64_t gibibyte = std::int64_t{1} << 30;
    for (const auto& none : std::vector<std::map<std::string, const char*>>{
             {}, {{"SLURM_MEM_PER_NODE", "0"}}, {{"SLURM_MEM_PER_NODE", "much"}}, {{"SLURM_MEM_PER_CPU", "1024"}}}) {
        set(none);
        EXPECT_EQ(slurm_memory_bytes(1), std::nullopt);
    }
    set({{"SLURM_MEM_PER_NODE", "65536"}});
    const std::int64_t one = slurm_memory_bytes(1).value_or(0);
    EXPECT_GT(one, 32 * gibibyte);
    EXPECT_LT(one, 64 * gibibyte);
    EXPECT_LT(slurm_memory_bytes(2), one) << "the other rank holds as much";
    set({{"SLURM_MEM_PER_CPU", "1024"}, {"SLURM_CPUS_ON_NODE", "4"}});
    EXPECT_LT(slurm_memory_bytes(1), 4 * gibibyte);
    EXPECT_GT(slurm_memory_bytes(1), 2 * gibibyte);
    set({{"SLURM_MEM_PER_NODE", "1"}});
    EXPECT_EQ(slurm_memory_bytes(1), 0);
    set({});
}

TEST(ReplicaOptions, WindowsFitTheModel) {
    Settings settings;
    EXPECT_FALSE(replica_options(settings, config_of(100)).scoring.has_value());
    EXPECT_EQ(most_positions(settings, config_of(100)), 100);
    settings.mode = "perplexity";
    const auto windows = replica_options(settings, config_of(100)).scoring;
    ASSERT_TRUE(windows.has_value());
    EXPECT_EQ(windows->window, 100);
    EXPECT_EQ(windows->stride, 50);
    EXPECT_GT(most_positions(settings, config_of(100)), 1'000'000'000'000) << "a document may be of any length";
    settings.window = 64;
    settings.stride = 5;
    EXPECT_EQ(replica_options(settings, config_of(100)).scoring->window, 64);
    EXPECT_EQ(replica_options(settings, config_of(100)).scoring->stride, 5);
    const auto message = [&] {
        try {
            replica_options(settings, config_of(100));
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    settings.window = 101;
    EXPECT_EQ(message(),
              "job: window: expected at most 100 tokens, got 101; the model's context is the longest window");
    settings.window = 0;
    settings.stride = 101;
    EXPECT_EQ(message(),
              "job: stride: expected at most 100 tokens, got 101; the model's context is the longest window");
}

}  // namespace
}  // namespace longhaul::runner
