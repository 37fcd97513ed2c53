// Checkpoints: what unfinished items need to go on, as immutable HDF5 files (design.md, "Run folder"; the file formats
// are described in engine/checkpoint/FORMAT.md).
//
//   R-EPOCH-ROUND.h5     the commit of replica R: for each item in flight what was added since the commit before it,
//   and
//                        the names, sizes and checksums of the KV files of this round. It is published last, by the
//                        group's first rank: a round exists when its commit does.
//   R-EPOCH-ROUND.T.h5   rank T of the group: new keys and values of all its items, [layer, kv_head, token, head_dim]
//
// Nothing is ever changed in place. Files are built in memory (HDF5's core driver: a full disk cannot hurt the
// library), written beside their place, fsynced, renamed, and the folder is fsynced. HDF5 calls are serialised by one
// mutex inside this room. Anything damaged is found by a checksum before HDF5 opens it, and costs recomputation only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/options.hpp"
#include "engine/draft/draft_state.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

inline constexpr int checkpoint_format_version = 3;

/// What one round adds to one item.
struct ItemDelta {
    std::string key;              ///< unique in the job: id and sample, as the runner makes it
    std::string previous_commit;  ///< file name of the commit that holds this item's round before; "" for the first
    std::int64_t prompt_tokens = 0;
    std::int64_t first_token = 0;      ///< output tokens before this round
    std::vector<std::int32_t> tokens;  ///< output tokens added by this round
    /// As many words for each of `tokens`, empty without `logprobs` (engine/sampling/log_softmax.hpp); opaque here.
    std::vector<std::int32_t> logprobs{};
    std::int64_t kv_begin = 0;  ///< positions [kv_begin, kv_end) are in this round's KV files; equal under `recompute`
    std::int64_t kv_end = 0;
    DrafterState drafter;    ///< rows changed since the round before
    std::string statistics;  ///< JSON of cumulative counters; opaque here
};

/// A KV file as its commit names it.
struct KvFile {
    std::string name;
    std::uint64_t num_bytes = 0;
    std::uint64_t checksum = 0;      ///< XXH3-64 of the whole file
    std::int64_t first_kv_head = 0;  ///< global
    std::int64_t num_kv_heads = 0;
};

struct Commit {
    std::string name;  ///< its own file name
    CheckpointIdentity identity;
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::vector<ItemDelta> items;
    std::vector<KvFile> kv_files;
};

/// Reads positions of one item out of the device, heads by their number on this rank (Device::kv_export_box).
using KvExport = std::function<void(const kernels::KvBox& box, std::byte* to, std::size_t head_stride)>;

struct KvSource {
    std::string key;  ///< item
    std::int64_t kv_begin = 0, kv_end = 0;
    KvExport read;  ///< called from the writer thread; keeps alive what it reads
};

std::string commit_name(std::int64_t replica, std::int64_t epoch, std::int64_t round);
std::string kv_file_name(std::int64_t replica, std::int64_t epoch, std::int64_t round, int rank);

/// Writes `bytes` under `folder`/`name`: temporary, fsync, rename, fsync of the folder. Never replaces: an existing
/// name is a logic error. Throws StorageError; then nothing is visible under `name`.
void write_durable(const std::filesystem::path& folder, const std::string& name, const void* bytes,
                   std::size_t num_bytes);

/// Builds and publishes one KV file; heads [first_kv_head, first_kv_head + num_kv_heads) of the model, read by local
/// index.
KvFile write_kv_file(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                     std::int64_t first_kv_head, std::int64_t num_kv_heads, const std::vector<KvSource>& items);

/// Publishes a commit (`commit.name` is its file).
void write_commit(const std::filesystem::path& folder, const Commit& commit);

/// Reads and verifies one commit. Throws InputError naming file and dataset.
Commit read_commit(const std::filesystem::path& path);

/// An item as the checkpoints have it. Positions [0, kv_tokens) can be read with `read_kv`.
struct RestoredItem {
    std::string key;
    std::string last_commit;  ///< newest commit used: the `previous_commit` of the item's next round
    std::int64_t prompt_tokens = 0;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t>
        logprobs{};                     ///< of `tokens`; whether they are as many as the job wants, the caller checks
    std::vector<DrafterState> drafter;  ///< oldest first
    std::string statistics;
    std::int64_t kv_tokens = 0;  ///< contiguous intact prefix
    /// Ends of the stretches that lie in one round's files; the last is kv_tokens. Reading stretch by stretch, all
    /// layers and heads of one before the next, opens each file once.
    std::vector<std::int64_t> kv_ends;
    std::vector<std::string> damage;  ///< one line a damaged or missing file met, naming file and dataset
};

/// All that `folder` holds of one job, verified lazily.
class CheckpointStore {
  public:
    /// Reads every commit in `folder` (a missing folder is empty). Commits of another identity or of a newer format
    /// throw InputError naming what differs; damaged ones are skipped and reported in `damage()`. `max_epoch`: commits
    /// of later epochs are ignored (what a stale launch still writes). Chains are assembled per item: the longest
    /// intact prefix wins (most output tokens, then most KV, then newest epoch and round). One thread at a time may use
    /// a store.
    CheckpointStore(std::filesystem::path folder, const CheckpointIdentity& identity, std::int64_t max_epoch);
    ~CheckpointStore();
    CheckpointStore(CheckpointStore&&) noexcept;

    /// Keys of items that have a checkpoint, with tokens known (prompt not counted).
    [[nodiscard]] const std::map<std::string, std::int64_t>& items() const;
    [[nodiscard]] const std::vector<std::string>& damage() const;

    /// Verifies the KV files of the item's chain and returns what can be used. nullopt where there is none (the reason,
    /// if there was something once, is then added to `damage()`). Tokens are not negative; whether the vocabulary has
    /// them is for the caller to check, as is whether `prompt_tokens` is still the length of the prompt.
    [[nodiscard]] std::optional<RestoredItem> restore(const std::string& key);

    /// Called after every megabyte that `restore` verifies: long items are gigabytes, and others wait for a sign of
    /// life.
    void set_progress(std::function<void()> progress);

    /// Reads positions [first, first + count) of one layer and global KV head, [count, head_dim]; within what `restore`
    /// gave. Throws InputError where a file became unreadable since.
    void read_kv(const std::string& key, std::int64_t layer, std::int64_t kv_head, bool values, std::int64_t first,
                 std::int64_t count, std::byte* to);

    /// Removes commits of which no item is in `unfinished`, with their KV files, and of epochs before `epoch` what no
    /// commit claims: temporaries and KV files of rounds that were never published. A file that an unfinished item's
    /// chain needs is kept; damaged commits stay until nothing is unfinished. Never throws: what cannot be removed
    /// stays.
    void remove_unneeded(const std::vector<std::string>& unfinished, std::int64_t epoch) noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// One round as handed to the writer thread of a rank.
struct RoundJob {
    std::int64_t round = 0;
    std::string kv_name;  ///< "" when this rank writes no KV (recompute, or its heads belong to a lower rank)
    std::int64_t first_kv_head = 0, num_kv_heads = 0;
    std::vector<KvSource> kv;
};

/// Result of one piece of writer work.
struct RoundResult {
    std::int64_t round = 0;
    bool committed = false;  ///< the commit is durable; false for a KV file, and for a commit that failed
    std::optional<KvFile> kv_file;
    std::string error;  ///< "" = good; else the StorageError's line. The round is void; nothing older is hurt.
    double seconds = 0;
};

/// The one thread of a rank that writes checkpoints, beside decoding. Calls no MPI. Takes no signals. Makes the folder
/// if it is missing.
class CheckpointWriter {
  public:
    CheckpointWriter(std::filesystem::path folder, CheckpointIdentity identity);
    ~CheckpointWriter();  ///< finishes the piece under way and the removals, drops the rest

    void submit(RoundJob job);   ///< KV file of this rank
    void submit(Commit commit);  ///< the commit; first rank only, after all ranks' KV files are durable
    /// Files no longer needed, commits first; in turn with the rest. No result: what cannot be removed stays.
    void remove(std::vector<std::string> names);
    std::vector<RoundResult> poll();  ///< finished pieces, in order; never waits
    void wait_idle();                 ///< until everything submitted is finished

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
