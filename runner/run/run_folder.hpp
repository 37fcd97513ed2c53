// Layout of the run folder, and which job it belongs to. runner/README.md describes the layout; in addition:
//
//   RUN/launches/EPOCH.json        one per launch: the lease (lease.hpp), and EPOCH.ended.json after a regular end
//   RUN/identity.json              what decides the results (keys, fingerprints); a resume must agree with it
//   RUN/finished.json              written when all is done: `limit`, `samples` and `max-tokens` at that time
//   RUN/references.jsonl           written when all is done: the data's reference answers, for scoring
//   RUN/summary.txt, summary.json  summary of the last launch that reached its end, as a table and as JSON
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "engine/json.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// Paths of a run folder.
struct RunFolder {
    std::filesystem::path root;

    [[nodiscard]] std::filesystem::path results() const { return root / "results"; }
    [[nodiscard]] std::filesystem::path checkpoints() const { return root / "checkpoints"; }
    [[nodiscard]] std::filesystem::path status() const { return root / "status"; }
    [[nodiscard]] std::filesystem::path log() const { return root / "log"; }
    /// The log of launch number `epoch` (its replicas have their own).
    [[nodiscard]] std::filesystem::path launch_log(std::int64_t epoch) const {
        return log() / (std::to_string(epoch) + ".log");
    }

    /// Throws UsageError if the folder cannot hold a run: it holds something else, or is not writable. Writes nothing.
    void must_be_usable() const;

    /// Creates the folders of a run, after must_be_usable.
    void create() const;

    /// Throws UsageError if the folder holds something that is not the start of a run.
    void must_be_new() const;

    /// Whether a launch has used the folder.
    [[nodiscard]] bool is_begun() const;

    /// Throws UsageError if there is no run in the folder.
    void must_exist() const;

    /// The job as resolved by its last launch. Throws UsageError, InputError if job.cfg is empty.
    [[nodiscard]] Settings settings() const;
};

/// Marker file of a sweep's folder (sweep_folder.hpp); the folders in it are its runs.
constexpr const char* sweep_marker = "sweep.cfg";

/// Marker file of the folder of a job in shards (shard_folder.hpp); the shards in it are run folders.
constexpr const char* shards_marker = "shards.json";

/// "OUTPUT/shard-2-of-8"
std::filesystem::path shard_path(const std::filesystem::path& output, const Shard& shard);

/// The run folder of a job: its `output`, or its shard's folder in there.
RunFolder run_folder_of(const Settings& settings);

/// Content hashes that decide the results in addition to the keys: name -> value, "model" -> "91c3…".
using Fingerprints = std::map<std::string, std::string>;

/// Compares the job with the identity stored in the folder; fingerprints that only one side has are not compared (the
/// model's is known late). Throws UsageError naming the first key that differs, and both values; InputError if the
/// identity is damaged, or lost although the folder has results or checkpoints.
void check_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints);

/// The same for another shard of the job, without `limit`, `samples` and `max-tokens`, which may be raised there at
/// another time.
void check_same_job(const RunFolder& other, const Settings& settings, const Fingerprints& fingerprints);

/// Writes identity.json: keys, fingerprints, the current `limit`, `samples` and `max-tokens`, and, if launches with
/// --allow-device-change used different kinds of device, these kinds in order.
void write_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints);

/// `max-tokens` of the folder's newest launch; nullopt if none is recorded.
std::optional<std::int64_t> recorded_max_tokens(const RunFolder& folder);

/// Device kinds of the folder's launches, in order; empty if none is recorded.
std::vector<std::string> device_kinds(const RunFolder& folder);

/// The fingerprints recorded by `write_identity`. Throws InputError if there are none.
Fingerprints read_fingerprints(const RunFolder& folder);

/// Hash of the identity, stored in checkpoints as their job.
std::string identity_hash(const Settings& settings, const Fingerprints& fingerprints);

/// Hash of the names, sizes and modification times of a model folder's files: a cheap check that nothing changed.
std::string quick_fingerprint(const std::filesystem::path& model);

/// Content of RUN/finished.json; valid as long as the job does not request more.
struct Finished {
    std::int64_t items = 0, failed = 0;
    bool baseline = false;  ///< the run was measured against plain decoding
};
std::optional<Finished> read_finished(const RunFolder& folder, const Settings& settings);
/// The same for the settings of the folder's last launch, without checking the model's files.
std::optional<Finished> read_last_finish(const RunFolder& folder);
void write_finished(const RunFolder& folder, const Settings& settings, const Finished& finished);

}  // namespace longhaul::runner
