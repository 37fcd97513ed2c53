// Draft methods: what proposes a tree of tokens for the target to verify. A drafter does not know who verifies, nor
// on which device the target runs.
#pragma once

#include <cstdint>
#include <memory>
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

/// A drafter's memory of one sequence.
class SequenceDrafter {
  public:
    virtual ~SequenceDrafter() = default;

    /// The sequence begins with `context`: its prompt, and what earlier launches generated. Called once, unless
    /// `restore` took it back from checkpoints.
    virtual void begin(std::span<const std::int32_t> /*context*/) {}

    /// Whether it lacks so much of `context` that it has to observe more of it before it can propose.
    [[nodiscard]] virtual bool lags(std::span<const std::int32_t> /*context*/) const { return false; }

    /// Tokens before the last one of `context` whose hidden states it has to observe (again) to propose: after a
    /// resume.
    [[nodiscard]] virtual std::int64_t missing_states(std::span<const std::int32_t> /*context*/) const { return 0; }

    /// The sequence waits, and is computed again from its tokens: gives back memory, forgets states.
    virtual void release() {}

    /// Rows changed since the last call, for a checkpoint; `kind` "" when there is nothing to keep.
    virtual DrafterState take_delta() { return {}; }

    /// Takes back what checkpoints hold of `context`, oldest first. false when they are of another kind or do not fit:
    /// the caller then makes a new one and lets it `begin`.
    virtual bool restore(std::span<const DrafterState> /*deltas*/, std::span<const std::int32_t> /*context*/) {
        return false;
    }
};

/// What a target pass brought for one sequence, or a prompt chunk of it.
struct Observation {
    SequenceDrafter* sequence = nullptr;
    std::span<const std::int32_t> context;  ///< all its tokens now
    std::int64_t num_new = 0;               ///< the last of them, emitted by this pass
    /// Nodes of the last proposed tree that are the first of the new tokens, in order; the last new token is none.
    std::span<const std::int32_t> path;
    std::int64_t rejected_level = 0;  ///< level of the tree whose nodes were all rejected; 0: none was
    /// Its rows of the pass, as all taps have them: the nodes of its tree in their order, or the tokens from
    /// `first_position` on (a prompt chunk).
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_position = -1;  ///< -1: nodes of a tree
    std::int64_t max_catch_up = 0;     ///< tokens of `context` that the drafter may compute if it lags

    /// Row of the token before the last one of `context`; -1: it is not in the pass.
    [[nodiscard]] std::int64_t row_before_root() const;
};

/// What a drafter may know of an item.
struct DraftItem {
    std::string id;
    std::int64_t sample = 0;
    std::int64_t prompt_tokens = 0;
};

/// What is asked for one sequence of the batch.
struct Proposal {
    SequenceDrafter* sequence = nullptr;
    std::span<const std::int32_t> context;     ///< its last token is the root
    Noise noise;                               ///< the token at depth d is drawn at position context.size() + d - 1
    const SamplingParams* sampling = nullptr;  ///< the target's
    std::int64_t max_depth = 0, max_width = TreeLimits::none;
    double min_probability = 0;    ///< nodes expected to be accepted with less do not pay (where Drafter::adapts)
    TokenTree* tree = nullptr;     ///< holds its root; grows
    std::int64_t draft_calls = 0;  ///< out: levels that draft models grew, or 1 where a draft came without one
};

/// A draft method.
class Drafter {
  public:
    virtual ~Drafter() = default;
    [[nodiscard]] virtual std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) = 0;
    /// Grows the trees of the batch. Every rank of the group, with the same proposals.
    virtual void propose(std::span<Proposal> proposals) = 0;
    /// After every target pass, for the sequences that took part in it or lag. Every rank of the group.
    /// `taps`: what taps() asked for, of all rows of the pass.
    virtual void observe(std::span<const Observation> /*observations*/, std::span<const HiddenStates> /*taps*/) {}
    /// What it wants to observe of a pass, in this order; the rows are left open.
    [[nodiscard]] virtual std::vector<Tap> taps() const { return {}; }
    /// Greatest number of nodes under the root that a tree has; 0: autoregressive decoding.
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
    /// Whether the user left the tree's size to us: nodes that do not pay (DraftEconomy) are then left out.
    [[nodiscard]] virtual bool adapts() const { return false; }
    /// Bytes of keys and values that it holds for a token of a sequence on this rank.
    [[nodiscard]] virtual std::int64_t bytes_per_token() const { return 0; }
};

/// What a drafter is made from.
struct DraftContext {
    const DraftOptions& options;
    Model* target = nullptr;  ///< nullptr: whoever verifies has none (tests); for methods that need no part of it
};

/// No drafts: what `ar` is, and what a method does that has nothing to draft from.
std::unique_ptr<Drafter> make_plain_drafter(const DraftContext& context);

/// Makes the method `options.method`. Throws UsageError naming what is wrong with its keys.
std::unique_ptr<Drafter> make_drafter(const DraftContext& context);

}  // namespace longhaul::engine
