// The interface of draft methods: a Drafter proposes a token tree per sequence and step, which the target verifies.
// Called by the replica's step loop. A drafter does not depend on the verification rule or the target's device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/draft_options.hpp"
#include "engine/draft/draft_state.hpp"
#include "engine/model/pass.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/params.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

class Model;

/// Keys and values in a drafter's own layer, of positions first … first + kv->committed() - 1 of the text. Checkpoints
/// store them: they follow from hidden states of the target, not from tokens.
struct DraftLayerKv {
    std::int64_t first = 0;
    std::shared_ptr<KvSequence> kv{};  ///< shared with a checkpoint that is being written; nullptr: it has none
};

/// What such keys and values of a drafter are, the same for all sequences.
struct DraftLayerKvKind {
    std::string kind;                             ///< identifies the layer; that of every DrafterState of its sequences
    std::int64_t num_kv_heads = 0, head_dim = 0;  ///< of the whole layer
    std::int64_t first_kv_head = 0, num_kv_heads_here = 0;  ///< of this rank
    bool writes_kv = true;                                  ///< whether this rank writes them to checkpoints
};

/// The state of a drafter for one sequence.
class SequenceDrafter {
  public:
    virtual ~SequenceDrafter() = default;

    /// Starts with `context`: the prompt and the output of earlier launches. Called once, unless `restore` succeeded.
    virtual void begin(std::span<const std::int32_t> /*context*/) {}

    /// Whether the drafter has to observe more of `context` before it can propose.
    [[nodiscard]] virtual bool lags(std::span<const std::int32_t> /*context*/) const { return false; }

    /// After a resume: number of tokens, directly before the last one of `context`, whose hidden states the drafter
    /// must observe before it can propose.
    [[nodiscard]] virtual std::int64_t missing_states(std::span<const std::int32_t> /*context*/) const { return 0; }

    /// Called when the sequence is preempted (it will be recomputed from its tokens): frees memory and drops all state.
    virtual void release() {}

    /// State changed since the last call, for a checkpoint; `kind` is "" if there is nothing to store.
    virtual DrafterState take_delta() { return {}; }

    /// Restores the state for `context` from the deltas of its checkpoints, oldest first. False if they are of another
    /// kind or do not fit: the caller then makes a new SequenceDrafter and calls `begin`.
    virtual bool restore(std::span<const DrafterState> /*deltas*/, std::span<const std::int32_t> /*context*/) {
        return false;
    }

    [[nodiscard]] virtual DraftLayerKv layer_kv() const { return {}; }

    /// Called after `restore` if a checkpoint has its keys and values of positions [first, end). Returns the pages that
    /// the caller reads them into, and commits; nullptr if it cannot go on from there.
    virtual KvSequence* restore_layer_kv(std::int64_t /*first*/, std::int64_t /*end*/) { return nullptr; }

    // Prefix caching: a sequence may take over what another one, of the same drafter, has of the tokens with which both
    // texts begin. A drafter that takes over nothing computes it.

    /// Number of tokens at the beginning of `context` whose rows the target need not compute for this drafter, if it
    /// takes over what another sequence has of them.
    [[nodiscard]] virtual std::int64_t max_copied(std::span<const std::int32_t> context) const {
        return std::ssize(context) - 1 - missing_states(context);
    }
    /// Of the first `count` tokens of its text, with which another text begins, how many the other may copy.
    [[nodiscard]] virtual std::int64_t prefix_for_others(std::int64_t count) const { return count; }
    /// Copies what `source` has of the first `count` tokens of `context`, all that its own text has. Throws
    /// std::bad_alloc.
    virtual void copy_prefix(const SequenceDrafter& /*source*/, std::span<const std::int32_t> /*context*/,
                             std::int64_t /*count*/) {}
    /// Frees all but what others may copy of the first `count` tokens, except what a checkpoint writer reads. False if
    /// they copy nothing.
    virtual bool keep_prefix(std::int64_t /*count*/) { return false; }

    /// Whether a restored state is that of a sequence that was not interrupted. A state that is not so, such as one
    /// without entries that were dropped from full lists, is not restored where drafts decide the text.
    [[nodiscard]] virtual bool restores_exactly() const { return false; }
};

/// The result of a target pass for one sequence, or for a prompt chunk of it.
struct Observation {
    SequenceDrafter* sequence = nullptr;
    std::span<const std::int32_t> context;  ///< all its tokens, the new ones included
    std::int64_t num_new = 0;               ///< number of tokens at the end of `context` that this pass emitted
    /// Accepted nodes of the last proposed tree, in order: they carry the first of the new tokens. The last new token
    /// has no node unless the item ended within the accepted nodes.
    std::span<const std::int32_t> path;
    std::int64_t rejected_level = 0;  ///< level of the tree whose nodes were all rejected; 0: none
    /// The sequence's rows of the pass, in every tap: the nodes of its tree in order, or the tokens from
    /// `first_position` on (a prompt chunk).
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_position = -1;  ///< -1: the rows are tree nodes
    std::int64_t max_catch_up = 0;     ///< tokens of `context` that the drafter may compute now if it lags

    /// Row of the second-to-last token of `context`; -1 if the pass does not contain it.
    [[nodiscard]] std::int64_t row_before_root() const;
};

/// The properties of an item that a drafter may use.
struct DraftItem {
    std::string id;
    std::int64_t sample = 0;
    std::int64_t prompt_tokens = 0;
};

/// Request for a tree of one sequence of the batch.
struct Proposal {
    SequenceDrafter* sequence = nullptr;
    std::span<const std::int32_t> context;     ///< its last token is the root
    Noise noise;                               ///< the token at depth d is drawn at position context.size() + d - 1
    const SamplingParams* sampling = nullptr;  ///< the target's
    /// The target's keys and values of `context` without the root. Scratch slots may be used until the target's pass,
    /// which writes to the first max_nodes() of them.
    KvSequence* kv = nullptr;
    std::int64_t text_depth = 0;  ///< levels until the text must end
    /// At most text_depth, and the tree size chosen for this step; depth 0: drafting with models pauses.
    std::int64_t max_depth = 0, max_width = TreeLimits::none;
    std::int64_t method = 0;  ///< TreeLimits::method; the same for all proposals of a step
    // If Drafter::adapts:
    double min_probability = 0;     ///< n-grams with a smaller acceptance estimate do not pay
    TreePrices prices{};            ///< likewise, drafts of models
    TokenTree* tree = nullptr;      ///< in: only its root; out: the tree
    std::int64_t model_passes = 0;  ///< out: passes of draft models, of copies of the target or of heads
};

/// A draft method.
class Drafter {
  public:
    virtual ~Drafter() = default;
    [[nodiscard]] virtual std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) = 0;
    /// Grows the trees of the batch. Collective: every rank of the group calls it with the same proposals.
    virtual void propose(std::span<Proposal> proposals) = 0;
    /// Called after every target pass for the sequences that took part in it or lag. Collective: called on every rank
    /// of the group. `taps`: the hidden states requested by taps(), for all rows of the pass.
    virtual void observe(std::span<const Observation> /*observations*/, std::span<const HiddenStates> /*taps*/) {}
    /// The hidden states it needs from each pass, in the order of observe()'s `taps`; Tap::rows is left empty.
    [[nodiscard]] virtual std::vector<Tap> taps() const { return {}; }
    /// Maximum number of nodes of a tree, root excluded; 0: autoregressive decoding.
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
    /// Maximum number of scratch slots that a sequence of this size uses, in its drafts or in the target's pass.
    [[nodiscard]] virtual std::int64_t scratch_slots(const TextSize& /*text*/) const { return max_nodes(); }
    /// Whether the tree size is left to the program: nodes that do not pay (DraftEconomy) are then left out.
    [[nodiscard]] virtual bool adapts() const { return false; }
    /// Bytes of draft KV cache per token of a sequence on this rank.
    [[nodiscard]] virtual std::int64_t bytes_per_token() const { return 0; }
    /// Of SequenceDrafter::layer_kv; nullopt: it has none.
    [[nodiscard]] virtual std::optional<DraftLayerKvKind> layer_kv_kind() const { return {}; }
    /// Bytes for a drafter whose cache does not grow with the text: bytes of each sequence.
    [[nodiscard]] virtual std::int64_t bytes_per_sequence() const { return 0; }
};

/// The inputs of a drafter's factory.
struct DraftContext {
    const DraftOptions& options;
    Model* target = nullptr;  ///< may be nullptr (tests) for methods that do not use the target
};

/// A drafter that drafts nothing: method `ar`, and the fallback of a method that has nothing to draft from.
std::unique_ptr<Drafter> make_plain_drafter(const DraftContext& context);

/// Maximum number of nodes of the trees that make_drafter(options) grows, for plans made before anything is loaded.
std::int64_t max_tree_nodes(const DraftOptions& options, const TreeShape& shape);

/// Makes the drafter of `options.method`. Throws UsageError that names the wrong key.
std::unique_ptr<Drafter> make_drafter(const DraftContext& context);

}  // namespace longhaul::engine
