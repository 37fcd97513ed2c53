// One replica: a tensor-parallel group of ranks that generates items, a batch in flight, step by step. The runner gives
// it work and takes its results; every rank of the group runs the same loop over the same tokens.
//
// What follows from tokens every rank computes itself. Everything else (which item comes next, a stop request, whether
// a checkpoint is due, memory, I/O errors) is decided by the group's first rank and travels in a step header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/checkpoint/options.hpp"
#include "engine/draft/draft_options.hpp"
#include "engine/replica/work_item.hpp"
#include "engine/scoring.hpp"
#include "engine/verify/rule.hpp"

namespace longhaul::engine {

class CheckpointStore;
class Model;
class Group;
class Tokenizer;

/// Rows of prompts that a pass takes at most: products of a device with memory of its own want hundreds at a time.
constexpr std::int64_t prefill_chunk_of(bool own_memory) {
    return own_memory ? 2048 : 256;
}

/// Rows of logits that a scoring pass may make: some 64 MiB; 256 of a device that wants hundreds of rows.
std::int64_t max_logits_rows(std::int64_t vocab_size, bool own_memory);

struct ReplicaOptions {
    std::int64_t batch = 4;
    DraftOptions draft;
    VerifyRule verify;
    std::optional<ScoringWindows> scoring;  ///< nothing is generated: the items' continuations are scored
    CheckpointOptions checkpoint;
    std::int64_t kv_memory_bytes =
        0;  ///< a rank's KV at most; admission waits, and the youngest item is put back, rather than exceed it
    /// Beyond that of the host's memory, where the device can_use_host_memory(): for what items in flight grow to, and
    /// for one alone. No item is admitted beside others but where the device's own memory holds them all.
    std::int64_t kv_host_bytes = 0;
    std::int64_t prefill_chunk = prefill_chunk_of(false);  ///< prompt tokens a forward pass takes at most
};

/// What a progress line shows.
struct ReplicaProgress {
    std::int64_t in_flight = 0;         ///< sequences
    std::int64_t emitted_tokens = 0;    ///< output tokens of this launch
    std::int64_t prefilled_tokens = 0;  ///< prompt tokens computed by this launch
    std::int64_t drafted = 0, accepted = 0, target_calls = 0, decode_tokens = 0;
    std::int64_t mixed_tokens = 0;       ///< of decode_tokens, those of passes that computed parts of prompts too
    std::int64_t checkpoint_rounds = 0;  ///< committed in this launch
    std::int64_t unfinished_tokens = 0;  ///< output tokens so far of the items in flight
    double oldest_share = 0;             ///< output tokens / max_tokens of the item furthest on
    std::string phase;                   ///< "prefill", "decode", "idle"
    bool mixed = false;                  ///< "decode", and the pass computed parts of prompts too
};

/// Calls out of the loop. All but `poke` and `store` are called on the group's first rank only.
struct ReplicaHooks {
    std::function<std::optional<WorkItem>()> next_work;  ///< nullopt: none left. Takes from the shared counter
    std::function<void(FinishedItem)> finished;
    std::function<bool()> stop_requested;
    std::function<void(const ReplicaProgress&)> progress;  ///< once a step and prefill chunk; must be cheap
    /// Optional: after every step, an item's new tokens and how many it has now.
    std::function<void(std::int64_t index, std::span<const std::int32_t> tokens, std::int64_t num_output)> emitted;
    std::function<void(const std::string&)> damaged;  ///< optional: a line on a checkpoint file that cannot be used
    std::function<void()> poke;                       ///< every rank, every step and chunk: heartbeat, MPI progress
    CheckpointStore* store = nullptr;                 ///< every rank: what earlier launches left; may be null
};

struct ReplicaOutcome {
    bool stopped = false;          ///< ended by a stop request, everything in flight is in a checkpoint
    std::string checkpoint_error;  ///< "" or the line of a StorageError: exit code 74
    ReplicaProgress progress;
    double decode_seconds = 0, prefill_seconds = 0, mixed_seconds = 0;  ///< of steps that do the one, the other, both
    double checkpoint_stall_seconds = 0, checkpoint_write_seconds = 0;
    std::int64_t calls_without_drafts = 0;  ///< of progress.target_calls
    double draft_seconds = 0;               ///< of all three: making trees and feeding the drafter
    double forward_seconds = 0;             ///< the target's passes
    double verify_seconds = 0;              ///< the rest: logits pipeline, verification, moving accepted KV
};

class Replica {
  public:
    /// Collective over `group`. Throws UsageError for a draft method or tree it does not know.
    Replica(Model& model, Group& group, const Tokenizer& tokenizer, ReplicaOptions options, ReplicaHooks hooks);
    ~Replica();

    /// Generates until no work is left or a stop was asked for. Collective.
    ReplicaOutcome run();

    /// Results of these items are on disk: their checkpoint files may be removed once no other item needs them. First
    /// rank.
    void results_durable(std::span<const std::int64_t> item_indices);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
