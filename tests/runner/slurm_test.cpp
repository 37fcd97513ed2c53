// Slurm's answers, from a fake squeue on PATH: valid ones and unexpected ones.
#include "runner/run/slurm.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "runner/run/lease.hpp"
#include "tests/runner/temporary_folder.hpp"
#include "tests/runner/variables.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

class SlurmTest : public testing::Test {
  protected:
    void SetUp() override {
        const char* path = std::getenv("PATH");
        path_ = path == nullptr ? "" : path;
    }
    void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

    /// Puts a squeue with this shell script first on PATH.
    void squeue_is(const std::string& script) {
        const fs::path program = folder.path() / "squeue";
        std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
        fs::permissions(program, fs::perms::owner_all);
        ::setenv("PATH", (folder.path().string() + ":" + path_).c_str(), 1);
    }

    void submitted(const std::string& text) {
        fs::create_directories(folder.path() / "slurm");
        std::ofstream(folder.path() / "slurm" / "job-id") << text;
    }

    TemporaryFolder folder;
    Variables none{
        {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME"}};

  private:
    std::string path_;
};

TEST_F(SlurmTest, LinesBecomeEntries) {
    squeue_is(R"(printf '%s\n' "$@" > "$(dirname "$0")/arguments"
echo '1234_5    |RUNNING   |1:02:03   |2   |None      |'
echo '1234_[6-9%2]|PENDING |1-00:00:00|0   |JobArrayTaskLimit|')");
    const std::vector<QueueEntry> queue = ask_squeue({.id = "1234", .cluster = "north"});
    ASSERT_EQ(queue.size(), 2U);
    EXPECT_EQ(queue[0].job, "1234_5");
    EXPECT_EQ(describe(queue[0]), "running, 1:02:03 left, attempt 3");
    EXPECT_EQ(describe(queue[1]), "pending: as many tasks of the array run as may at a time (JobArrayTaskLimit)");
    std::ifstream arguments(folder.path() / "arguments");
    std::set<std::string> lines;
    for (std::string line; std::getline(arguments, line);) lines.insert(line);
    EXPECT_TRUE(lines.contains("--jobs=1234"));
    EXPECT_TRUE(lines.contains("--clusters=north"));
}

TEST_F(SlurmTest, UnknownWordsAreShownAsTheyAre) {
    EXPECT_EQ(describe({.job = "1", .state = "LEVITATING", .reason = "MoonPhase", .time_left = "1:00"}),
              "LEVITATING: MoonPhase");
    EXPECT_EQ(describe({.job = "1", .state = "PENDING", .reason = "MoonPhase", .time_left = ""}), "pending: MoonPhase");
    EXPECT_EQ(
        describe(
            {.job = "1", .state = "PENDING", .reason = "ReqNodeNotAvail, UnavailableNodes:n[1-2]", .time_left = ""}),
        "pending: a node it needs is busy, reserved or down (ReqNodeNotAvail, UnavailableNodes:n[1-2])");
    EXPECT_EQ(describe({.job = "1", .state = "PENDING", .reason = "QOSMaxGRESPerUser", .time_left = ""}),
              "pending: requests more than its quality of service allows (QOSMaxGRESPerUser)");
    EXPECT_EQ(describe({.job = "1", .state = "COMPLETING", .reason = "", .time_left = ""}),
              "completing: ends just now");
    EXPECT_EQ(describe({.job = "1", .state = "NODE_FAIL", .reason = "", .time_left = ""}),
              "node fail: one of its nodes failed");
}

TEST_F(SlurmTest, AllStatesAreKnownOnce) {
    std::set<std::string_view> names, compact;
    for (const SlurmWord& state : slurm_states()) {
        EXPECT_TRUE(names.insert(state.name).second) << state.name;
        EXPECT_TRUE(compact.insert(state.compact).second) << state.name;
        EXPECT_FALSE(state.meaning.empty());
        EXPECT_EQ(find_state(state.name), &state);
        EXPECT_EQ(find_state(state.compact), &state);
    }
    // squeue's manual, "JOB STATE CODES".
    for (const char* code : {"BF", "CA", "CD", "CF", "CG", "DL", "F",  "NF", "OOM", "PD", "PR", "R",
                             "RD", "RF", "RH", "RQ", "RS", "RV", "SI", "SE", "SO",  "ST", "S",  "TO"})
        EXPECT_NE(find_state(code), nullptr) << code;
    EXPECT_EQ(find_state(""), nullptr);
    for (const SlurmWord& reason : slurm_reasons()) EXPECT_EQ(find_reason(reason.name), &reason) << reason.name;
    EXPECT_EQ(find_reason("AssocGrpCpuLimit")->name, "AssocGrp*");
    EXPECT_EQ(find_reason(""), nullptr);
}

TEST_F(SlurmTest, OddAnswersAreNoAnswers) {
    const SlurmJob job{.id = "7", .cluster = ""};
    for (const char* script : {
             "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
             "echo '7|RUNNING|1:00|0|None|'; exit 1",
             "echo '7|RUNNING|1:00|0|None|'; kill -9 $$",
             "echo 'slurm_load_jobs error: Unable to contact slurm controller'",
             "echo 'CLUSTER: north'; echo; echo '|||||'; echo '7'; echo '7|RUNNING'; echo 'x|RUNNING|1|0|None|'",
             "head -c 300000 /dev/zero",
             "while :; do echo 7; done",  // endless output
             "exit 0",
         }) {
        squeue_is(script);
        EXPECT_TRUE(ask_squeue(job).empty()) << script;
    }
    squeue_is("echo '7|RUNNING|oops|many|None|'; echo '7|PENDING|INVALID|99999999999999999999|(null)|more|fields'");
    const std::vector<QueueEntry> queue = ask_squeue(job);
    ASSERT_EQ(queue.size(), 2U);
    EXPECT_EQ(describe(queue[0]), "running, oops left");
    EXPECT_EQ(describe(queue[1]), "pending: waits in the queue");
    squeue_is("printf '7|RUN\\033[31mNING|1:00|0|None|\\n'");
    ASSERT_EQ(ask_squeue(job).size(), 1U);
    EXPECT_EQ(ask_squeue(job)[0].state.find('\033'), std::string::npos) << "nothing reaches the terminal but text";
    fs::remove(folder.path() / "squeue");
    ::setenv("PATH", folder.path().c_str(), 1);
    EXPECT_TRUE(ask_squeue(job).empty()) << "no such program";
    std::ofstream(folder.path() / "squeue") << "not executable";
    EXPECT_TRUE(ask_squeue(job).empty());
}

TEST_F(SlurmTest, OneThatHangsIsEnded) {
    for (const char* script : {"sleep 600", "exec 1>&-; sleep 600", "sleep 600 & sleep 600"}) {
        squeue_is("echo $$ > \"$(dirname \"$0\")/pid\"; " + std::string(script));
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(ask_squeue({.id = "7", .cluster = ""}, 0.3).empty()) << script;
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << script;
        std::ifstream file(folder.path() / "pid");
        int pid = 0;
        if (file >> pid) {
            EXPECT_NE(::kill(pid, 0), 0) << "left behind by " << script;
        }
    }
}

TEST_F(SlurmTest, WhichJobALaunchBelongsTo) {
    EXPECT_TRUE(slurm_record_from_environment().empty());
    EXPECT_FALSE(job_of({}));
    ::setenv("SLURM_JOB_ID", "1240", 1);
    ::setenv("SLURM_RESTART_COUNT", "2", 1);
    ::setenv("SLURM_CLUSTER_NAME", "north", 1);
    EXPECT_EQ(job_of(slurm_record_from_environment())->id, "1240");
    ::setenv("SLURM_ARRAY_JOB_ID", "1234", 1);
    ::setenv("SLURM_ARRAY_TASK_ID", "5", 1);
    const SlurmRecord record = slurm_record_from_environment();
    EXPECT_EQ(job_of(record)->id, "1234_5");
    EXPECT_EQ(record, (SlurmRecord{{"job_id", "1240"},
                                   {"array_job_id", "1234"},
                                   {"array_task_id", "5"},
                                   {"restart_count", "2"},
                                   {"cluster", "north"}}));
    EXPECT_FALSE(job_of({{"job_id", "1; rm"}}));
    const Lease lease = Lease::take(folder.path(), 30);
    EXPECT_EQ(newest_lease(folder.path())->record.slurm, record) << "the launch record has it";
    ::setenv("SLURM_JOB_ID", "--all", 1);
    EXPECT_TRUE(slurm_record_from_environment().empty());
}

TEST_F(SlurmTest, WhatTheSubmittingScriptLeft) {
    EXPECT_FALSE(submitted_job(folder.path()));
    const auto job = [&](const std::string& text) {
        submitted(text);
        return submitted_job(folder.path());
    };
    EXPECT_EQ(job("1234\n"), (SlurmJob{"1234", ""}));
    EXPECT_EQ(job("1234;north"), (SlurmJob{"1234", "north"}));
    EXPECT_EQ(job("1234\r\nmore\n"), (SlurmJob{"1234", ""}));
    for (const char* bad : {"", "\n", "--all", "Submitted batch job 7", "12 34", "1234;a b", ";north", "_7",
                            "123456789012345678901234567890123"})
        EXPECT_FALSE(job(bad)) << bad;
}

}  // namespace
}  // namespace longhaul::runner
