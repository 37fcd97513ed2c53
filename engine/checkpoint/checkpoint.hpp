// Checkpoints: the state that unfinished items need to resume, as immutable HDF5 files (file
// formats: engine/checkpoint/FORMAT.md). CheckpointRounds writes them, the replica restores from them.
//
//   R-EPOCH-ROUND.h5     the commit of replica R: for each item in flight what was added since its previous commit, and
//                        the names, sizes and checksums of this round's KV files. Published last, by the group's first
//                        rank: a round exists if its commit does.
//   R-EPOCH-ROUND.T.h5   the KV file of rank T of the group: new keys and values of all items, [layer, kv_head, token,
//                        head_dim]
//   R-EPOCH-ROUND.T.draft.h5   likewise, those of a drafter that has a layer of its own
//   R-EPOCH-ROUND.T.state.h5   likewise, the states of linear attention behind the last position of each item
//
// Files never change. They are built in memory (HDF5's core driver, so a full disk cannot corrupt the library's state),
// written under a temporary name, fsynced, renamed, and the folder is fsynced. One mutex inside this folder serialises
// all HDF5 calls. A checksum detects damage before HDF5 opens a file; damage costs only recomputation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/options.hpp"
#include "engine/draft/draft_state.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

inline constexpr int checkpoint_format_version = 3;

/// The additions of one round to one item.
struct ItemDelta {
    std::string key;              ///< unique in the job; the runner makes it from id and sample
    std::string previous_commit;  ///< file name of the commit with this item's previous round; "" for the first
    std::int64_t prompt_tokens = 0;
    std::int64_t first_token = 0;      ///< output tokens before this round
    std::vector<std::int32_t> tokens;  ///< output tokens added by this round
    /// The same number of words for each of `tokens`; empty without `logprobs` (engine/sampling/log_softmax.hpp).
    /// Opaque here.
    std::vector<std::int32_t> logprobs{};
    std::int64_t kv_begin = 0;  ///< positions [kv_begin, kv_end) are in this round's KV files; equal under `recompute`
    std::int64_t kv_end = 0;
    DrafterState drafter;    ///< rows changed since the previous round
    std::string statistics;  ///< JSON of cumulative counters; opaque here
};

/// A KV file, as recorded in its commit.
struct KvFile {
    /// Whose keys and values: the target's, those of a drafter's own layer, or the states of linear attention.
    enum class Of : std::uint8_t { target, drafter, states };

    std::string name;  ///< kv_file_name
    std::uint64_t num_bytes = 0;
    std::uint64_t checksum = 0;      ///< XXH3-64 of the whole file
    std::int64_t first_kv_head = 0;  ///< global index
    std::int64_t num_kv_heads = 0;

    [[nodiscard]] Of of() const;
};

struct Commit {
    std::string name;  ///< file name of the commit
    CheckpointIdentity identity;
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::vector<ItemDelta> items;
    std::vector<KvFile> kv_files;  ///< also those of a drafter
};

/// Copies positions of one item from the device to the host (Device::kv_export_box). Layers are indexed within their
/// group, heads within this rank.
using KvExport =
    std::function<void(std::size_t group, const kernels::KvBox& box, std::byte* to, std::size_t head_stride)>;

struct KvSource {
    std::string key;  ///< of the item
    std::int64_t kv_begin = 0, kv_end = 0;
    KvExport read;  ///< called from the writer thread; keeps the pages it reads alive
};

std::string commit_name(std::int64_t replica, std::int64_t epoch, std::int64_t round);
std::string kv_file_name(std::int64_t replica, std::int64_t epoch, std::int64_t round, int rank,
                         KvFile::Of of = KvFile::Of::target);

/// Writes `bytes` to `folder`/`name`: temporary file, fsync, rename, fsync of the folder. Never replaces a file: throws
/// std::logic_error if `name` exists. Throws StorageError; then nothing is visible under `name`.
void write_durable(const std::filesystem::path& folder, const std::string& name, const void* bytes,
                   std::size_t num_bytes);

/// Builds and publishes one KV file with heads [first_kv_head, first_kv_head + num_kv_heads) of the model. Throws
/// StorageError.
KvFile write_kv_file(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                     std::int64_t first_kv_head, std::int64_t num_kv_heads, const std::vector<KvSource>& items);

/// Publishes a commit under `commit.name`. Throws StorageError.
void write_commit(const std::filesystem::path& folder, const Commit& commit);

/// Reads and verifies one commit. Throws InputError that names file and dataset.
Commit read_commit(const std::filesystem::path& path);

/// An item restored from checkpoints. Positions [0, kv_tokens) can be read with CheckpointStore::read_kv.
struct RestoredItem {
    std::string key;
    std::string last_commit;  ///< newest commit used: the `previous_commit` of the item's next round
    std::int64_t prompt_tokens = 0;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logprobs{};  ///< of `tokens`; the caller checks that their number fits the job
    std::vector<DrafterState> drafter;     ///< oldest first
    std::string statistics;
    std::int64_t kv_tokens = 0;  ///< contiguous intact prefix; of sliding windows and states: see usable_positions
    /// The positions are divided into ranges, each read from the files of one round; these are the ends of the ranges,
    /// the last is kv_tokens. A caller that reads all layers and heads of a range before the next range opens each file
    /// only once.
    std::vector<std::int64_t> kv_ends;
    std::vector<std::int64_t> states_at;  ///< numbers of positions behind which states are stored, ascending
    std::vector<std::string> damage;      ///< one line per damaged or missing file, with file and dataset

    /// The most positions, at most `wanted`, behind which a text can go on: those that its windows need are stored.
    [[nodiscard]] std::int64_t usable_positions(std::int64_t wanted, const CheckpointIdentity& identity) const;
};

/// What checkpoints have of the keys and values in a drafter's own layer: positions [first, end) of an item, all heads.
struct RestoredDraftKv {
    std::int64_t first = 0, end = 0;  ///< equal: nothing
    std::vector<std::string> damage;  ///< as RestoredItem::damage
};

/// The checkpoints of one job in a folder. KV files are verified only when an item is restored.
class CheckpointStore {
  public:
    /// Reads every commit in `folder` (a missing folder counts as empty). Throws InputError that names the difference
    /// if a commit has another identity or a newer format. Damaged commits are skipped and reported in `damage()`.
    /// Commits of epochs after `max_epoch` are ignored (written by a stale launch). Per item the longest intact chain
    /// wins (most output tokens, then most KV, then newest epoch and round). Not thread-safe.
    CheckpointStore(const std::filesystem::path& folder, const CheckpointIdentity& identity, std::int64_t max_epoch);
    ~CheckpointStore();
    CheckpointStore(CheckpointStore&&) noexcept;

    /// Keys of the items that have a checkpoint, with their number of output tokens.
    [[nodiscard]] const std::map<std::string, std::int64_t>& items() const;
    [[nodiscard]] const std::vector<std::string>& damage() const;

    /// Verifies the KV files of the item's chain and returns what is usable. nullopt if nothing is; damage that caused
    /// this is added to `damage()`. Tokens are not negative. The caller checks that they are below the vocabulary size
    /// and that `prompt_tokens` matches the prompt.
    /// `longest_short_text`: if the restored text is longer, keys and values of rounds whose text was not are of no use
    /// (ModelConfig::longest_short_text).
    [[nodiscard]] std::optional<RestoredItem> restore(
        const std::string& key, std::int64_t longest_short_text = std::numeric_limits<std::int64_t>::max());

    /// Sets a function that `restore` calls after every megabyte it verifies: long items take gigabytes, and heartbeats
    /// must continue meanwhile.
    void set_progress(std::function<void()> progress);

    /// Reads rows of an item into `to`, [rows.count, head_dim]. The positions must be within what `restore` returned,
    /// and stored if the group has a window. Throws InputError if a file has become unreadable.
    void read_kv(const std::string& key, const KvRows& rows, std::byte* to);

    /// Reads half of a head's state, the second one as `values`, behind one position: the last before one of
    /// RestoredItem::states_at. Layers count those of linear attention; heads are key heads of the model. Throws
    /// InputError.
    void read_state(const std::string& key, const KvRows& half, float* to);

    /// The last positions without a gap, of those before `end`, that are intact in KV files of a drafter with this
    /// identity (CheckpointIdentity::of_drafter). Files that another drafter wrote are not read. Only for items that
    /// `restore` returned, with the same `longest_short_text`.
    RestoredDraftKv restore_draft_kv(const std::string& key, const CheckpointIdentity& drafter, std::int64_t end,
                                     std::int64_t longest_short_text = std::numeric_limits<std::int64_t>::max());

    /// As read_kv, of the drafter's layer, for positions within what `restore_draft_kv` last returned for the item.
    void read_draft_kv(const std::string& key, const KvRows& rows, std::byte* to);

    /// Of all checkpoint files in the folder. Throws InputError if it cannot be read.
    [[nodiscard]] std::int64_t num_bytes() const;

    /// Removes commits that have no item in `unfinished`, with their KV files. Of epochs before `epoch` it also removes
    /// files without a commit: temporary files and KV files of unpublished rounds. Keeps the files that chains of
    /// unfinished items need, and damaged commits while any item is unfinished. Never throws: files that cannot be
    /// removed stay.
    void remove_unneeded(const std::vector<std::string>& unfinished, std::int64_t epoch) noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// What `check_checkpoints` found in a folder.
struct CheckpointReport {
    std::int64_t num_rounds = 0;                ///< commits of unfinished items
    std::int64_t num_files = 0, num_bytes = 0;  ///< these and their KV files, as far as they are intact
    std::map<std::string, std::int64_t> items;  ///< by key: output tokens that can be restored
    std::vector<std::string> damage;            ///< one line per damaged or missing file
};

/// Reads every commit in `folder` of epochs up to `max_epoch`, and all bytes of the KV files of those that have an item
/// that is not in `done` (item keys): what a resume may need. Writes nothing. Throws InputError if the folder cannot
/// be read.
CheckpointReport check_checkpoints(const std::filesystem::path& folder, std::int64_t max_epoch,
                                   const std::set<std::string>& done);

/// One round's work for the writer thread of a rank: a KV file.
struct RoundJob {
    std::int64_t round = 0;
    CheckpointIdentity identity;  ///< of the target's keys and values, or the drafter's
    std::string kv_name;
    std::int64_t first_kv_head = 0, num_kv_heads = 0;
    std::vector<KvSource> kv;
};

/// Result of one unit of writer work.
struct RoundResult {
    std::int64_t round = 0;
    bool committed = false;  ///< the commit is durable; false for a KV file, and for a commit that failed
    std::optional<KvFile> kv_file;
    std::string
        error;  ///< "" if it succeeded, else the StorageError's message: the round is void, older ones are intact
    double seconds = 0;
};

/// The writer thread of a rank: writes checkpoints while decoding continues. It calls no MPI and blocks all signals.
/// Creates the folder if it is missing.
class CheckpointWriter {
  public:
    explicit CheckpointWriter(std::filesystem::path folder);
    ~CheckpointWriter();  ///< finishes the current unit of work and all removals, drops the rest

    void submit(RoundJob job);   ///< writes a KV file of this rank
    void submit(Commit commit);  ///< writes the commit; first rank only, after all ranks' KV files are durable
    /// Removes files, commits first, in queue order with the other work. No result: files that cannot be removed stay.
    void remove(std::vector<std::string> names);
    std::vector<RoundResult> poll();  ///< finished work, in order; does not wait
    void wait_idle();                 ///< waits until all submitted work is finished

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
