// Limits of control groups and of Slurm, from files and environment variables of the test.
#include "runner/host/resource_limits.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "runner/host/placement.hpp"
#include "tests/runner/temporary_folder.hpp"
#include "tests/runner/variables.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

class AllotmentTest : public testing::Test {
  protected:
    void write(const fs::path& name, const std::string& text) {
        fs::create_directories((folder.path() / name).parent_path());
        std::ofstream(folder.path() / name) << text;
    }

    TemporaryFolder folder;
    Variables none{{"SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"}};
    LimitFiles files{.cgroups = folder.path() / "cgroup", .process = folder.path() / "self"};
};

TEST_F(AllotmentTest, NothingLimitsWhereNobodySaysSo) {
    EXPECT_FALSE(allowed_processors(files));
    EXPECT_FALSE(allowed_memory_bytes(1, files));
    write("self/cgroup", "0::/\n");
    write("cgroup/cpu.max", "max 100000\n");
    write("cgroup/memory.max", "max\n");
    write("cgroup/memory.current", "5\n");
    EXPECT_FALSE(allowed_processors(files));
    EXPECT_FALSE(allowed_memory_bytes(1, files));
}

TEST_F(AllotmentTest, TheTightestGroupAboveAProcessCounts) {
    write("self/cgroup", "0::/system.slice/job_7/step_0/task_1\n");
    write("cgroup/system.slice/cpu.max", "250000 100000\n");
    write("cgroup/system.slice/job_7/cpu.max", "800000 100000\n");
    write("cgroup/system.slice/job_7/memory.max", "1000\n");
    write("cgroup/system.slice/job_7/memory.current", "700\n");
    write("cgroup/system.slice/job_7/memory.stat", "anon 600\ninactive_file 50\n");
    write("cgroup/system.slice/job_7/step_0/memory.max", "max\n");
    write("cgroup/memory.max", "900\n");
    write("cgroup/memory.current", "100\n");
    EXPECT_EQ(allowed_processors(files), 3) << "half a processor is one";
    EXPECT_EQ(allowed_memory_bytes(1, files), 350);
    write("cgroup/system.slice/job_7/memory.current", "2000\n");
    EXPECT_EQ(allowed_memory_bytes(1, files), 0);
}

TEST_F(AllotmentTest, GroupsOfVersionOne) {
    write("self/cgroup", "9:memory:/slurm/job_7/step_0\n4:cpu,cpuacct:/slurm/job_7\n0::/user.slice\n");
    write("cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1000\n");
    write("cgroup/memory/slurm/job_7/memory.usage_in_bytes", "400\n");
    write("cgroup/memory/slurm/job_7/memory.stat", "total_inactive_file 100\n");
    write("cgroup/cpu/slurm/job_7/cpu.cfs_quota_us", "400000\n");
    write("cgroup/cpu/slurm/job_7/cpu.cfs_period_us", "100000\n");
    write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(allowed_processors(files), 4);
    EXPECT_EQ(allowed_memory_bytes(1, files), 700);
}

TEST_F(AllotmentTest, AGroupOutsideOfAContainerIsItsRoot) {
    write("self/cgroup", "0::/../../job\n");
    write("cgroup/cpu.max", "200000 100000\n");
    EXPECT_EQ(allowed_processors(files), 2);
}

TEST_F(AllotmentTest, WhatSlurmGaveCountsThoughNothingEnforcesIt) {
    write("self/status", "Name:\tx\nRssAnon:\t  1024 kB\nRssFile:\t 9999 kB\nRssShmem:\t  1024 kB\n");
    const auto set = [](const char* name, const char* value) { ::setenv(name, value, 1); };
    set("SLURM_CPUS_ON_NODE", "6");
    set("SLURM_MEM_PER_NODE", "100");
    EXPECT_FALSE(allowed_processors(files)) << "variables without a job are nobody's";
    EXPECT_FALSE(allowed_memory_bytes(1, files));
    set("SLURM_JOB_ID", "12");
    EXPECT_EQ(allowed_processors(files), 6);
    constexpr std::int64_t mebibyte = 1 << 20;
    EXPECT_EQ(allowed_memory_bytes(1, files), 98 * mebibyte);
    EXPECT_EQ(allowed_memory_bytes(4, files), 92 * mebibyte) << "four ranks hold what this one holds";
    EXPECT_EQ(allowed_memory_bytes(60, files), 0);
    set("SLURM_MEM_PER_NODE", "0");
    EXPECT_FALSE(allowed_memory_bytes(1, files)) << "0 is the whole node";
    set("SLURM_MEM_PER_CPU", "10");
    EXPECT_EQ(allowed_memory_bytes(1, files), 58 * mebibyte);
    for (const char* odd : {"", "many", "-3", "99999999999999999999", "9223372036854775807", "4G"}) {
        set("SLURM_MEM_PER_CPU", odd);
        EXPECT_FALSE(allowed_memory_bytes(1, files)) << odd;
    }
    for (const char* odd : {"", "6(x2)", "-1", "0"}) {
        set("SLURM_CPUS_ON_NODE", odd);
        EXPECT_FALSE(allowed_processors(files)) << odd;
    }
    write("cgroup/cpu.max", "200000 100000\n");
    set("SLURM_CPUS_ON_NODE", "6");
    EXPECT_EQ(allowed_processors(files), 2) << "the lower of both";
}

TEST(Tasks, OfEachNode) {
    struct Case {
        const char* text;
        int node, tasks;
    };
    for (const Case& c : {Case{"4", 0, 4},
                          {"4(x2)", 1, 4},
                          {"2(x3),1", 2, 2},
                          {"2(x3),1", 3, 1},
                          {"4,3", 1, 3},
                          {"4,3", 2, 1},
                          {"", 0, 1},
                          {"x", 0, 1},
                          {"4(x", 0, 1},
                          {"-4", 0, 1},
                          {"4(x9999999999)", 5, 4},
                          {"4(xy)", 0, 1},
                          {",4", 0, 1},
                          {"99999999", 0, 1}}) {
        EXPECT_EQ(tasks_on_node(c.text, c.node), c.tasks) << c.text << " " << c.node;
    }
}

/// The variables that launchers set, and the rank derived from them.
class LauncherTest : public testing::Test {
  protected:
    Variables none{{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK",
                    "PMI_RANK", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID",
                    "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}};
    static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(LauncherTest, ABatchScriptIsNoLauncher) {
    set("SLURM_PROCID", "0");
    set("SLURM_LOCALID", "0");
    set("SLURM_NTASKS", "8");
    set("SLURM_STEP_TASKS_PER_NODE", "4(x2)");
    EXPECT_FALSE(started_by_launcher());
    EXPECT_EQ(node_rank_from_environment().size, 1);
    for (const char* variable : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"}) {
        set(variable, "0");
        EXPECT_TRUE(started_by_launcher()) << variable;
        ::unsetenv(variable);
    }
}

TEST_F(LauncherTest, SrunTellsTheRanksOfTheNode) {
    set("PMIX_RANK", "6");
    set("SLURM_LOCALID", "2");
    set("SLURM_NODEID", "1");
    set("SLURM_STEP_TASKS_PER_NODE", "4,3");
    EXPECT_EQ(node_rank_from_environment().rank, 2);
    EXPECT_EQ(node_rank_from_environment().size, 3);
    set("SLURM_STEP_TASKS_PER_NODE", "nonsense");
    EXPECT_EQ(node_rank_from_environment().rank, 0) << "a rank that is none of its node's would get no cores";
    EXPECT_EQ(node_rank_from_environment().size, 1);
    set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
    set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    EXPECT_EQ(node_rank_from_environment().size, 2) << "mpirun in a batch script speaks for itself";
}

TEST_F(LauncherTest, ATaskWithProcessorsOfItsOwnSharesThemWithNobody) {
    const NodeRank node{.rank = 1, .size = 4};
    EXPECT_EQ(ranks_sharing(node, 16).size, 4) << "nobody says what is whose";
    set("SLURM_CPUS_ON_NODE", "16");
    EXPECT_EQ(ranks_sharing(node, 16).size, 4) << "srun without binding";
    EXPECT_EQ(ranks_sharing(node, 4).size, 1) << "bound by srun";
    set("SLURM_CPUS_ON_NODE", "4");
    EXPECT_EQ(ranks_sharing(node, 16).size, 4) << "nothing enforces the four";
    set("SLURM_CPUS_PER_TASK", "8");
    EXPECT_EQ(ranks_sharing(node, 8).size, 4) << "four times eight are not there";
    ::unsetenv("SLURM_CPUS_ON_NODE");
    EXPECT_EQ(ranks_sharing(node, 8).size, 1);
    EXPECT_EQ(ranks_sharing(node, 16).size, 4);
    set("SLURM_CPUS_PER_TASK", "4");
    set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    EXPECT_EQ(ranks_sharing(node, 4).size, 4) << "under mpirun the launcher's own set is divided";
}

}  // namespace
}  // namespace longhaul::runner
