// One replica: a tensor-parallel group of ranks that generates items in a continuous batch, step by step. The runner
// supplies work and takes results. Every rank of the group runs the same loop over the same tokens.
//
// Every rank computes what follows from the tokens. Everything else (next item, stop requests, checkpoint rounds,
// memory, I/O errors) is decided by the group's first rank and sent in a StepHeader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/checkpoint/identity.hpp"
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

/// Maximum number of prompt rows per pass. The matmuls of a device with its own memory need hundreds of rows.
constexpr std::int64_t prefill_chunk_of(bool own_memory) {
    return own_memory ? 2048 : 256;
}

/// Positions that a sequence may be ahead of what its sliding windows need (WindowUse): a pass of prompt rows, and the
/// tokens decoded while a checkpoint is written.
constexpr std::int64_t window_ahead(std::int64_t prefill_chunk) {
    constexpr std::int64_t decoded_meanwhile = 512;
    return prefill_chunk + KvGroup::margin + decoded_meanwhile;
}

/// Maximum number of logits rows of a scoring pass: 64 MiB of logits, 256 MiB on a device with its own memory; at least
/// 16 rows.
std::int64_t max_logits_rows(std::int64_t vocab_size, bool own_memory);

struct ReplicaOptions {
    std::int64_t batch = 4;
    DraftOptions draft;
    VerifyRule verify;
    std::optional<ScoringWindows> scoring;  ///< if set, nothing is generated: the items' continuations are scored
    /// When scoring, with windows that overlap: FinishedItem::states. An item that is interrupted starts over.
    bool keeps_states = false;
    CheckpointOptions checkpoint;
    /// Maximum bytes of KV per rank. To stay below it, new items wait, and the youngest item is preempted (and later
    /// recomputed).
    std::int64_t kv_memory_bytes = 0;
    /// Additional bytes of KV in host memory, if the device can_use_host_memory(): used when items in flight grow, and
    /// by an item that runs alone. An item is admitted beside others only if device memory holds them all.
    std::int64_t kv_host_bytes = 0;
    std::int64_t prefill_chunk = prefill_chunk_of(false);  ///< maximum prompt tokens per forward pass
    bool prefix_caching = true;                            ///< false: every prompt is computed as a whole
};

/// What the last step of a replica did.
enum class ReplicaPhase { idle, prefill, decode };

/// The numbers of a progress line.
struct ReplicaProgress {
    std::int64_t in_flight = 0;         ///< sequences
    std::int64_t emitted_tokens = 0;    ///< output tokens of this launch
    std::int64_t prefilled_tokens = 0;  ///< prompt tokens computed by this launch
    std::int64_t drafted = 0, accepted = 0, target_calls = 0, decode_tokens = 0;
    std::int64_t mixed_tokens = 0;       ///< the part of decode_tokens from passes that also computed prompt rows
    std::int64_t checkpoint_rounds = 0;  ///< committed in this launch
    std::int64_t unfinished_tokens = 0;  ///< output tokens so far of the items in flight
    std::int64_t kept_tokens = 0;        ///< output tokens that the items of this launch began with
    double oldest_share = 0;             ///< largest output tokens / max_tokens of the items in flight
    ReplicaPhase phase = ReplicaPhase::idle;
    bool mixed = false;  ///< in phase decode: the pass also computed prompt rows
};

/// Callbacks of the loop. All except `poke` and `store` are called on the group's first rank only.
struct ReplicaHooks {
    std::function<std::optional<WorkItem>()> next_work;  ///< takes an item from the shared counter; nullopt: none left
    std::function<void(FinishedItem)> finished;
    std::function<bool()> stop_requested;
    std::function<void(const ReplicaProgress&)> progress;  ///< once per step; must be cheap
    /// Optional: called after every step with an item's new tokens and its total number of output tokens.
    std::function<void(std::int64_t number, std::span<const std::int32_t> tokens, std::int64_t num_output)> emitted;
    std::function<void(const std::string&)>
        damaged;                       ///< optional: called with a line about an unusable checkpoint file
    std::function<void()> poke;        ///< every rank, every step and layer: heartbeat, MPI progress
    CheckpointStore* store = nullptr;  ///< every rank: checkpoints of earlier launches; may be null
};

struct ReplicaOutcome {
    bool stopped = false;          ///< ended by a stop request; everything in flight is in a checkpoint
    std::string checkpoint_error;  ///< "" or the message of a StorageError (exit code 74)
    ReplicaProgress progress;
    double decode_seconds = 0, prefill_seconds = 0,
           mixed_seconds = 0;  ///< of steps that only decode, only prefill, both
    double checkpoint_stall_seconds = 0, checkpoint_write_seconds = 0;
    std::int64_t calls_without_drafts = 0;  ///< the part of progress.target_calls without draft nodes
    // The time of all steps, by activity.
    double draft_seconds = 0;    ///< growing trees and feeding the drafter
    double forward_seconds = 0;  ///< the target's forward passes
    double verify_seconds = 0;   ///< the rest: logits pipeline, verification, moving accepted KV
};

class Replica {
  public:
    /// Collective over `group`. Throws UsageError for an unknown draft method or an invalid tree.
    Replica(Model& model, Group& group, const Tokenizer& tokenizer, ReplicaOptions options, ReplicaHooks hooks);
    ~Replica();

    /// Generates until no work is left or a stop is requested. Collective.
    ReplicaOutcome run();

    /// First rank: the results of these items are durable. Their checkpoint files are removed once no other item needs
    /// them.
    void results_durable(std::span<const std::int64_t> item_numbers);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
