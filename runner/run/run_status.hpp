// Status of runs for `longhaul status`, read from the files of their run folders.
//
// States of a run: `new` (no launch yet), `running`, `stopped` (ended on request, everything saved), `failed` (ended
// with an error), `crashed` (its process is gone, or its lease is stale), `finished`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
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
    nlohmann::ordered_json progress;  ///< of the newest launch, from rank 0's status/run.json; null if absent
    std::vector<nlohmann::ordered_json> replicas;  ///< heartbeats of the newest launch, by replica
    std::int64_t done = 0, failed = 0;
    double stop_seconds = 0;  ///< longest_stop_seconds
};

/// What checkpoints hold of one item.
struct Checkpointed {
    std::int64_t tokens = 0;     ///< output tokens
    std::int64_t positions = 0;  ///< positions with KV, prompt included
    std::int64_t prompt_tokens = 0;
};

/// By item key (checkpoint_key). Files that are damaged or removed meanwhile are skipped.
std::map<std::string, Checkpointed> items_in_checkpoints(const RunFolder& folder);

std::string state_of(const LeaseView& lease);
RunStatus read_status(const RunFolder& folder);
JobProgress progress_of(const RunStatus& status);

/// The state of a job in shards: the first of running, crashed, failed that any shard has; else new or finished if all
/// shards have it; else stopped.
std::string state_of_all(const std::vector<std::string>& states);

/// Progress of a run in one line, for shell scripts.
struct ProgressLine {
    std::string state = "new";
    std::int64_t done = 0, failed = 0;
    std::int64_t tokens = 0;  ///< output tokens in results and checkpoints, which no crash can lose
    /// Positions of unfinished items whose KV is in checkpoints. This grows during a prefill of hours, where `tokens`
    /// does not.
    std::int64_t positions = 0;
    double stop_seconds = 0;

    /// "state=stopped done=12 failed=0 tokens=123456 positions=4711 stop_seconds=2.1"; `finished` is printed as done.
    [[nodiscard]] std::string text() const;
};

/// Reads a run folder or a job in shards. If the folder does not exist or no launch has used it, the state is new.
/// Throws UsageError if it is something else.
ProgressLine read_progress_line(const std::filesystem::path& root);

}  // namespace longhaul::runner
