// What run folders say about their runs: for `longhaul status`, from files alone.
//
// States of a run: `new` (no launch yet), `running`, `stopped` (ended on request, everything saved), `failed` (ended
// with an error), `crashed` (its process is gone, or its lease is old), `finished`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/progress.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

struct RunStatus {
    std::string state = "new";
    std::optional<LeaseView> lease;
    nlohmann::ordered_json progress;               ///< of the newest launch, as rank 0 saw it; null before
    std::vector<nlohmann::ordered_json> replicas;  ///< heartbeats of the newest launch
    std::int64_t done = 0, failed = 0;
    double stop_seconds = 0;  ///< longest_stop_seconds
};

std::string state_of(const LeaseView& lease);
RunStatus read_status(const RunFolder& folder);
JobProgress progress_of(const RunStatus& status);

/// The state of a job in shards of these states: that of the first word here which any has: running, crashed, failed;
/// new or finished where all are; else stopped.
std::string state_of_all(const std::vector<std::string>& states);

/// How far a run is, for shell scripts.
struct ProgressLine {
    std::string state = "new";
    std::int64_t done = 0, failed = 0;
    std::int64_t tokens = 0;  ///< of output that no crash can take: in results and checkpoints
    /// Of unfinished items, with keys and values in checkpoints: grows in a prompt of hours, where `tokens` stands
    /// still.
    std::int64_t positions = 0;
    double stop_seconds = 0;

    /// "state=stopped done=12 failed=0 tokens=123456 positions=4711 stop_seconds=2.1": `finished` is called done.
    [[nodiscard]] std::string text() const;
};

/// Of a run folder or a job in shards; a folder that is not there, or where no launch has been, is new. Throws
/// UsageError where it is something else.
ProgressLine read_progress_line(const std::filesystem::path& root);

}  // namespace longhaul::runner
