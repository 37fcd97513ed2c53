// Runs one job on all ranks into one run folder: order of work, replica loop, results. Called by carry_out
// (launch.cpp): once per launch, and once more with plain decoding for `baseline`.
#pragma once

#include "runner/host/world.hpp"
#include "runner/launch/job_phase.hpp"
#include "runner/launch/loaded_job.hpp"
#include "runner/run/job_outcome.hpp"

namespace longhaul::runner {

/// Collective. Errors between collectives are agreed on (World::agree); an error inside a replica's loop ends all
/// ranks.
JobOutcome run_phase(const World& world, LoadedJob& loaded, const JobPhase& phase);

}  // namespace longhaul::runner
