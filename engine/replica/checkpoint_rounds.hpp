// Checkpoint rounds of one replica: what goes into a round, when its commit is written, and when its files may be
// removed. Driven by the replica's loop; each rank's CheckpointWriter writes the files while decoding continues.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/options.hpp"
#include "engine/checkpoint/writer.hpp"
#include "engine/model/model.hpp"
#include "engine/replica/sequence.hpp"
#include "engine/replica/step_header.hpp"

namespace longhaul::engine {

/// Maximum bytes of drafter rows and tensors per commit: half of what a reader accepts for a whole commit.
inline constexpr std::int64_t max_drafter_bytes = std::int64_t{512} << 20;

/// Charges `state` to the budget and returns it; if the budget is spent, returns a state of unknown kind, so that the
/// drafter is rebuilt from the tokens on resume.
[[nodiscard]] DrafterState within_budget(DrafterState state, std::int64_t& bytes_left);

class CheckpointRounds {
  public:
    CheckpointRounds(const CheckpointOptions& options, const Model& model, const Drafter& drafter, Group& group);

    [[nodiscard]] bool enabled() const { return writer_ != nullptr; }
    [[nodiscard]] bool active() const { return active_; }

    /// Adds tokens (output, and prompt while prefilling) computed since the last round began.
    void count_tokens(std::int64_t tokens) {
        tokens_since_ += tokens;
        tokens_since_states_ += tokens;
    }

    /// Adds bytes that a commit stores for its items in addition to tokens.
    void count_record_bytes(std::int64_t bytes) { record_bytes_since_ += bytes; }

    /// First rank: whether a round should begin now, and what it stores: no KV above `checkpoint-quota`, and states
    /// only where they are worth their size. What follows the last states is computed again after a crash.
    [[nodiscard]] bool due() const;
    /// Positions that may be added at once before the next round's file gets too large: 0 while a round is written, if
    /// it already is. `begins`: after a round that begins in this step, which may leave some positions to the next one.
    [[nodiscard]] std::int64_t room_for_positions(bool begins) const;
    [[nodiscard]] RoundContents next_contents() const;

    /// Begins a round with all `sequences` that have something new. Called on all ranks at the same step; no round may
    /// be active.
    void begin(std::span<Sequence* const> sequences, RoundContents contents);

    /// Collects the writers' results on the first rank. Collective. Afterwards `active()` on the first rank says
    /// whether the round is still being written.
    void progress();

    /// Waits until the active round has ended and calls `poke` meanwhile. Collective. Returns false on every rank if
    /// the storage failed: another round would build on a missing one.
    bool drain(const std::function<void()>& poke);

    /// First rank: the results of these items are durable. Removes the files that no unfinished item of this launch
    /// needs.
    void results_durable(std::span<const std::int64_t> item_numbers);

    /// First rank: "" or the storage error; no round begins after one.
    [[nodiscard]] const std::string& error() const { return error_; }
    [[nodiscard]] std::int64_t committed_rounds() const { return committed_rounds_; }
    [[nodiscard]] double write_seconds() const { return write_seconds_; }

  private:
    struct File {  // a commit of this launch: the items that need it, and its KV files
        std::set<std::int64_t> items;
        std::vector<std::string> kv_files, state_files;
        std::int64_t kv_bytes = 0;     ///< of both
        std::int64_t state_bytes = 0;  ///< of state_files
    };

    [[nodiscard]] bool keeps_kv(const Sequence& sequence, bool store_kv) const;
    [[nodiscard]] ItemDelta delta_of(Sequence& sequence, RoundContents contents) const;
    [[nodiscard]] std::int64_t max_positions() const;
    /// Positions of which a round may leave some to the next one.
    [[nodiscard]] std::int64_t num_unsaved(const Sequence& sequence, RoundContents contents) const;
    [[nodiscard]] std::int64_t state_bytes() const;
    void add_layer_kv(Sequence& sequence, RoundJob& job) const;
    void add_states(Sequence& sequence, RoundJob& job);
    void submit_kv(RoundJob target, RoundJob states, RoundJob layer);
    void take(const RoundResult& result);
    void forget_if_unneeded(const std::string& commit);
    void forget_old_states();
    void forget_states_if_unneeded(const std::string& commit);

    CheckpointOptions options_;
    const Model& model_;
    std::optional<DraftLayerKvKind> layer_kind_;  ///< of the drafter
    std::int64_t position_bytes_;                 ///< of keys and values, the drafter's included
    Group& group_;
    std::unique_ptr<CheckpointWriter> writer_;

    std::int64_t round_ = 0;
    bool active_ = false;
    Commit commit_;  // first rank: of the active round
    int missing_kv_files_ = 0;
    std::int64_t tokens_since_ = 0, record_bytes_since_ = 0;
    std::int64_t tokens_since_states_ = 0, num_states_ = 0;  ///< since, and in, the last round that stored states
    std::chrono::steady_clock::time_point last_begin_ = std::chrono::steady_clock::now(), last_states_ = last_begin_;

    std::string error_;
    std::int64_t committed_rounds_ = 0;
    std::int64_t kv_bytes_on_disk_ = 0;
    double write_seconds_ = 0;
    std::map<std::string, File> files_;
    std::map<std::int64_t, std::vector<std::string>> commits_of_item_;
    std::map<std::int64_t, std::deque<std::string>> states_of_item_;  ///< commits whose states are kept, oldest first
    std::vector<std::int64_t> with_states_;                           ///< items whose states the active round stores
};

}  // namespace longhaul::engine
