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
    /// Any rank and thread; known to rank 0: whether a later launch was seen to have taken over the run folder. Then
    /// only files with the epoch in their names may still be written, and none removed.
    std::function<bool()> superseded;
    /// The same, looked up now.
    std::function<bool()> superseded_now;
    /// Rank 0, once, when the folder's checkpoints are known to be this job's and before anything else in it changes.
    std::function<void()> begin;
};

}  // namespace longhaul::runner
