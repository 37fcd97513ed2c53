// The run folder: where things lie in it, and which job it belongs to. Layout: design.md, "Run folder"; besides that
//
//   RUN/launches/EPOCH.json        one a launch: the lease (lease.hpp), and EPOCH.ended.json when it said goodbye
//   RUN/identity.json              what decides the results: keys, fingerprints; a resume must agree
//   RUN/finished.json              how far the job had been raised when all of it was done
//   RUN/references.jsonl           the data's right answers, when all of it was done: what scores compare with
//   RUN/summary.txt, summary.json  the summary table of the last launch that got to its end, and for programs
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

    /// Throws UsageError where no run can be: the folder holds something else, or cannot be written. Writes nothing.
    void must_be_usable() const;

    /// Makes the folders of a run, after must_be_usable.
    void create() const;

    /// Throws UsageError where the folder holds something else than a run that is to come.
    void must_be_new() const;

    /// Whether a launch has been here.
    [[nodiscard]] bool is_begun() const;

    /// Throws UsageError where there is no run in the folder.
    void must_exist() const;

    /// The job as its last launch resolved it. Throws UsageError.
    [[nodiscard]] Settings settings() const;
};

/// In the folder of a sweep (sweep_folder.hpp), whose runs are the folders in it.
constexpr const char* sweep_marker = "sweep.cfg";

/// In the folder of a divided job (shard_folder.hpp), whose shards are run folders in it.
constexpr const char* shards_marker = "shards.json";

/// "OUTPUT/shard-2-of-8"
std::filesystem::path shard_path(const std::filesystem::path& output, const Shard& shard);

/// The run folder of a job: its `output`, or that of its shard in there.
RunFolder run_folder_of(const Settings& settings);

/// What decides the results, besides the keys: name -> value, "model" -> "91c3…".
using Fingerprints = std::map<std::string, std::string>;

/// Compares the job with what the folder was started with; what only one side knows is not compared (the model's
/// fingerprint is known late). Throws UsageError naming the first key that differs, and both values.
void check_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints);

/// The same for a run beside it, of another shard of the same job: that may be extended sooner or later.
void check_same_job(const RunFolder& other, const Settings& settings, const Fingerprints& fingerprints);

/// Records keys and fingerprints, how far `limit`, `samples` and `max-tokens` are raised now, and where launches with
/// --allow-device-change were of another kind of device than those before, the kinds in their order.
void write_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints);

/// Kinds of device that the folder's launches were of, in their order; empty where nothing is recorded.
std::vector<std::string> device_kinds(const RunFolder& folder);

/// The fingerprints that `write_identity` recorded. Throws InputError where there are none.
Fingerprints read_fingerprints(const RunFolder& folder);

/// Hash of the identity: what checkpoints carry as their job.
std::string identity_hash(const Settings& settings, const Fingerprints& fingerprints);

/// Names, sizes and times of a model folder's files, hashed: says cheaply that nothing was touched.
std::string quick_fingerprint(const std::filesystem::path& model);

/// 16 hexadecimal digits.
std::string hex(std::uint64_t value);

/// What RUN/finished.json says; it counts while the job asks for no more.
struct Finished {
    std::int64_t items = 0, failed = 0;
    bool baseline = false;  ///< measured against plain decoding
};
std::optional<Finished> read_finished(const RunFolder& folder, const Settings& settings);
/// The same of what the folder's last launch was asked for, whatever became of the model's files since.
std::optional<Finished> read_last_finish(const RunFolder& folder);
void write_finished(const RunFolder& folder, const Settings& settings, const Finished& finished);

}  // namespace longhaul::runner
