// One launch of a job on all ranks, from opening its run folder to its summary. `longhaul run` does this once,
// `longhaul sweep` once per point: open_run, load_and_carry_out.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/host/watchdog.hpp"
#include "runner/host/world.hpp"
#include "runner/job/settings.hpp"
#include "runner/launch/job_run.hpp"
#include "runner/launch/loaded_job.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/summary.hpp"

namespace longhaul::runner {

/// Rank 0's lock on a folder: takes the lease, renews it in a background thread and ends it in the destructor.
class Hold {
  public:
    /// Throws UsageError with the name of the holder if another launch holds the folder. `discard_until`: Lease::take.
    Hold(const std::filesystem::path& root, double lease_seconds, std::optional<std::int64_t> discard_until = {});
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    [[nodiscard]] std::int64_t epoch() const { return lease_.epoch(); }
    /// Any thread: whether a later launch has taken over the folder.
    [[nodiscard]] bool superseded() const { return superseded_; }
    /// The same, looked up now instead of every fifth of a lease.
    [[nodiscard]] bool superseded_now() const { return superseded_ || !lease_.is_newest(); }
    /// How the launch ended; "failed" unless set.
    void set_ending(nlohmann::json ending);
    /// Why the launch failed, unless it is known how it ended.
    void set_failure(int code, const std::string& line);

  private:
    Lease lease_;
    std::atomic<bool> superseded_{false};
    nlohmann::json ending_{{"state", "failed"}, {"exit_code", 1}};
    bool is_ending_known_ = false;
    Pulse pulse_;
};

/// State of one launch of one job.
struct Launch {
    World& world;
    LoadedJob& loaded;  ///< model and data that are loaded already must match `settings`
    Settings settings;
    std::string label = "longhaul";  ///< prefix of the progress lines
    /// Rank 0, any thread: whether a lease above the run folder's (of a sweep) was lost.
    std::function<bool()> superseded_above{};

    RunFolder folder = run_folder_of(settings);
    std::unique_ptr<Hold> hold{};                     ///< rank 0, set by open_run
    std::optional<nlohmann::json> previous_ending{};  ///< rank 0: how the previous launch ended
    /// Rank 0: the folder was begun by another job that has nothing but failures; they count no more.
    bool starts_afresh = false;
    std::int64_t epoch = 0;
    std::vector<std::string> kinds_before{};  ///< rank 0: device kinds of earlier launches
};

/// How a launch ended. The same on all ranks.
struct LaunchEnd {
    int code = 0;
    StopReason stop = StopReason::none;
};

/// What `run` and `sweep` read before they check it.
struct JobLines {
    std::vector<Assignment> file, keys;  ///< the lines of the file, and the keys of the command line
    std::string path;                    ///< of the file, absolute
};
/// Parses the command line and reads its file on rank 0 alone: the ranks may see different files, even on a shared file
/// system. Collective.
JobLines read_job_lines(const World& world, const std::string& command, const std::vector<std::string>& arguments);

/// Throws UsageError if the number of ranks is not a multiple of tensor-parallel.
void check_ranks(const World& world, const Settings& settings);

/// Opens the run folder, and the data unless it is open. Returns a value if all items are done already; otherwise rank
/// 0 holds the folder. Collective.
std::optional<Finished> open_run(Launch& launch);

/// Splits the ranks into replicas, loads what is not loaded yet, and checks that the folder belongs to this job.
/// Collective.
void load_run(Launch& launch);

/// Runs the job, and plain decoding if `baseline` is set, then records how it ended. `report` runs on rank 0 after
/// the summary is written; all ranks agree on a StorageError that it throws. Collective.
LaunchEnd carry_out(Launch& launch, const std::function<void(const Summary&)>& report);

/// load_run and carry_out. If the ranks agree on a failure, the launch's log and its ending record why. Collective.
LaunchEnd load_and_carry_out(Launch& launch, const std::function<void(const Summary&)>& report);

/// Rank 0, after a shard is done: joins all shards if it was the last. Throws StorageError.
void join_if_last(const Settings& settings);

/// Exit code of a job whose items are all done.
int exit_code_of(const Finished& finished);

/// Writes to standard output. Throws StorageError, so that output lost to a full disk does not look like success.
void print_answer(const std::string& text);

}  // namespace longhaul::runner
