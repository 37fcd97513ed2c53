// Draft methods: what proposes a tree of tokens for the target to verify. A drafter does not know who verifies, nor
// on which device the target runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/draft/methods.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/params.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

struct DraftOptions;

/// A drafter's memory of one sequence.
class SequenceDrafter {
  public:
    virtual ~SequenceDrafter() = default;

    /// `context` grew: its last `num_new` tokens are new (the whole prompt at first). Also after a resume. `path`: the
    /// nodes of the last proposed tree that are the first of them, in order; the last new token is none of them.
    virtual void accepted(std::span<const std::int32_t> context, std::int64_t num_new,
                          std::span<const std::int32_t> path) = 0;

    /// Whether it lacks so much of `context` that Drafter::follow has to run before it can propose.
    [[nodiscard]] virtual bool lags(std::span<const std::int32_t> /*context*/) const { return false; }

    /// Gives back the memory of keys and values; they are computed again when the sequence goes on.
    virtual void release() {}

    /// Rows changed since the last call, for a checkpoint; `kind` "" when there is nothing to keep.
    virtual DrafterState take_delta() { return {}; }

    /// Takes back what checkpoints hold of `context`, oldest first. false when they are of another kind or do not fit:
    /// the caller then feeds the whole context through `accepted`.
    virtual bool restore(std::span<const DrafterState> /*deltas*/, std::span<const std::int32_t> /*context*/) {
        return false;
    }
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
    /// Computes up to `max_rows` of the tokens that a sequence lacks (SequenceDrafter::lags).
    virtual void follow(SequenceDrafter& /*sequence*/, std::span<const std::int32_t> /*context*/,
                        std::int64_t /*max_rows*/) {}
    /// Greatest number of nodes under the root that a tree has; 0: autoregressive decoding.
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
    /// Whether the user left the tree's size to us: nodes that do not pay (DraftEconomy) are then left out.
    [[nodiscard]] virtual bool adapts() const { return false; }
    /// Bytes of keys and values that it holds for a token of a sequence on this rank.
    [[nodiscard]] virtual std::int64_t bytes_a_token() const { return 0; }
};

/// Makes the method `options.method`. Throws UsageError naming the method, or what is wrong with the tree.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options);

}  // namespace longhaul::engine
