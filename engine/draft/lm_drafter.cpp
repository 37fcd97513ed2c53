#include "engine/draft/lm_drafter.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "engine/draft/model_trees.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

/// The window of a text that a draft model with a bounded context sees: the end of the text, from an origin that
/// advances in strides. The origin depends only on the length of the text (except after a pause in drafting, see
/// late_origin), so drafts do not depend on where earlier launches were killed.
class View {
  public:
    explicit View(std::int64_t max_positions)
        : max_positions_(max_positions),
          max_tokens_(std::max<std::int64_t>(max_positions - 1, 1)),
          kept_(std::min(max_tokens_ / 2, max_read_again)) {}

    /// Origin for a text of `size` tokens: 0 while they and at least one drafted token fit into the model's context.
    [[nodiscard]] std::int64_t origin_of(std::int64_t size) const {
        const std::int64_t stride = max_tokens_ - kept_;
        return size <= max_tokens_ ? 0 : (size - max_tokens_ + stride - 1) / stride * stride;
    }
    [[nodiscard]] bool holds(std::int64_t origin, std::int64_t size) const { return size - origin <= max_tokens_; }
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

class LmSequence final : public SequenceDrafter {
  public:
    LmSequence(std::vector<PagePool*> pools, std::vector<View> views, std::int64_t patience)
        : pools_(std::move(pools)), views_(std::move(views)), patience_(patience) {
        release();
    }

    /// Commits the draft KV of the accepted nodes, as far as it was computed.
    void accept(std::span<const std::int32_t> context, std::span<const std::int32_t> path) {
        for (DraftKv& draft : of_model) {
            std::vector<std::int32_t> slots;
            for (const std::int32_t node : path) {
                if (static_cast<std::size_t>(node) >= draft.computed.size()) break;
                if (!draft.computed[node]) break;
                slots.push_back(node - 1);
            }
            // An item may end within the accepted path.
            const std::int64_t max_slots = static_cast<std::int64_t>(context.size()) - draft.known();
            if (static_cast<std::int64_t>(slots.size()) > max_slots) slots.resize(max_slots);
            if (!slots.empty()) draft.kv->accept(slots);
            draft.computed.clear();
        }
    }

    [[nodiscard]] bool lags(std::span<const std::int32_t> context) const override {
        const auto size = static_cast<std::int64_t>(context.size());
        for (std::size_t model = 0; model < of_model.size(); ++model) {
            const DraftKv& draft = of_model[model];
            const bool stays = views_[model].holds(draft.origin, size);
            if ((stays ? draft.known() : views_[model].origin_of(size)) + patience_ < size) return true;
        }
        return false;
    }

    void release() override {
        of_model.clear();
        for (PagePool* pool : pools_) of_model.push_back({std::make_shared<KvSequence>(*pool), 0, {}});
    }

    /// Moves the window of each model whose context the text has outgrown. That model's KV cache starts empty again.
    void move_on(std::int64_t size) {
        for (std::size_t model = 0; model < of_model.size(); ++model) {
            if (!views_[model].holds(of_model[model].origin, size)) begin(model, views_[model].origin_of(size));
        }
    }

    /// After a long pause in drafting: restarts models that lack more than `max_catching_up` tokens on the end of the
    /// text.
    void begin_anew_if_late(std::int64_t size) {
        for (std::size_t model = 0; model < of_model.size(); ++model) {
            if (of_model[model].known() + max_catching_up < size) begin(model, views_[model].late_origin(size));
        }
    }

    /// Maximum depth of a tree that fits into every model's context.
    [[nodiscard]] std::int64_t depth(std::int64_t size) const {
        std::int64_t depth = std::numeric_limits<std::int64_t>::max();
        for (std::size_t model = 0; model < of_model.size(); ++model)
            depth = std::min(depth, views_[model].depth(of_model[model].origin, size));
        return depth;
    }

    std::vector<DraftKv> of_model;

  private:
    void begin(std::size_t model, std::int64_t origin) {
        of_model[model] = {std::make_shared<KvSequence>(*pools_[model]), origin, {}};
    }

    std::vector<PagePool*> pools_;
    std::vector<View> views_;
    std::int64_t patience_;  ///< number of missing tokens that a proposal computes itself; with more, it lags
};

LmSequence& sequence_of(const GrowingTree& tree) {
    return static_cast<LmSequence&>(*tree.proposal->sequence);
}

class LmDrafter final : public Drafter, private DraftRows {
  public:
    LmDrafter(const DraftContext& context, const TreeShape& shape, std::unique_ptr<TreeMethod> method)
        : models_(context.options.models),
          method_(std::move(method)),
          max_nodes_(std::min(method_->max_nodes(), shape.max_nodes())),
          pauses_(context.options.chooses_tree()),
          trees_(models_, context.target, context.options.model_temperature) {
        for (Model* model : models_) {
            // No limit of its own: the replica counts these pages together with the target's (bytes_per_token).
            pools_.push_back(std::make_unique<PagePool>(model->device(), model->kv_layout(),
                                                        std::numeric_limits<std::int64_t>::max()));
            views_.emplace_back(model->config().max_positions);
        }
    }

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        std::vector<PagePool*> pools;
        for (const auto& pool : pools_) pools.push_back(pool.get());
        return std::make_unique<LmSequence>(std::move(pools), views_, method_->max_depth() + 2);
    }

    void propose(std::span<Proposal> proposals) override;
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations) {
            auto& sequence = static_cast<LmSequence&>(*seen.sequence);
            sequence.accept(seen.context, seen.path);
            if (seen.max_catch_up > 0) catch_up(sequence, seen.context, seen.max_catch_up);
        }
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return max_nodes_; }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }
    [[nodiscard]] std::int64_t bytes_per_token() const override {
        std::int64_t bytes = 0;
        for (const Model* model : models_) bytes += model->kv_layout().position_bytes();
        return bytes;
    }

  private:
    void catch_up(LmSequence& sequence, std::span<const std::int32_t> context, std::int64_t max_rows);
    static void reserve(KvSequence& kv, std::int64_t num_tokens, std::int64_t num_nodes);
    void add(std::size_t model, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
             std::vector<ForwardRow>& rows) override;
    [[nodiscard]] KvView kv_of(std::size_t model, const GrowingTree& tree) const override {
        return sequence_of(tree).of_model[model].kv->view();
    }
    void computed(std::size_t model, const GrowingTree& tree, std::int32_t node) override;

    std::vector<Model*> models_;
    std::unique_ptr<TreeMethod> method_;
    std::int64_t max_nodes_;
    bool pauses_;  ///< drafting may pause for some steps (TreeChooser)
    ModelTrees trees_;
    // One of each per model.
    std::vector<View> views_;
    std::vector<std::unique_ptr<PagePool>> pools_;
};

void LmDrafter::reserve(KvSequence& kv, std::int64_t num_tokens, std::int64_t num_nodes) {
    if (!kv.reserve(num_tokens) || !kv.reserve_scratch(num_nodes)) throw std::bad_alloc();
}

/// The root's rows: one for each token that the model has no KV for, the root last.
void LmDrafter::add(std::size_t model, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
                    std::vector<ForwardRow>& rows) {
    const std::span<const std::int32_t> context = tree.proposal->context;
    const DraftKv& draft = sequence_of(tree).of_model[model];
    const std::int64_t size = std::ssize(context);
    if (node == 0) {
        for (std::int64_t position = std::min(draft.known(), size - 1); position < size; ++position)
            rows.push_back(text_row(context[position], position - draft.origin, sequence));
    } else {
        const TokenTree& nodes = *tree.proposal->tree;
        rows.push_back(
            tree_row(nodes.token[node], size - 1 - draft.origin, TokenTree::slots_of(nodes.path_to(node)), sequence));
    }
    rows.back().wants_logits = true;
}

void LmDrafter::computed(std::size_t model, const GrowingTree& tree, std::int32_t node) {
    DraftKv& draft = sequence_of(tree).of_model[model];
    if (node == 0) {
        draft.kv->set_committed(std::ssize(tree.proposal->context) - draft.origin);
        return;
    }
    draft.computed.resize(std::max(draft.computed.size(), static_cast<std::size_t>(node) + 1), false);
    draft.computed[node] = true;
}

void LmDrafter::propose(std::span<Proposal> proposals) {
    std::vector<GrowingTree> trees;
    for (Proposal& proposal : proposals) {
        if (proposal.max_depth <= 0) continue;
        auto* sequence = static_cast<LmSequence*>(proposal.sequence);
        const auto size = static_cast<std::int64_t>(proposal.context.size());
        sequence->move_on(size);
        if (pauses_) sequence->begin_anew_if_late(size);
        const std::int64_t depth = std::min({proposal.max_depth, method_->max_depth(), sequence->depth(size)});
        if (depth <= 0) continue;
        for (DraftKv& draft : sequence->of_model) {
            reserve(*draft.kv, size - draft.origin + depth, max_nodes_);
            draft.computed.clear();
        }
        trees.push_back({&proposal, method_->begin(*proposal.tree, proposal.noise, size, depth, proposal.max_width)});
    }
    trees_.grow(std::move(trees), *this);
}

/// Computes the KV of up to `max_rows` missing tokens in each model.
void LmDrafter::catch_up(LmSequence& mine, std::span<const std::int32_t> context, std::int64_t max_rows) {
    mine.move_on(static_cast<std::int64_t>(context.size()));
    for (std::size_t model = 0; model < models_.size(); ++model) {
        KvSequence& kv = *mine.of_model[model].kv;
        const std::int64_t origin = mine.of_model[model].origin;
        const std::int64_t first = mine.of_model[model].known();
        const std::int64_t end = std::min(first + max_rows, static_cast<std::int64_t>(context.size()) - 1);
        if (first >= end) continue;
        reserve(kv, end - origin, 0);
        std::vector<ForwardRow> rows;
        for (std::int64_t position = first; position < end; ++position)
            rows.push_back(text_row(context[position], position - origin));
        const KvView view = kv.view();
        models_[model]->forward({.rows = rows, .sequences = std::span(&view, 1)});
        kv.set_committed(end - origin);
    }
}

}  // namespace

std::unique_ptr<Drafter> make_lm_drafter(const DraftContext& context) {
    const DraftMethod& method = *context.options.method;
    const auto num_models = static_cast<std::int64_t>(context.options.models.size());
    if (num_models < method.min_folders || num_models > method.max_folders)
        throw std::logic_error("draft = " + method.name + " was given " + std::to_string(num_models) + " models");
    const TreeShape shape = context.options.shape();
    return std::make_unique<LmDrafter>(context, shape, method.make_trees(shape, num_models));
}

}  // namespace longhaul::engine
