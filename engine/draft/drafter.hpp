// Draft methods: what proposes a tree of tokens for the target to verify. A drafter does not know who verifies, nor
// on which device the target runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

struct DraftOptions;

/// A drafter's memory of one sequence.
class SequenceDrafter {
  public:
    virtual ~SequenceDrafter() = default;

    /// `context` grew: its last `num_new` tokens are new (the whole prompt at first). Also after a resume.
    virtual void accepted(std::span<const std::int32_t> context, std::int64_t num_new) = 0;

    /// Grows `tree` (which holds its root, the last token of `context`) by at most `max_nodes` nodes no deeper than
    /// `max_depth`, leaving out those it expects to be accepted with less than `min_probability`. `noise_key`: shared
    /// noise of the sequence; the token at depth d is drawn at position context.size()
    /// + d - 1.
    virtual void propose(std::span<const std::int32_t> context, std::uint64_t noise_key, std::int64_t max_nodes,
                         std::int64_t max_depth, double min_probability, TokenTree& tree) = 0;

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
    double temperature = 1.0;  ///< at which the shared noise decides the next token; 0: it does not
};

/// A draft method.
class Drafter {
  public:
    virtual ~Drafter() = default;
    [[nodiscard]] virtual std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) const = 0;
    /// Greatest number of nodes under the root that a tree has; 0: autoregressive decoding.
    [[nodiscard]] virtual std::int64_t max_nodes() const = 0;
    [[nodiscard]] virtual std::int64_t max_depth() const = 0;
    /// Whether the user left the tree's size to us: nodes that do not pay (DraftEconomy) are then left out.
    [[nodiscard]] virtual bool adapts() const { return false; }
};

/// Makes the method `options.method`. Throws UsageError naming the method, or what is wrong with the tree.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options);

/// `draft-tree` as users write it: chain "5", width x depth "12x5", with a node budget "4x3:12".
struct TreeShape {
    std::int64_t width = 1, depth = 1, budget = 1;
};
TreeShape parse_tree_shape(const std::string& text);

}  // namespace longhaul::engine
