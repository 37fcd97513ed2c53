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
#include <string>
#include <vector>

#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/restored_item.hpp"

namespace longhaul::engine {

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

}  // namespace longhaul::engine
