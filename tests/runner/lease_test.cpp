// The lease on a run folder: one live launch, epochs, takeover.
#include "runner/run/lease.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/error.hpp"
#include "runner/host/files.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

void age(const fs::path& run, std::int64_t epoch, int seconds) {
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    const fs::path path = run / "launches" / (std::to_string(epoch) + ".json");
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

/// Changes the record to that of a process on another host, which cannot be checked from here.
void move_to_another_host(const fs::path& run, std::int64_t epoch) {
    const fs::path path = run / "launches" / (std::to_string(epoch) + ".json");
    auto json = engine::try_parse_json(read_if_there(path));
    json["host"] = "faraway";
    std::ofstream(path) << engine::json_text(json);
}

TEST(Lease, FirstLaunchHasEpochOne) {
    const TemporaryFolder run;
    EXPECT_FALSE(newest_lease(run.path()).has_value());
    const Lease lease = Lease::take(run.path(), 30);
    EXPECT_EQ(lease.epoch(), 1);
    const auto view = newest_lease(run.path());
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->state, LeaseState::live);
    EXPECT_EQ(view->record.holder.pid, getpid());
}

// launches/ was emptied (by a cleaning script): earlier results still count, and no epoch is used twice.
TEST(Lease, EmptiedLaunchesLoseNothing) {
    const TemporaryFolder run;
    fs::create_directories(run.path() / "results");
    fs::create_directories(run.path() / "checkpoints");
    std::ofstream(run.path() / "results" / "0-2.jsonl") << "{\"index\":0}\nhalf a li";
    std::ofstream(run.path() / "checkpoints" / "1-4-9.h5") << "x";
    std::ofstream(run.path() / "results" / "not-9223372036854775807.ours") << "x";
    const Lease lease = Lease::take(run.path(), 30);
    EXPECT_EQ(lease.epoch(), 5);
    const auto accepted = newest_lease(run.path())->record.accepted;
    ASSERT_EQ(accepted.count("0-2.jsonl"), 1U);
    EXPECT_EQ(accepted.at("0-2.jsonl"), 12);
}

// A folder that cannot be listed is not an empty one: what a new launch does not find never counts again.
TEST(Lease, FoldersThatCannotBeReadAreErrors) {
    for (const char* name : {"results", "checkpoints", "launches"}) {
        const TemporaryFolder run;
        fs::create_symlink(name, run.path() / name);  // to itself
        EXPECT_THROW(Lease::take(run.path(), 30), Error) << name;
        std::error_code unreadable;
        EXPECT_FALSE(fs::exists(run.path() / "launches" / "1.json", unreadable)) << name;
    }
}

TEST(Lease, AResultFileThatIsGoneIsNamed) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30).end({{"state", "stopped"}});
    const fs::path results = run.path() / "results" / "0-1.jsonl";
    fs::create_directories(results.parent_path());
    std::ofstream(results) << "{}\n";
    Lease::take(run.path(), 30).end({{"state", "stopped"}});
    fs::remove(results);
    try {
        Lease::take(run.path(), 30);
        FAIL() << "its items would be computed again";
    } catch (const InputError& error) {
        EXPECT_EQ(error.what(), results.string() +
                                    ": expected 3 bytes of results, got no such file; restore it, or make an empty "
                                    "file of that name: then its items are computed again");
    }
    std::ofstream{results};
    EXPECT_EQ(Lease::take(run.path(), 30).epoch(), 3);
}

TEST(Lease, DiscardsTheResultsOfTheLaunchesThatWereLookedAt) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30).end({{"state", "finished"}});
    fs::create_directories(run.path() / "results");
    std::ofstream(run.path() / "results" / "0-1.jsonl") << "{}\n";
    EXPECT_THROW(Lease::take(run.path(), 30, 2), UsageError);
    Lease::take(run.path(), 30).end({{"state", "stopped"}});
    EXPECT_THROW(Lease::take(run.path(), 30, 1), UsageError) << "another launch came between";
    Lease::take(run.path(), 30, 2).end({{"state", "stopped"}});
    EXPECT_TRUE(newest_lease(run.path())->record.accepted.empty());
    Lease::take(run.path(), 30).end({{"state", "stopped"}});
    EXPECT_TRUE(newest_lease(run.path())->record.accepted.empty()) << "nor later";
}

TEST(Lease, LiveHolderIsNamedAndRefused) {
    const TemporaryFolder run;
    const Lease lease = Lease::take(run.path(), 30);
    try {
        Lease::take(run.path(), 30);
        FAIL() << "a live lease was taken over";
    } catch (const UsageError& error) {
        const std::string line = error.what();
        EXPECT_NE(line.find("pid " + std::to_string(getpid())), std::string::npos) << line;
        EXPECT_NE(line.find("host " + ProcessId::mine().host), std::string::npos) << line;
        EXPECT_NE(line.find("since "), std::string::npos) << line;
    }
}

TEST(Lease, EndedLaunchIsFollowed) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30).end({{"state", "stopped"}});
    EXPECT_EQ(newest_lease(run.path())->state, LeaseState::ended);
    EXPECT_EQ(newest_lease(run.path())->ending["state"], "stopped");
    EXPECT_EQ(Lease::take(run.path(), 30).epoch(), 2);
}

TEST(Lease, OldLeaseOfAnotherHostIsTakenOver) {
    const TemporaryFolder run;
    const Lease first = Lease::take(run.path(), 30);
    move_to_another_host(run.path(), 1);
    age(run.path(), 1, 20);
    EXPECT_THROW(Lease::take(run.path(), 30), UsageError) << "20 s are not too old";
    age(run.path(), 1, 31);
    EXPECT_EQ(newest_lease(run.path())->state, LeaseState::stale);
    EXPECT_TRUE(first.renew());
    EXPECT_EQ(newest_lease(run.path())->state, LeaseState::live) << "renewed";
    age(run.path(), 1, 31);
    const Lease second = Lease::take(run.path(), 30);
    EXPECT_EQ(second.epoch(), 2);
    EXPECT_FALSE(first.renew()) << "the old holder learns that it was replaced";
    EXPECT_TRUE(second.renew());
}

TEST(Lease, DeadProcessIsTakenOverAtOnce) {
    const TemporaryFolder run;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    Lease::take(run.path(), 30);
    const fs::path path = run.path() / "launches" / "1.json";
    auto json = engine::try_parse_json(read_if_there(path));
    json["pid"] = child;
    std::ofstream(path) << engine::json_text(json);
    EXPECT_EQ(newest_lease(run.path())->state, LeaseState::stale);
    EXPECT_EQ(Lease::take(run.path(), 30).epoch(), 2);
}

TEST(Lease, NumberOfAnotherProcessIsNotItsLife) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30);
    const fs::path path = run.path() / "launches" / "1.json";
    auto json = engine::try_parse_json(read_if_there(path));
    json["start_ticks"] = "1";  // the process id was reused by a later process
    std::ofstream(path) << engine::json_text(json);
    EXPECT_EQ(newest_lease(run.path())->state, LeaseState::stale);
}

TEST(Lease, DamagedRecordStillCountsByItsAge) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30);
    std::ofstream(run.path() / "launches" / "1.json") << "{";
    EXPECT_THROW(Lease::take(run.path(), 30), UsageError);
    age(run.path(), 1, 31);
    EXPECT_EQ(Lease::take(run.path(), 30).epoch(), 2);
}

// On file systems without hard links a launch can die between creating and filling its record.
TEST(Lease, ResultsOutliveALaunchThatDiedBeforeItsRecord) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30);
    fs::create_directories(run.path() / "results");
    std::ofstream(run.path() / "results" / "0-1.jsonl") << "{}\n{}\n{\"half";
    move_to_another_host(run.path(), 1);
    std::ofstream(run.path() / "launches" / "2.json");
    for (const int epoch : {1, 2}) age(run.path(), epoch, 31);
    const Lease third = Lease::take(run.path(), 30);
    EXPECT_EQ(third.epoch(), 3);
    const auto accepted = newest_lease(run.path())->record.accepted;
    ASSERT_TRUE(accepted.contains("0-1.jsonl")) << "finished items would be generated again";
    EXPECT_EQ(accepted.at("0-1.jsonl"), 6);
}

TEST(Lease, OneOfManyGetsAStaleLease) {
    const TemporaryFolder run;
    Lease::take(run.path(), 30);
    move_to_another_host(run.path(), 1);
    age(run.path(), 1, 100);
    std::atomic<int> taken{0}, refused{0};
    std::vector<std::thread> launches;
    for (int i = 0; i < 8; ++i) {
        launches.emplace_back([&] {
            try {
                EXPECT_EQ(Lease::take(run.path(), 30).epoch(), 2);
                ++taken;
            } catch (const UsageError&) {
                ++refused;
            }
        });
    }
    for (std::thread& launch : launches) launch.join();
    EXPECT_EQ(taken, 1);
    EXPECT_EQ(refused, 7);
}

}  // namespace
}  // namespace longhaul::runner
