// The folder of a job in shards (key `shard`). The shards are run folders in it, each run by its own launch. Layout:
//
//   OUTPUT/shards.json      {"shards": K}; marks the folder, created by the first launch
//   OUTPUT/shard-I-of-K/    the run folder of a shard (run_folder.hpp)
//   OUTPUT/job.cfg, results.jsonl, stats.jsonl, references.jsonl, summary.txt, summary.json
//                           when all shards are done: the same as a run of the whole job writes
//   OUTPUT/joined.json      hash of the shards' state that these were made from; written last
//
// A launch that finds all shards done joins them. Two launches may do so at the same time: both write the same bytes,
// each file atomically.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

/// Number of shards K of a job's folder; 0 if `root` is not such a folder. Throws InputError if shards.json is damaged.
std::int64_t num_shards(const std::filesystem::path& root);

/// All K run folders, whether they were started or not.
std::vector<RunFolder> shards_of(const std::filesystem::path& root);
/// The shards whose model was loaded at least once, so that they may have results. Throws UsageError if there are none.
std::vector<RunFolder> begun_shards_of(const std::filesystem::path& root);

/// Throws UsageError if the job's output cannot hold its shard: it has another number of shards, holds an undivided run
/// or something else. Writes nothing.
void check_shard_folder(const Settings& settings);
/// Creates the folder and shards.json, after check_shard_folder.
void create_shard_folder(const Settings& settings);

/// Compares a shard's job with that of another shard in the folder, if one was started. Throws UsageError.
void check_other_shards(const Settings& settings, const Fingerprints& fingerprints);

enum class Joining {
    joined,     ///< by this call
    current,    ///< joined before, nothing has changed
    waiting,    ///< some shard is not done
    differing,  ///< all are done, but their jobs differ: `why` says what to do
};
struct JoinReport {
    Joining state = Joining::waiting;
    std::string why;
};

/// Joins the shards of `root` if all are done. Throws StorageError.
JoinReport join_shards(const std::filesystem::path& root);

}  // namespace longhaul::runner
