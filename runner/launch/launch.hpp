// One launch of a job by all ranks into its run folder, from opening it to its summary: what `longhaul run` does once
// and `longhaul sweep` for each of its points.
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

/// Rank 0's hold of a folder: its lease, renewed beside everything else and given back at the end.
class Hold {
  public:
    /// Throws UsageError naming the holder where another launch has it.
    Hold(const std::filesystem::path& root, double lease_seconds);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    [[nodiscard]] std::int64_t epoch() const { return lease_.epoch(); }
    /// Any thread: a later launch took the folder over.
    [[nodiscard]] bool superseded() const { return superseded_; }
    /// How the launch ended; "failed" until somebody says better.
    void set_ending(nlohmann::json ending) { ending_ = std::move(ending); }

  private:
    Lease lease_;
    std::atomic<bool> superseded_{false};
    nlohmann::json ending_{{"state", "failed"}, {"exit_code", 1}};
    Pulse pulse_;
};

/// What everything hangs on in one launch of one job.
struct Launch {
    World& world;
    LoadedJob& loaded;  ///< what is there already (model, data) must be what `settings` ask for
    Settings settings;
    std::string label = "longhaul";  ///< of the progress lines
    /// Rank 0, any thread: a lease above the run folder's was lost.
    std::function<bool()> superseded_above{};

    RunFolder folder = run_folder_of(settings);
    std::unique_ptr<Hold> hold{};                     ///< rank 0, from open_run on
    std::optional<nlohmann::json> previous_ending{};  ///< rank 0: how the launch before this one ended
    std::int64_t epoch = 0;
    std::vector<std::string> kinds_before{};  ///< rank 0: of the devices of earlier launches
};

/// How a launch ended. The same on all ranks.
struct LaunchEnd {
    int code = 0;
    StopReason stop = StopReason::none;
};

/// Rank 0's assignments on all ranks: a shared file system may show them different files. Collective.
void broadcast(const World& world, std::vector<Assignment>& assignments);

/// Throws UsageError where the ranks of the launch make no whole number of replicas.
void check_ranks(const World& world, const Settings& settings);

/// Opens the run folder, and the data where they are not open. With an answer all items are done already; else rank 0
/// holds the folder. Collective.
std::optional<Finished> open_run(Launch& launch);

/// Splits the ranks into replicas, loads what is not loaded, and makes sure that the folder is of this job. Collective.
void load_run(Launch& launch);

/// Generates, decodes plainly too where `baseline` asks for it, and writes down how it ended. `report`: on rank 0,
/// last; a StorageError it throws is agreed. Collective.
LaunchEnd carry_out(Launch& launch, const std::function<void(const Summary&)>& report);

/// Rank 0, where a shard is done: joins all of them if it was the last. Throws StorageError.
void join_if_last(const Settings& settings);

/// Exit code of a job of which all items are done.
int exit_code_of(const Finished& finished);

/// On standard output. Throws StorageError: a table that went to a full disk must not look like success.
void print_answer(const std::string& text);

}  // namespace longhaul::runner
