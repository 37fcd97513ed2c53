// The folder of a divided job (key `shard`): its shards are run folders in it, each of a launch of its own. Layout:
//
//   OUTPUT/shards.json      {"shards": K}; marks the folder, made by whichever launch comes first
//   OUTPUT/shard-I-of-K/    the run folder of a shard (run_folder.hpp)
//   OUTPUT/job.cfg, results.jsonl, stats.jsonl, references.jsonl, summary.txt, summary.json
//                           when all shards are done: what a run of the whole job leaves
//   OUTPUT/joined.json      which state of the shards these were made from; written last
//
// Whoever sees that all are done joins them. Two may do so at once: both write the same bytes, each file in one step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

/// K of the folder of a divided job; 0 where `root` is no such folder. Throws InputError where its mark is damaged.
std::int64_t num_shards(const std::filesystem::path& root);

/// The K run folders, begun or not.
std::vector<RunFolder> shards_of(const std::filesystem::path& root);
/// Those whose model was loaded once, so that they may have results. Throws UsageError where there is none.
std::vector<RunFolder> begun_shards_of(const std::filesystem::path& root);

/// Throws UsageError where the job's output cannot hold its shard: it is divided otherwise, holds a run of its own or
/// something else. Writes nothing.
void check_shard_folder(const Settings& settings);
/// Makes and marks the folder, after check_shard_folder.
void create_shard_folder(const Settings& settings);

/// Compares a shard's job with that of another one in the folder, where any has begun. Throws UsageError.
void check_other_shards(const Settings& settings, const Fingerprints& fingerprints);

enum class Joining {
    joined,     ///< now
    current,    ///< it was done before
    waiting,    ///< a shard is not done
    differing,  ///< all are done, but not of one job: `why` says what to do
};
struct JoinReport {
    Joining state = Joining::waiting;
    std::string why;
};

/// Joins the shards of `root` if all are done. Throws StorageError.
JoinReport join_shards(const std::filesystem::path& root);

}  // namespace longhaul::runner
