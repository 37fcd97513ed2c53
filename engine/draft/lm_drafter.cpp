#include "engine/draft/lm_drafter.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/tree_growth.hpp"
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

/// One tree of a batch while it grows.
struct Growing {
    Proposal* proposal = nullptr;
    LmSequence* sequence = nullptr;
    std::unique_ptr<TreeGrowth> growth;
    std::vector<Distribution> drafts;  ///< one per entry of growth->wanted()
};

/// A row of a draft model's logits: the draft distribution after a tree node.
struct WantedRow {
    Growing* tree;
    std::size_t place;  ///< index in growth->wanted()
    std::int32_t node;
    std::vector<std::int32_t> path;  ///< tokens from below the root to the node
};

/// The wanted rows of `model`, in the order of its logits rows.
std::vector<WantedRow> wanted_rows(std::size_t model, std::vector<Growing>& trees) {
    std::vector<WantedRow> rows;
    for (Growing& tree : trees) {
        const std::span<const TreeGrowth::Wanted> wanted = tree.growth->wanted();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            if (wanted[i].model != static_cast<std::int32_t>(model)) continue;
            const TokenTree& nodes = *tree.proposal->tree;
            WantedRow& row = rows.emplace_back(WantedRow{&tree, i, wanted[i].node, nodes.path_to(wanted[i].node)});
            for (std::int32_t& node : row.path) node = nodes.token[node];
        }
    }
    return rows;
}

class LmDrafter final : public Drafter {
  public:
    LmDrafter(const DraftContext& context, const TreeShape& shape, std::unique_ptr<TreeMethod> method)
        : models_(context.options.models),
          method_(std::move(method)),
          max_nodes_(std::min(method_->max_nodes(), shape.max_nodes())),
          pauses_(context.options.chooses_tree()),
          temperature_(context.options.model_temperature) {
        for (Model* model : models_) {
            // No limit of its own: the replica counts these pages together with the target's (bytes_per_token).
            pools_.push_back(std::make_unique<PagePool>(model->device(), model->kv_layout(),
                                                        std::numeric_limits<std::int64_t>::max()));
            views_.emplace_back(model->config().max_positions);
            // Ids beyond the target's vocabulary are padding and are never drafted.
            const std::int64_t vocab_size = model->config().vocab_size;
            samplers_.emplace_back(model->device(), context.target
                                                        ? std::min(vocab_size, context.target->config().vocab_size)
                                                        : vocab_size);
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
    void add_context_rows(std::size_t model, const Growing& tree, std::int32_t index);
    void add_node_row(std::size_t model, const Growing& tree, std::int32_t index, std::int32_t node);
    bool grow_level(std::vector<Growing>& trees);
    void run_model(std::size_t model, std::vector<Growing>& trees);
    [[nodiscard]] SamplingParams params_of(const Proposal& proposal) const;

    std::vector<Model*> models_;
    std::unique_ptr<TreeMethod> method_;
    std::int64_t max_nodes_;
    bool pauses_;  ///< drafting may pause for some steps (TreeChooser)
    double temperature_;
    // One of each per model.
    std::vector<View> views_;
    std::vector<std::unique_ptr<PagePool>> pools_;
    std::vector<DraftSampler> samplers_;
    // Rows and sequences of the current pass.
    std::vector<ForwardRow> rows_;
    std::vector<KvSequence*> kv_;
};

void LmDrafter::reserve(KvSequence& kv, std::int64_t num_tokens, std::int64_t num_nodes) {
    if (!kv.reserve(num_tokens) || !kv.reserve_scratch(num_nodes)) throw std::bad_alloc();
}

/// The target's sampling parameters with the draft's temperature. Temperature 0 becomes 1: a one-hot distribution gives
/// no tree.
SamplingParams LmDrafter::params_of(const Proposal& proposal) const {
    SamplingParams params = *proposal.sampling;
    if (temperature_ >= 0) params.temperature = temperature_;
    if (params.temperature == 0) params.temperature = 1;
    return params;
}

/// Adds a row for each token that the model has no KV for, the root last.
void LmDrafter::add_context_rows(std::size_t model, const Growing& tree, std::int32_t index) {
    const std::span<const std::int32_t> context = tree.proposal->context;
    const DraftKv& draft = tree.sequence->of_model[model];
    const auto size = static_cast<std::int64_t>(context.size());
    for (std::int64_t position = std::min(draft.known(), size - 1); position < size; ++position) {
        rows_.push_back(text_row(context[position], position - draft.origin, index));
        rows_.back().wants_logits = position + 1 == size;
    }
}

void LmDrafter::add_node_row(std::size_t model, const Growing& tree, std::int32_t index, std::int32_t node) {
    const TokenTree& nodes = *tree.proposal->tree;
    DraftKv& draft = tree.sequence->of_model[model];
    const auto size = static_cast<std::int64_t>(tree.proposal->context.size()) - draft.origin;
    rows_.push_back(tree_row(nodes.token[node], size - 1, TokenTree::slots_of(nodes.path_to(node)), index));
    rows_.back().wants_logits = true;
    draft.computed.resize(std::max(draft.computed.size(), static_cast<std::size_t>(node) + 1), false);
    draft.computed[node] = true;
}

/// One forward pass of a draft model: the rows that all trees want from it for their next level.
void LmDrafter::run_model(std::size_t model, std::vector<Growing>& trees) {
    rows_.clear();
    kv_.clear();
    for (const Growing& tree : trees) {
        const auto index = static_cast<std::int32_t>(kv_.size());
        bool any = false;
        for (const TreeGrowth::Wanted& wanted : tree.growth->wanted()) {
            if (wanted.model != static_cast<std::int32_t>(model)) continue;
            any = true;
            if (wanted.node == 0) {
                add_context_rows(model, tree, index);
            } else {
                add_node_row(model, tree, index, wanted.node);
            }
        }
        if (any) kv_.push_back(tree.sequence->of_model[model].kv.get());
    }
    if (rows_.empty()) return;
    PassResult result = models_[model]->forward({.rows = rows_, .sequences = views_of(kv_)});
    const std::vector<WantedRow> wanted = wanted_rows(model, trees);
    std::vector<DraftRow> rows;
    for (const WantedRow& row : wanted) {
        const Proposal& proposal = *row.tree->proposal;
        rows.push_back({.context = {proposal.context, row.path},
                        .sampling = params_of(proposal),
                        .noise = proposal.noise,
                        .position = std::ssize(proposal.context) + std::ssize(row.path),
                        .node = row.node,
                        .lanes = row.tree->growth->lanes_of(row.place),
                        .num_draws = row.tree->growth->num_draws()});
    }
    std::vector<Distribution> drafts = samplers_[model].distributions(result.logits, rows);
    for (std::size_t r = 0; r < wanted.size(); ++r) {
        const Growing& tree = *wanted[r].tree;
        wanted[r].tree->drafts[wanted[r].place] = std::move(drafts[r]);
        if (wanted[r].node != 0) continue;
        const DraftKv& kv = tree.sequence->of_model[model];
        kv.kv->set_committed(std::ssize(tree.proposal->context) - kv.origin);
    }
}

/// Grows all trees by one level. False if every tree is complete.
bool LmDrafter::grow_level(std::vector<Growing>& trees) {
    std::erase_if(trees, [](const Growing& tree) { return tree.growth->wanted().empty(); });
    if (trees.empty()) return false;
    for (Growing& tree : trees) tree.drafts.resize(tree.growth->wanted().size());
    for (std::size_t model = 0; model < models_.size(); ++model) run_model(model, trees);
    for (Growing& tree : trees) {
        tree.growth->grow(tree.drafts);
        ++tree.proposal->draft_calls;
    }
    return true;
}

void LmDrafter::propose(std::span<Proposal> proposals) {
    for (DraftSampler& sampler : samplers_) sampler.release_kept();
    std::vector<Growing> trees;
    for (Proposal& proposal : proposals) {
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
        trees.push_back(
            {&proposal, sequence, method_->begin(*proposal.tree, proposal.noise, size, depth, proposal.max_width), {}});
    }
    while (grow_level(trees)) {
    }
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
        rows_.clear();
        for (std::int64_t position = first; position < end; ++position)
            rows_.push_back(text_row(context[position], position - origin));
        const KvView view = kv.view();
        models_[model]->forward({.rows = rows_, .sequences = std::span(&view, 1)});
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
