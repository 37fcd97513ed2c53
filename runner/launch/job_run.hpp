// One job, run by all ranks into one run folder: order of work, replica loop, results. `longhaul run` does it once, and
// once more with plain decoding for `baseline`.
#pragma once

#include <cstdint>
#include <string>

#include "runner/host/world.hpp"
#include "runner/launch/loaded.hpp"
#include "runner/launch/scheduler.hpp"
#include "runner/run/outcome.hpp"
#include "runner/run/run_folder.hpp"

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

/// Collective. Errors between collectives are agreed; one in the middle of a replica's loop ends all ranks.
JobOutcome run_phase(const World& world, Loaded& loaded, const JobPhase& phase);

}  // namespace longhaul::runner
