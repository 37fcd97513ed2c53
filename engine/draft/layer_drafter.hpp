// What the methods with a draft layer share (eagle.cpp, lyanna.cpp; ALGORITHMS.md section 6): the layer's keys and
// values of each sequence, and trees that grow from its logits.
//
// Keys and values of committed positions come from the target's states, tapped from its passes; those of drafts are in
// scratch slots and are dropped. Pair p, the state at position p and the token at p + 1, is at position p: one behind
// the text. Unlike a language model's, keys and values cannot be computed from tokens without the target, so
// checkpoints hold them. After a resume the target computes the states of the pairs behind them again (missing_states),
// if it can go back to them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {

/// See BeamOptions::scatter.
constexpr double layer_scatter = 0.5;

class LayerSequence : public SequenceDrafter {
  public:
    /// `one_text`: drafts decide the text, so a resumed sequence must draft as one that was not interrupted.
    /// `kind`: DraftLayerKvKind::kind.
    LayerSequence(PagePool& pool, std::string kind, bool one_text)
        : pool_(pool), kind_(std::move(kind)), one_text_(one_text) {
        restart(0);
    }

    [[nodiscard]] std::int64_t missing_states(std::span<const std::int32_t> context) const override;
    void release() override { restart(0); }
    DrafterState take_delta() override { return {.kind = kind_, .row_width = 0, .rows = {}}; }
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override;
    [[nodiscard]] bool restores_exactly() const override { return true; }
    [[nodiscard]] DraftLayerKv layer_kv() const override { return {origin_, kv_}; }
    KvSequence* restore_layer_kv(std::int64_t first, std::int64_t end) override;
    [[nodiscard]] std::int64_t max_copied(std::span<const std::int32_t> context) const override {
        return std::ssize(context) - 1;
    }
    [[nodiscard]] std::int64_t prefix_for_others(std::int64_t count) const override;
    void copy_prefix(const SequenceDrafter& source, std::span<const std::int32_t> context, std::int64_t count) override;
    bool keep_prefix(std::int64_t count) override;

    /// Whether it has the pairs up to the root's, of which the pending ones are not in the keys and values yet.
    [[nodiscard]] bool is_ready(std::span<const std::int32_t> context) const {
        return num_pending() > 0 && known() == std::ssize(context) - 1;
    }
    [[nodiscard]] std::int64_t num_pending() const { return num_pending_; }
    /// Position of the first pair that is not in the keys and values.
    [[nodiscard]] std::int64_t first_pending() const { return origin_ + kv_->committed(); }
    /// Position of the first pair that it has not seen.
    [[nodiscard]] std::int64_t known() const { return first_pending() + num_pending(); }
    [[nodiscard]] KvSequence& kv() const { return *kv_; }
    [[nodiscard]] bool one_text() const { return one_text_; }

    /// Keeps the states of the pairs from position `first` on, until they are computed. Pairs from there on that it had
    /// are replaced. If a few pairs before them are missing, as after a resume of a text whose target cannot go back to
    /// them, they get the first of these states: forgetting all that came before would cost more. It is forgotten if
    /// the gap is greater, or if drafting pauses for so long that reading it all would cost more than it gains.
    void keep(std::int64_t first, HiddenStates states);
    /// Adds the rows of the first `count` pending pairs to a pass, whose sequence `index` this one is.
    void add_pending(std::span<const std::int32_t> context, std::int64_t count, std::int32_t index,
                     std::vector<ForwardRow>& rows) const;
    /// Copies the states of these pairs to `to`, f32 [count, width].
    void copy_pending(kernels::Device& device, std::int64_t count, float* to) const;
    /// These pairs were computed.
    void commit_pending(std::int64_t count);
    void reserve(std::int64_t more, std::int64_t scratch);

  protected:
    /// After a resume: the first pair that it must see again to go on as one that was not interrupted.
    [[nodiscard]] virtual std::int64_t first_lost() const { return known(); }
    [[nodiscard]] const std::string& kind() const { return kind_; }

  private:
    void restart(std::int64_t origin);
    /// Pairs from position 0 on; nullptr: it has none.
    [[nodiscard]] const KvSequence* beginning() const { return origin_ == 0 ? kv_.get() : beginning_.get(); }
    [[nodiscard]] bool is_small_gap(std::int64_t first) const;

    PagePool& pool_;
    std::string kind_;
    bool one_text_;
    std::shared_ptr<KvSequence> kv_;  ///< slot 0: the pair at origin_
    std::int64_t origin_ = 0;
    std::shared_ptr<KvSequence> beginning_;  ///< what it had before a pause in drafting, which others may copy
    /// States of the pending pairs, in order; of the first one, rows from first_row_ on.
    std::deque<HiddenStates> pending_;
    std::int64_t first_row_ = 0, num_pending_ = 0;
};

/// A tree while it grows.
struct LayerTree {
    Proposal* proposal;
    TokenTree* tree;
    std::unique_ptr<TreeGrowth> growth;
    std::vector<std::int32_t> levels{};  ///< lyanna, by level: row of the chains' logits
    std::vector<std::int32_t> from{};    ///< eagle, by node: row of the logits that it was drawn from
    std::vector<std::int32_t> slots{};   ///< by node: scratch slot of its pair in the layer's keys and values; -1: none

    [[nodiscard]] LayerSequence& sequence() const { return static_cast<LayerSequence&>(*proposal->sequence); }
    [[nodiscard]] bool is_complete() const { return growth->wanted().empty(); }
};

class LayerDrafter : public Drafter {
  public:
    explicit LayerDrafter(const DraftContext& context);

    void observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) override;

    [[nodiscard]] std::vector<Tap> taps() const override { return layer_.taps(); }
    [[nodiscard]] std::int64_t bytes_per_token() const override { return layer_.kv_layout().position_bytes(); }
    [[nodiscard]] std::optional<DraftLayerKvKind> layer_kv_kind() const override;
    [[nodiscard]] bool adapts() const override { return adapts_; }

  protected:
    /// The first `count` pending pairs of a sequence.
    struct PendingPairs {
        LayerSequence* sequence;
        std::span<const std::int32_t> context;
        std::int64_t count;
    };

    /// Computes the pairs of prompt chunks. Collective.
    virtual void read(std::span<const PendingPairs> chunks) { static_cast<void>(compute(chunks)); }

    [[nodiscard]] HiddenStates gathered(const HiddenStates& from, std::span<const std::int32_t> rows) const;
    /// Copies rows first … first + count - 1 of `from` to the rows of `to` from `to_row` on.
    void copy_rows(const HiddenStates& from, std::int64_t first, std::int64_t count, const HiddenStates& to,
                   std::int64_t to_row) const;
    /// Computes and stores keys and values of the pairs; the layer's output of the last pair of each entry. Collective.
    HiddenStates compute(std::span<const PendingPairs> pairs);
    /// Adds a level to each tree, none of which is complete. Row i of `logits`: the distribution after the i-th of the
    /// nodes that they expand, in order.
    void grow(std::span<LayerTree> trees, Logits& logits);

    Model& target_;
    DraftLayer& layer_;
    bool one_text_, adapts_;
    std::string kind_;  ///< DraftLayerKvKind::kind
    PagePool pool_;

  private:
    DraftSampler sampler_;
};

/// first, first + 1, …, end - 1.
std::vector<std::int32_t> row_range(std::int64_t first, std::int64_t end);

}  // namespace longhaul::engine
