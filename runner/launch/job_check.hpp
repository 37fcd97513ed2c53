// `longhaul check`: finds all faults of the job file, the model folder, the data and the run folder, and estimates
// memory and disk, without running the job. Only reads; does not need MPI.
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
#include "runner/launch/length_costs.hpp"

namespace longhaul::runner {

/// A fault for which `longhaul run` would end with `code`.
struct JobFault {
    std::string part;  ///< "job", "model", "adapter", "draft", "draft-corpus", "data" or "output"
    std::string line;
    ExitCode code = ExitCode::usage;
};

/// Memory of one rank in bytes, including draft models.
struct MemoryNeed {
    std::int64_t weights = 0;     ///< packed, in the job's precision
    std::int64_t longest_kv = 0;  ///< KV of the longest item at its end
    std::int64_t batch_kv = 0;    ///< KV of the `batch` longest items together
    std::int64_t available = 0;   ///< free on this machine now; 0: unknown
    /// KV capacity: `memory`, or what `run` would use here with a single rank, plus `host_memory`; 0: unknown
    std::int64_t max_kv = 0;
    std::int64_t host_memory = 0;  ///< host memory for KV, from `host-memory`
    std::string host;
};

/// Bytes needed below the run folder, approximate maximum.
struct DiskNeed {
    std::int64_t checkpoints = 0;  ///< of one replica, maximum at any time
    std::int64_t results = 0;
    std::int64_t available = 0;
};

/// A choice of the first multiple-choice question.
struct FirstChoice {
    std::string text;  ///< what its tokens spell
    std::int64_t num_tokens = 0;
    bool is_right = false;
};

/// The first item's prompt, as the model sees it.
struct FirstPrompt {
    std::string id;
    std::vector<std::int32_t> tokens;
    std::string text;                    ///< of the tokens, special ones included
    std::vector<FirstChoice> choices{};  ///< of a question
};

struct ModelFacts {
    engine::ModelConfig config;
    std::int64_t num_tensors = 0, tensor_bytes = 0;
    std::int32_t tokenizer_size = 0;
    std::string adapter;  ///< its folder, ranks and number of matrices; "": none
};

/// Result of a check. Members that could not be determined because of the faults are absent.
struct JobReport {
    Settings settings;
    std::vector<JobFault> faults;
    std::vector<std::string> warnings;  ///< these do not keep the job from running
    std::optional<ModelFacts> model;
    std::optional<ItemSurvey> items;
    std::string longest_id;
    std::optional<FirstPrompt> first_prompt;
    std::vector<LengthCost> lengths;
    double read_bytes = 0;     ///< total_read_bytes; 0: unknown
    std::int64_t threads = 0;  ///< with which this machine's CPU would run the job; 0: another device would
    std::optional<MemoryNeed> memory;
    std::optional<DiskNeed> disk;
    bool is_begun = false;          ///< the run folder has results or checkpoints of this job
    std::int64_t items_before = 0;  ///< number of results in it

    /// Exit code of the most severe fault: usage (2), then model or data (1), then storage (74), then failing items
    /// (3).
    [[nodiscard]] ExitCode code() const;
};

/// Checks a job file together with keys of the command line. Keeps at most `max_failures` failing items. Throws
/// UsageError if the job file cannot be read.
JobReport check_job(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line,
                    std::int64_t max_failures);

}  // namespace longhaul::runner
