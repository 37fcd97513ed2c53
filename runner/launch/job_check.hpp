// Whether a job can be run, found out without running it: every fault of the job file, the model folder, the data and
// the run folder, and what the run will need. Reads only; needs no MPI.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/config.hpp"
#include "runner/data/item_survey.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// Something that `longhaul run` would refuse with this code.
struct JobFault {
    std::string part;  ///< "job", "model", "data" or "output"
    std::string line;
    ExitCode code = ExitCode::usage;
};

/// Bytes of memory of one rank, with what draft models take.
struct MemoryNeed {
    std::int64_t weights = 0;     ///< packed, in the job's precision
    std::int64_t longest_kv = 0;  ///< keys and values of the longest item at its end
    std::int64_t batch_kv = 0;    ///< of the `batch` longest together
    std::int64_t available = 0;   ///< on this machine, now; 0: unknown
    std::int64_t max_kv = 0;      ///< `memory`, or what `run` would take here as the only rank, and `far`; 0: unknown
    std::int64_t far = 0;         ///< of `host-memory`
    std::string host;
};

/// Bytes below the run folder, about and at most.
struct DiskNeed {
    std::int64_t checkpoints = 0;  ///< of one replica at any one time
    std::int64_t results = 0;
    std::int64_t available = 0;
};

struct ModelFacts {
    engine::ModelConfig config;
    std::int64_t num_tensors = 0, tensor_bytes = 0;
    std::int32_t tokenizer_size = 0;
};

/// What there is to say; what could not be found out for the faults is absent.
struct JobReport {
    Settings settings;
    std::vector<JobFault> faults;
    std::vector<std::string> warnings;  ///< none keeps the job from running
    std::optional<ModelFacts> model;
    std::optional<ItemSurvey> items;
    std::string longest_id;
    std::optional<MemoryNeed> memory;
    std::optional<DiskNeed> disk;
    bool is_begun = false;          ///< the run folder has this job's results or checkpoints
    std::int64_t items_before = 0;  ///< results in it

    /// The gravest: a refused job (2) before a model or data that cannot be used (1) before items that would fail (3).
    [[nodiscard]] ExitCode code() const;
};

/// Checks a job file with keys of the command line; of failing items at most `max_failures` are kept. Throws
/// UsageError where there is no job file to read.
JobReport check_job(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line,
                    std::int64_t max_failures);

}  // namespace longhaul::runner
