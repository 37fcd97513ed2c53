// The state of one sequence in draft language models: their KV caches, and the window of the text that they see.
// Used by the drafters that run such models (lm_drafter.cpp, triforce.cpp).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/draft/drafter.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/pass.hpp"

namespace longhaul::engine {

/// The window of a text that a draft model with a bounded context sees: the end of the text, from an origin that
/// advances in strides. The origin depends only on the length of the text (except after a pause in drafting, see
/// late_origin), so drafts do not depend on where earlier launches were killed.
class TextWindow {
  public:
    explicit TextWindow(std::int64_t max_positions)
        : max_positions_(max_positions),
          max_tokens_(std::max<std::int64_t>(max_positions - 1, 1)),
          kept_(std::min(max_tokens_ / 2, max_read_again)) {}

    /// Origin for a text of `size` tokens: 0 while they and at least one drafted token fit into the model's context.
    [[nodiscard]] std::int64_t origin_of(std::int64_t size) const {
        const std::int64_t stride = max_tokens_ - kept_;
        return size <= max_tokens_ ? 0 : (size - max_tokens_ + stride - 1) / stride * stride;
    }
    [[nodiscard]] bool holds(std::int64_t origin, std::int64_t size) const { return size - origin <= max_tokens_; }
    [[nodiscard]] std::int64_t max_tokens() const { return max_positions_; }
    /// Maximum depth of a tree after `size` tokens.
    [[nodiscard]] std::int64_t depth(std::int64_t origin, std::int64_t size) const {
        return max_positions_ - (size - origin);
    }
    /// Origin after a long pause in drafting: the model reads only the end of the text, at most `max_catching_up`
    /// tokens.
    [[nodiscard]] std::int64_t late_origin(std::int64_t size) const {
        return std::max<std::int64_t>(size - std::min(max_catching_up, std::max<std::int64_t>(kept_, 1)), 0);
    }

  private:
    static constexpr std::int64_t max_read_again = 2048;  // a few passes; half of a long context would take minutes

    std::int64_t max_positions_;
    std::int64_t max_tokens_;  ///< maximum number of tokens in the window
    std::int64_t kept_;        ///< about the number of tokens that stay in the window when the origin advances
};

/// KV cache of one sequence in one draft model. Node i of a tree uses scratch slot i - 1.
struct DraftKv {
    std::shared_ptr<KvSequence> kv;
    std::int64_t origin = 0;     ///< text position of the model's position 0
    std::vector<bool> computed;  ///< [node] of the last tree: whether its keys and values were computed

    /// Text position up to which the model has read: the next position it needs.
    [[nodiscard]] std::int64_t known() const { return origin + kv->committed(); }
};

/// A pool for the keys and values of a draft model. It has no limit of its own: the replica counts its pages together
/// with the target's (Drafter::bytes_per_token).
std::unique_ptr<KvPool> make_draft_pool(const Model& model);

class LmSequence final : public SequenceDrafter {
  public:
    /// One pool and window per model. `patience`: number of missing tokens that a proposal computes itself; with more,
    /// the sequence lags.
    LmSequence(std::vector<KvPool*> pools, std::vector<TextWindow> windows, std::int64_t patience);

    [[nodiscard]] bool lags(std::span<const std::int32_t> context) const override;
    void release() override;
    /// Models that see another window of the text, or have states, copy nothing.
    void copy_prefix(const SequenceDrafter& source, std::span<const std::int32_t> context, std::int64_t count) override;
    bool keep_prefix(std::int64_t count) override;

    /// Commits the draft KV of the accepted nodes, as far as it was computed.
    void accept(std::span<const std::int32_t> context, std::span<const std::int32_t> path);
    /// Moves the window of each model whose context the text has outgrown. That model's KV cache starts empty again.
    void move_on(std::int64_t size);
    /// After a long pause in drafting: restarts models that lack more than `max_catching_up` tokens on the end of the
    /// text.
    void begin_anew_if_late(std::int64_t size);
    /// Maximum depth of a tree that fits into every model's context.
    [[nodiscard]] std::int64_t depth(std::int64_t size) const;

    /// Allocates pages for a tree after `size` tokens, and forgets the nodes of the last one. Throws std::bad_alloc.
    void begin_tree(std::int64_t size, std::int64_t depth, std::int64_t num_nodes);
    /// Adds the rows that `model` needs for the distribution after `node` of the tree below `context`: those of missing
    /// text tokens or of nodes above it that were not computed, its own last, which wants logits.
    void add_rows(std::size_t model, std::span<const std::int32_t> context, const TokenTree& tree, std::int32_t node,
                  std::int32_t sequence, std::vector<ForwardRow>& rows) const;
    /// The rows that add_rows gave for `node` were computed.
    void computed(std::size_t model, std::span<const std::int32_t> context, const TokenTree& tree, std::int32_t node);
    /// Nodes from `node` on were replaced by others.
    void forget_from(std::int32_t node);
    /// Computes the KV of up to `max_rows` missing tokens in `model`, the model of index `at`.
    void catch_up(Model& model, std::size_t at, std::span<const std::int32_t> context, std::int64_t max_rows);

    [[nodiscard]] KvView view(std::size_t model) const { return of_model_[model].kv->view(); }

  private:
    void begin(std::size_t model, std::int64_t origin);
    /// Whether others can copy what the model has of the beginning of the text.
    [[nodiscard]] static bool has_beginning(const DraftKv& draft) {
        return draft.origin == 0 && draft.kv->committed() > 0 && draft.kv->keeps_all();
    }
    [[nodiscard]] bool is_computed(const DraftKv& draft, std::int32_t node) const {
        return static_cast<std::size_t>(node) < draft.computed.size() && draft.computed[node];
    }

    // One of each per model.
    std::vector<KvPool*> pools_;
    std::vector<TextWindow> windows_;
    std::vector<DraftKv> of_model_;
    std::int64_t patience_;
};

}  // namespace longhaul::engine
