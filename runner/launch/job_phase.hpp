// One run of a job's items into one run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runner/job/job.hpp"
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

}  // namespace longhaul::runner
