// What Slurm says of a job: which one a launch belongs to, and how it stands in the queue. Asks the program `squeue`,
// once, with a time limit; where that is missing, fails or talks nonsense, nothing is known and nothing is said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

/// What the batch system's scripts keep in a job's folder, also before its first launch: nobody minds it.
constexpr const char* batch_folder = "slurm";

/// The job that a process runs under, by the names of the launch record: job_id, array_job_id, array_task_id,
/// restart_count, cluster. Empty outside Slurm.
using SlurmRecord = std::map<std::string, std::string>;
SlurmRecord slurm_record_from_environment();

/// A job that squeue can be asked about.
struct SlurmJob {
    std::string id;       ///< "1234", of an array 1234 for all of it or 1234_5 for one task
    std::string cluster;  ///< "": the one at hand

    bool operator==(const SlurmJob&) const = default;
};

/// The job (of an array, the task) of a launch; nullopt where its record names none.
std::optional<SlurmJob> job_of(const SlurmRecord& record);

/// What the script that submitted a job left in OUTPUT/slurm/job-id: a line as `sbatch --parsable` prints it, "1234" or
/// "1234;cluster". nullopt where there is none, or something else.
std::optional<SlurmJob> submitted_job(const std::filesystem::path& output);

/// A line of squeue: a job, a task of an array, or its tasks that have not begun, in one.
struct QueueEntry {
    std::string job;        ///< "1234", "1234_5", "1234_[6-9%2]"
    std::string state;      ///< "PENDING"; as it is where we do not know the word
    std::string reason;     ///< "Priority"; "" for none
    std::string time_left;  ///< "1:02:03"; "" where none was said
    std::int64_t restarts = 0;
};

/// How `job` stands; empty where squeue does not know. Waits for its answer `seconds` at most.
std::vector<QueueEntry> ask_squeue(const SlurmJob& job, double seconds = 5);

/// The lines of squeue that are what we asked for; others are passed over.
std::vector<QueueEntry> parse_squeue(std::string_view text);

/// "pending: waits for jobs of higher priority", "running, 1:02:03 left, attempt 2"
std::string describe(const QueueEntry& entry);

/// Words of squeue and what they mean for the owner of the job.
struct SlurmWord {
    std::string_view name, compact, meaning;
};
/// All states of a job; a reason of the list, too, may be the beginning of a family of names.
const std::vector<SlurmWord>& slurm_states();
const std::vector<SlurmWord>& slurm_reasons();

/// The entry of a state, by either name, or of a reason; nullptr for an unknown word.
const SlurmWord* find_state(std::string_view word);
const SlurmWord* find_reason(std::string_view word);

}  // namespace longhaul::runner
