// Slurm state of a job: which job a launch belongs to, and its state in the queue. Runs `squeue` once, with a timeout;
// if it is missing, fails or prints something unexpected, the result is empty. Used by lease and `longhaul status`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

/// Folder of the batch scripts inside a job's output; it may exist before the first launch and is ignored.
constexpr const char* batch_folder = "slurm";

/// The Slurm job of this process, with the keys of the launch record: job_id, array_job_id, array_task_id,
/// restart_count, cluster. Empty outside Slurm.
using SlurmRecord = std::map<std::string, std::string>;
SlurmRecord slurm_record_from_environment();

/// A job to query with squeue.
struct SlurmJob {
    std::string id;       ///< "1234"; for a job array 1234 (all of it) or 1234_5 (one task)
    std::string cluster;  ///< "": the default cluster

    bool operator==(const SlurmJob&) const = default;
};

/// The Slurm job (for a job array, the task) of a launch; nullopt if its record has none.
std::optional<SlurmJob> job_of(const SlurmRecord& record);

/// The job id that slurm/submit wrote to OUTPUT/slurm/job-id, one line as printed by `sbatch --parsable`: "1234" or
/// "1234;cluster". nullopt if the file is absent or has another content.
std::optional<SlurmJob> submitted_job(const std::filesystem::path& output);

/// One line of squeue: a job, a task of a job array, or all its pending tasks together.
struct QueueEntry {
    std::string job;        ///< "1234", "1234_5", "1234_[6-9%2]"
    std::string state;      ///< "PENDING"; an unknown word is kept as it is
    std::string reason;     ///< "Priority"; "" if there is none
    std::string time_left;  ///< "1:02:03"; "" if not reported
    std::int64_t restarts = 0;
};

/// Queries the state of `job`; empty if squeue does not know it. Waits at most `seconds`.
std::vector<QueueEntry> ask_squeue(const SlurmJob& job, double seconds = 5);

/// Parses the lines that are in the requested format; skips others.
std::vector<QueueEntry> parse_squeue(std::string_view text);

/// "pending: waits for jobs of higher priority", "running, 1:02:03 left, attempt 2"
std::string describe(const QueueEntry& entry);

/// A word of squeue's output and its meaning for the owner of the job.
struct SlurmWord {
    std::string_view name, compact, meaning;
};
/// All job states, and the known reasons. A reason that ends in '*' is a prefix of several names.
const std::vector<SlurmWord>& slurm_states();
const std::vector<SlurmWord>& slurm_reasons();

/// Finds a state by either of its names, or a reason; nullptr for an unknown word.
const SlurmWord* find_state(std::string_view word);
const SlurmWord* find_reason(std::string_view word);

}  // namespace longhaul::runner
