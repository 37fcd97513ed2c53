// Input of run_phase (job_run.hpp): one run of a job's items into one run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runner/job/job.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

/// Parameters of a phase; the same on all ranks.
struct JobPhase {
    std::string label;  ///< prefix of its progress lines
    RunFolder folder;
    Settings settings;
    std::int64_t epoch = 0;
    /// Rank 0, any thread: whether a later launch has taken over the run folder.
    std::function<bool()> superseded;
};

}  // namespace longhaul::runner
