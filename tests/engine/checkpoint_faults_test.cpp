// Fault injection: the storage fails or the process dies at every system call, one after another. What was durable
// stays, and nothing half-written is loaded.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/store.hpp"
#include "engine/checkpoint/writer.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

using detail::FileCalls;

/// Installs file calls during its lifetime.
class Installed {
  public:
    explicit Installed(FileCalls& calls) { detail::replace_file_calls(&calls); }
    Installed(const Installed&) = delete;
    Installed& operator=(const Installed&) = delete;
    ~Installed() { detail::replace_file_calls(nullptr); }
};

/// A disk with `bytes_left` bytes free: the last write is short, the next one fails.
struct FullDisk : FileCalls {
    std::int64_t bytes_left = 0;
    int cause = ENOSPC;

    ssize_t write(int fd, const void* bytes, std::size_t num_bytes) override {
        if (bytes_left == 0) {
            errno = cause;
            return -1;
        }
        const std::int64_t max_bytes = std::min<std::int64_t>(bytes_left, 5000);  // short writes even if there is space
        const ssize_t written =
            FileCalls::write(fd, bytes, std::min<std::size_t>(num_bytes, static_cast<std::size_t>(max_bytes)));
        if (written > 0) bytes_left -= written;
        return written;
    }
    int fsync(int) override { return 0; }
};

/// One round through the writer, as the first rank of a group of one writes it. Returns the error, "" if the round is
/// durable.
std::string round_through_writer(const std::filesystem::path& folder, PretendedReplica& replica) {
    CheckpointWriter writer(folder);
    writer.submit(RoundJob{replica.round, small_identity(), kv_file_name(0, 0, replica.round, 0), 0, 4,
                           replica.kv_sources(0, 20)});
    writer.wait_idle();
    RoundResult result = writer.poll().at(0);
    if (!result.error.empty()) return result.error;
    const Commit commit = replica.commit(20, {result.kv_file.value()});
    writer.submit(commit);
    writer.wait_idle();
    result = writer.poll().at(0);
    EXPECT_EQ(result.committed, result.error.empty());
    if (result.error.empty()) replica.committed(commit);
    return result.error;
}

void expect_no_temporaries(const std::filesystem::path& folder) {
    for (const std::string& name : names_in(folder)) EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
}

/// A round fails in `calls`. Older rounds stay intact, and once the storage works again the next round succeeds.
void expect_void_round(FileCalls& calls, const std::string& cause) {
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
    replica.start("a", 12);
    replica.write_round(20);
    std::string error;
    {
        const Installed installed(calls);
        error = round_through_writer(folder.path(), replica);
    }
    EXPECT_NE(error.find(cause), std::string::npos) << error;
    EXPECT_NE(error.find(folder.file("0-0-1.").string()), std::string::npos) << error;
    expect_no_temporaries(folder.path());
    EXPECT_FALSE(std::filesystem::exists(folder.file("0-0-1.h5")));
    {
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_TRUE(store.damage().empty());
        EXPECT_TRUE(expect_item(store, "a", 20, 31).damage.empty());
    }
    ++replica.round;
    EXPECT_EQ(round_through_writer(folder.path(), replica), "");
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_TRUE(expect_item(store, "a", 40, 51).damage.empty());
}

TEST(CheckpointFaults, DiskFillsAtFiftySizes) {
    FullDisk plenty;
    plenty.bytes_left = std::int64_t{1} << 40;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
    replica.start("a", 12);
    {
        const Installed installed(plenty);
        replica.write_round(20);
        EXPECT_EQ(round_through_writer(folder.path(), replica), "");
    }
    const auto round_bytes = static_cast<std::int64_t>(std::filesystem::file_size(folder.file("0-0-1.0.h5")) +
                                                       std::filesystem::file_size(folder.file("0-0-1.h5")));
    ASSERT_GT(round_bytes, 5000);
    const FastFiles fast;
    for (int i = 0; i < 50 && !testing::Test::HasFailure(); ++i) {
        FullDisk disk;
        disk.bytes_left = i * round_bytes / 50;
        expect_void_round(disk, "cannot write: No space left on device; free some space");
    }
    FullDisk last_byte;
    last_byte.bytes_left = round_bytes - 1;
    expect_void_round(last_byte, "No space left on device");
}

TEST(CheckpointFaults, QuotaAndMediumErrors) {
    for (const int cause : {EDQUOT, EIO, EROFS}) {
        FullDisk disk;
        disk.bytes_left = 3000;
        disk.cause = cause;
        expect_void_round(disk, std::string("cannot write: ") + std::generic_category().message(cause));
    }
}

/// One fsync fails; later ones would succeed, as on Linux.
struct FailingFsync : FileCalls {
    int fails_at = 0;
    int num_calls = 0;
    std::map<int, std::string> names;
    std::string failed;

    int open(const char* path, int flags, mode_t mode) override {
        const int fd = FileCalls::open(path, flags, mode);
        names[fd] = path;
        return fd;
    }
    int fsync(int fd) override {
        EXPECT_NE(names[fd], failed) << "a failed fsync is not tried again";
        if (num_calls++ == fails_at) {
            failed = names[fd];
            errno = EIO;
            return -1;
        }
        return 0;
    }
};

/// A file system that has no fsync of folders.
struct NoFolderFsync : FileCalls {
    int cause = EINVAL;
    int fsync(int fd) override {
        struct stat status {};
        if (::fstat(fd, &status) == 0 && !S_ISDIR(status.st_mode)) return 0;
        errno = cause;
        return -1;
    }
};

TEST(CheckpointFaults, FoldersWithoutFsyncAreNoFailure) {
    for (const int cause : {EINVAL, ENOTSUP}) {
        NoFolderFsync calls;
        calls.cause = cause;
        const TemporaryFolder folder;
        PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
        replica.start("a", 12);
        const Installed installed(calls);
        replica.write_round(20);
        EXPECT_EQ(round_through_writer(folder.path(), replica), "");
    }
}

TEST(CheckpointFaults, FailedFsyncVoidsTheRound) {
    for (int at = 0; at < 4; ++at) {  // file and folder of the KV file, then of the commit
        FailingFsync calls;
        calls.fails_at = at;
        const TemporaryFolder folder;
        PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
        replica.start("a", 12);
        replica.write_round(20);
        std::string error;
        {
            const Installed installed(calls);
            error = round_through_writer(folder.path(), replica);
        }
        EXPECT_EQ(calls.num_calls, at + 1) << "nothing is synced after the failure";
        EXPECT_EQ(error, calls.failed +
                             ": cannot fsync: Input/output error; check the storage and run again, nothing "
                             "durable was lost");
        expect_no_temporaries(folder.path());
        EXPECT_FALSE(std::filesystem::exists(folder.file("0-0-1.h5"))) << at;
        EXPECT_EQ(std::filesystem::exists(folder.file("0-0-1.0.h5")), at >= 2) << at;
        CheckpointStore store(folder.path(), small_identity(), 0);
        expect_item(store, "a", 20, 31);
        ++replica.round;
        EXPECT_EQ(round_through_writer(folder.path(), replica), "");
    }
}

/// Interrupted calls and single-byte writes are not errors.
struct Interrupted : FileCalls {
    int calls = 0;

    int open(const char* path, int flags, mode_t mode) override {
        if (++calls % 2 == 1) {
            errno = EINTR;
            return -1;
        }
        return FileCalls::open(path, flags, mode);
    }
    ssize_t write(int fd, const void* bytes, std::size_t num_bytes) override {
        if (++calls % 2 == 1) {
            errno = EINTR;
            return -1;
        }
        return FileCalls::write(fd, bytes, std::min<std::size_t>(num_bytes, 17));
    }
};

TEST(CheckpointFaults, InterruptedCallsAreRepeated) {
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
    replica.start("a", 12);
    {
        Interrupted calls;
        const Installed installed(calls);
        EXPECT_EQ(round_through_writer(folder.path(), replica), "");
    }
    CheckpointStore store(folder.path(), small_identity(), 0);
    expect_item(store, "a", 20, 31);
}

TEST(CheckpointFaults, FolderThatCannotBeMade) {
    const TemporaryFolder folder;
    write_bytes(folder.file("file"), {'x'});
    PretendedReplica replica(folder.file("file"), 0, 0, {{0, 4}});
    replica.start("a", 12);
    const std::string error = round_through_writer(folder.file("file") / "checkpoints", replica);
    EXPECT_NE(error.find("cannot open: Not a directory"), std::string::npos) << error;
}

/// The exit status of a child process that was made to die, and the number of rounds it had finished.
struct Outcome {
    int status = 0;
    int rounds_done = 0;
};

/// Runs `body(progress)` in a child process.
Outcome in_child(const std::function<void(volatile int&)>& body) {
    void* shared = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile int& progress = *static_cast<int*>(shared);
    progress = 0;
    const pid_t child = ::fork();
    if (child == 0) {
        body(progress);
        ::_exit(0);
    }
    Outcome outcome;
    EXPECT_EQ(::waitpid(child, &outcome.status, 0), child);
    outcome.rounds_done = progress;
    ::munmap(shared, sizeof(int));
    return outcome;
}

TEST(CheckpointFaults, FileSizeLimitIsAnErrorNotASignal) {
    const TemporaryFolder folder;
    const Outcome outcome = in_child([&](volatile int& progress) {
        const rlimit limit{4096, 4096};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
        replica.start("a", 12);
        progress = round_through_writer(folder.path(), replica).find("File too large") != std::string::npos ? 1 : 0;
    });
    EXPECT_TRUE(WIFEXITED(outcome.status));
    EXPECT_EQ(outcome.rounds_done, 1);
    EXPECT_TRUE(names_in(folder.path()).empty());
}

/// What happens to unsynced data.
enum class Death {
    process_killed,  ///< before the call; the page cache survives
    torn_write,      ///< in the middle of a write; only writes count
    power_cut        ///< unsynced data is cut in half, and renames whose folder was not synced never happened
};

struct Dying : FileCalls {
    Dying(Death how, int at) : how_(how), calls_left_(at) {}

    int open(const char* path, int flags, mode_t mode) override {
        step();
        const int fd = FileCalls::open(path, flags, mode);
        paths_[fd] = path;
        return fd;
    }
    ssize_t write(int fd, const void* bytes, std::size_t num_bytes) override {
        if (calls_left_ == 0 && how_ == Death::torn_write) FileCalls::write(fd, bytes, num_bytes / 2);
        step(true);
        unsynced_.insert(paths_[fd]);
        return FileCalls::write(fd, bytes, std::min<std::size_t>(num_bytes, 6000));
    }
    int fsync(int fd) override {
        step();
        unsynced_.erase(paths_[fd]);
        if (std::filesystem::is_directory(paths_[fd])) pending_renames_.clear();
        return 0;
    }
    int close(int fd) override {
        step();
        return FileCalls::close(fd);
    }
    int rename(const char* from, const char* to) override {
        step();
        pending_renames_.emplace_back(from, to);
        if (unsynced_.erase(from) > 0) unsynced_.insert(to);
        return FileCalls::rename(from, to);
    }
    int unlink(const char* path) override {
        step();
        return FileCalls::unlink(path);
    }

  private:
    void step(bool is_write = false) {
        if ((how_ == Death::torn_write && !is_write) || calls_left_-- > 0) return;
        if (how_ == Death::power_cut) {
            for (const std::string& path : unsynced_) {
                ::truncate(path.c_str(), static_cast<off_t>(std::filesystem::file_size(path) / 2));
            }
            for (const auto& [from, to] : pending_renames_) FileCalls::rename(to.c_str(), from.c_str());
        }
        ::_exit(9);
    }

    Death how_;
    int calls_left_;
    std::map<int, std::string> paths_;
    std::set<std::string> unsynced_;
    std::vector<std::pair<std::string, std::string>> pending_renames_;
};

class CheckpointDeath : public testing::TestWithParam<Death> {};

TEST_P(CheckpointDeath, AtEverySystemCallOfARound) {
    constexpr int num_rounds = 2;
    int deaths = 0;
    for (int at = 0;; ++at) {
        const TemporaryFolder folder;
        const Outcome outcome = in_child([&](volatile int& progress) {
            Dying calls(GetParam(), at);
            const Installed installed(calls);
            PretendedReplica replica(folder.path(), 0, 0);
            replica.start("a", 12);
            for (int round = 0; round < num_rounds; ++round) {
                replica.write_round(20);
                progress = round + 1;
            }
        });
        ASSERT_TRUE(WIFEXITED(outcome.status));
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_TRUE(store.damage().empty()) << "call " << at << ": " << store.damage()[0];
        std::int64_t rounds = 0;
        if (const auto item = store.restore("a")) {
            rounds = static_cast<std::int64_t>(item->tokens.size()) / 20;
            EXPECT_TRUE(item->damage.empty()) << "call " << at << ": " << item->damage[0];
            expect_item(store, "a", 20 * rounds, 11 + 20 * rounds);
        }
        EXPECT_GE(rounds, outcome.rounds_done) << "call " << at << ": a durable round is lost";
        EXPECT_LE(rounds, outcome.rounds_done + 1) << "call " << at;
        if (HasFailure() || WEXITSTATUS(outcome.status) == 0) break;
        ASSERT_EQ(WEXITSTATUS(outcome.status), 9);
        ++deaths;
        // The next launch cleans up and continues under its own epoch.
        store.remove_unneeded({"a"}, 1);
        EXPECT_EQ(names_in(folder.path()).size(), static_cast<std::size_t>(3 * rounds)) << "call " << at;
        PretendedReplica next(folder.path(), 0, 1);
        if (rounds > 0)
            next.resume(store.restore("a").value());
        else
            next.start("a", 12);
        const FastFiles fast;
        next.write_round(20);
        CheckpointStore after(folder.path(), small_identity(), 1);
        expect_item(after, "a", 20 * (rounds + 1), 11 + 20 * (rounds + 1));
    }
    const int calls_per_file = GetParam() == Death::torn_write ? 2 : 10;
    EXPECT_GE(deaths, num_rounds * 3 * calls_per_file) << "three files a round";
}

TEST_P(CheckpointDeath, AtEveryStepOfRemoval) {
    int deaths = 0;
    for (int at = 0;; ++at) {
        const FastFiles fast;
        const TemporaryFolder folder;
        PretendedReplica first(folder.path(), 0, 0, {{0, 4}});
        PretendedReplica second(folder.path(), 1, 0, {{0, 4}});
        first.start("finished", 12);
        second.start("also finished", 3);
        for (int round = 0; round < 2; ++round) first.write_round(20);
        first.start("unfinished", 5);
        for (int round = 0; round < 2; ++round) first.write_round(20);
        for (int round = 0; round < 2; ++round) second.write_round(20);
        second.items.clear();
        second.start("unfinished too", 3);
        second.write_round(20);
        const std::vector<std::string> unfinished{"unfinished", "unfinished too"};
        const Outcome outcome = in_child([&](volatile int&) {
            CheckpointStore store(folder.path(), small_identity(), 1);
            Dying calls(GetParam(), at);
            const Installed installed(calls);
            store.remove_unneeded(unfinished, 1);
        });
        ASSERT_TRUE(WIFEXITED(outcome.status));
        CheckpointStore store(folder.path(), small_identity(), 1);
        EXPECT_TRUE(store.damage().empty());
        expect_item(store, "unfinished", 40, 44);
        expect_item(store, "unfinished too", 20, 22);
        store.remove_unneeded(unfinished, 1);
        EXPECT_EQ(names_in(folder.path()).size(), 6U) << "what was left is removed now";
        if (HasFailure() || WEXITSTATUS(outcome.status) == 0) break;
        ++deaths;
    }
    EXPECT_EQ(deaths, GetParam() == Death::torn_write ? 0 : 8) << "two commits and two KV files of each replica";
}

std::string death_name(const testing::TestParamInfo<Death>& info) {
    switch (info.param) {
        case Death::process_killed:
            return "ProcessKilled";
        case Death::torn_write:
            return "TornWrite";
        case Death::power_cut:
            return "PowerCut";
    }
    return "";
}

INSTANTIATE_TEST_SUITE_P(HowItDies, CheckpointDeath,
                         testing::Values(Death::process_killed, Death::torn_write, Death::power_cut), death_name);

}  // namespace
}  // namespace longhaul::engine
