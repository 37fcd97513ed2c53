// One job, run by all ranks into one run folder: order of work, replica loop, results. `longhaul run` does it once, and
// once more with plain decoding for `baseline`.
#pragma once

#include <cstdint>
#include <string>

#include "runner/loaded.hpp"
#include "runner/run_folder.hpp"
#include "runner/scheduler.hpp"
#include "runner/world.hpp"

namespace longhaul::runner {

/// What a phase is given. The same on all ranks.
struct JobPhase {
    std::string label;  ///< of its progress lines
    RunFolder folder;
    Settings settings;
    std::int64_t epoch = 0;
    /// Rank 0, any thread: a later launch took the run folder over.
    std::function<bool()> superseded;
};

/// Speed of one replica and launch as status/R-EPOCH.json holds it, summed over all of them.
struct DecodeSpeed {
    std::int64_t tokens = 0;
    double seconds = 0;
    [[nodiscard]] double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// How a phase ended. Filled on rank 0; `exit_code`, `all_done` and `stop` on all ranks.
struct JobOutcome {
    int exit_code = 0;
    bool all_done = false;
    StopReason stop = StopReason::none;
    std::int64_t inputs = 0, items = 0, done = 0, failed = 0;
    double seconds = 0;                   ///< of this launch
    std::int64_t tokens = 0, rounds = 0;  ///< of this launch
    // From stats.jsonl, all launches:
    std::int64_t total_tokens = 0, target_calls = 0, drafted = 0, accepted = 0, branched_trees = 0;
    std::int64_t resumed_items = 0, recomputed_tokens = 0, recomputed_rows = 0;
    double checkpoint_stall_seconds = 0;
    double nll = 0;  ///< of given continuations
    std::int64_t scored_tokens = 0, scored_bytes = 0;
    DecodeSpeed speed;           ///< all launches
    double working_seconds = 0;  ///< in prompts and decoding: each launch's longest replica, added up
};

/// Collective. Errors between collectives are agreed; one in the middle of a replica's loop ends all ranks.
JobOutcome run_phase(const World& world, Loaded& loaded, const JobPhase& phase);

}  // namespace longhaul::runner
