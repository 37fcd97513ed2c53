// Draft method `eagle` (EAGLE 1 and 2; algorithms.md section 6): a draft layer predicts the target's next hidden state
// from the one before it and the token between them; the target's output head turns it into a distribution. Level by
// level the predicted states of the best nodes and their tokens are the layer's next input (dynamic_tree.cpp).
//
// The layer has keys and values of its own. Those of committed positions come from the target's states, tapped from
// its passes; those of drafts are in scratch slots and are dropped. Pair p, the state at position p and the token at
// p + 1, is at position p: one behind the text. Unlike a language model's, keys and values cannot be computed from
// tokens without the target, and no checkpoint holds them: after a resume the target computes the last states again
// (missing_states).
#include <algorithm>
#include <deque>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

/// See BeamOptions::scatter.
constexpr double layer_scatter = 0.5;

class EagleSequence final : public SequenceDrafter {
  public:
    /// `one_text`: drafts decide the text, so a resumed sequence must draft as one that was not interrupted.
    EagleSequence(PagePool& pool, bool one_text) : pool_(pool), one_text_(one_text) { restart(0); }

    [[nodiscard]] std::int64_t missing_states(std::span<const std::int32_t> context) const override {
        const std::int64_t states = std::ssize(context) - 1;
        if (is_ready(context)) return 0;
        return one_text_ ? states : std::min(states, max_catching_up);
    }

    void release() override { restart(0); }

    /// Whether it has the pairs up to the root's, of which the pending ones are not in the keys and values yet.
    [[nodiscard]] bool is_ready(std::span<const std::int32_t> context) const {
        return num_pending() > 0 && known() == std::ssize(context) - 1;
    }
    [[nodiscard]] std::int64_t num_pending() const { return pending_.num_rows(); }
    /// Position of the first pair that it has not seen.
    [[nodiscard]] std::int64_t known() const { return origin_ + kv_->committed() + num_pending(); }
    [[nodiscard]] const HiddenStates& pending() const { return pending_; }
    [[nodiscard]] KvSequence& kv() const { return *kv_; }

    /// Keeps the states of the pairs from position `first` on. What came before is forgotten if they do not follow it.
    void keep(std::int64_t first, HiddenStates states) {
        if (num_pending() > 0 || first != known()) restart(first);
        pending_ = std::move(states);
    }

    /// Adds the rows of the first `count` pending pairs to a pass, whose sequence `index` this one is.
    void add_pending(std::span<const std::int32_t> context, std::int64_t count, std::int32_t index,
                     std::vector<ForwardRow>& rows) const {
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t slot = kv_->committed() + i;
            ForwardRow row = text_row(context[origin_ + slot + 1], slot, index);
            row.position = origin_ + slot;
            rows.push_back(std::move(row));
        }
    }
    /// These rows were computed; `rest`: the states of the other pending pairs.
    void commit_pending(std::int64_t count, HiddenStates rest) {
        kv_->set_committed(kv_->committed() + count);
        pending_ = std::move(rest);
    }
    void reserve(std::int64_t more, std::int64_t scratch) {
        if (!kv_->reserve(kv_->committed() + more) || !kv_->reserve_scratch(scratch)) throw std::bad_alloc();
    }

  private:
    void restart(std::int64_t origin) {
        kv_ = std::make_shared<KvSequence>(pool_);
        origin_ = origin;
        pending_ = {};
    }

    PagePool& pool_;
    bool one_text_;
    std::shared_ptr<KvSequence> kv_;  ///< slot 0: the pair at origin_
    std::int64_t origin_ = 0;
    HiddenStates pending_;
};

/// A tree of the batch while it grows.
struct EagleTree {
    Proposal* proposal;
    std::unique_ptr<TreeGrowth> growth;
    std::vector<std::int32_t> slots{};   ///< by node: scratch slot of its pair in the layer's KV; -1: none
    std::vector<std::int32_t> states{};  ///< by node: row of the last level's output that it was drawn from

    [[nodiscard]] EagleSequence& sequence() const { return static_cast<EagleSequence&>(*proposal->sequence); }
};

/// Pairs of a sequence to compute.
struct PendingPairs {
    EagleSequence* sequence;
    std::span<const std::int32_t> context;
    std::int64_t count;
};

class EagleDrafter final : public Drafter {
  public:
    EagleDrafter(const DraftContext& context, std::unique_ptr<TreeMethod> method, std::int64_t width)
        : target_(*context.target),
          layer_(*context.options.layer),
          one_text_(context.options.decides_text),
          method_(std::move(method)),
          max_slots_(width * (method_->max_depth() - 1)),
          pool_(target_.device(), layer_.kv_layout(), std::numeric_limits<std::int64_t>::max()),
          sampler_(target_.device(), target_.config().vocab_size) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<EagleSequence>(pool_, one_text_);
    }
    void propose(std::span<Proposal> proposals) override;
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) override;

    [[nodiscard]] std::vector<Tap> taps() const override { return {{.at = Tap::At::normed_hidden, .rows = {}}}; }
    [[nodiscard]] std::int64_t max_nodes() const override { return method_->max_nodes(); }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }
    [[nodiscard]] std::int64_t bytes_per_token() const override { return layer_.kv_layout().position_bytes(); }

  private:
    [[nodiscard]] HiddenStates gathered(const HiddenStates& from, std::span<const std::int32_t> rows) const;
    HiddenStates compute(std::span<const PendingPairs> pairs);
    [[nodiscard]] HiddenStates next_level(std::span<EagleTree> trees, const HiddenStates& states);
    void grow(std::span<EagleTree> trees, const HiddenStates& states);

    Model& target_;
    DraftLayer& layer_;
    bool one_text_;
    std::unique_ptr<TreeMethod> method_;
    std::int64_t max_slots_;  ///< expanded nodes of a tree, the root excluded
    PagePool pool_;
    DraftSampler sampler_;
};

HiddenStates EagleDrafter::gathered(const HiddenStates& from, std::span<const std::int32_t> rows) const {
    HiddenStates states = target_.hidden_states(std::ssize(rows));
    if (!rows.empty()) target_.device().gather(from.data(), rows, from.width(), states.data());
    return states;
}

std::vector<std::int32_t> numbers(std::int64_t first, std::int64_t end) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(end - first));
    std::iota(all.begin(), all.end(), static_cast<std::int32_t>(first));
    return all;
}

/// Computes and stores keys and values of the pairs; the layer's output of the last pair of each entry.
HiddenStates EagleDrafter::compute(std::span<const PendingPairs> pairs) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> last;
    for (const PendingPairs& some : pairs) {
        some.sequence->reserve(some.count, 0);
        some.sequence->add_pending(some.context, some.count, static_cast<std::int32_t>(views.size()), rows);
        views.push_back(some.sequence->kv().view());
        last.push_back(static_cast<std::int32_t>(rows.size()) - 1);
    }
    HiddenStates states = target_.hidden_states(std::ssize(rows));
    std::int64_t row = 0;
    for (const PendingPairs& some : pairs) {
        target_.device().gather(some.sequence->pending().data(), numbers(0, some.count), states.width(),
                                states.data() + row * states.width());
        row += some.count;
    }
    const HiddenStates out = layer_.forward(rows, views, states);
    for (const PendingPairs& some : pairs) {
        const HiddenStates& all = some.sequence->pending();
        some.sequence->commit_pending(some.count, gathered(all, numbers(some.count, all.num_rows())));
    }
    return gathered(out, last);
}

void EagleDrafter::observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) {
    std::vector<PendingPairs> behind;  // of sequences that did not draft in this step
    for (const Observation& seen : observations) {
        auto& sequence = static_cast<EagleSequence&>(*seen.sequence);
        if (sequence.num_pending() > 0) behind.push_back({&sequence, seen.context, sequence.num_pending()});
    }
    if (!behind.empty()) static_cast<void>(compute(behind));

    std::vector<PendingPairs> chunks;
    for (const Observation& seen : observations) {
        std::vector<std::int32_t> rows;
        std::int64_t first = seen.first_position;
        if (first >= 0) {
            rows = numbers(seen.first_row, seen.first_row + seen.num_rows);
        } else {  // the root and the accepted nodes, each with the token that was emitted after it
            first = std::ssize(seen.context) - 1 - seen.num_new;
            rows.push_back(static_cast<std::int32_t>(seen.first_row));
            for (const std::int32_t node : seen.path) rows.push_back(rows.front() + node);
            rows.resize(static_cast<std::size_t>(seen.num_new));
        }
        if (rows.empty()) continue;
        auto& sequence = static_cast<EagleSequence&>(*seen.sequence);
        sequence.keep(first, gathered(taps.front(), rows));
        // What is pending is computed by the first pass of the next draft: a few pairs, not a chunk of a prompt.
        const std::int64_t rest = sequence.is_ready(seen.context) ? 1 : 0;
        if (seen.first_position >= 0 && sequence.num_pending() > rest)
            chunks.push_back({&sequence, seen.context, sequence.num_pending() - rest});
    }
    if (!chunks.empty()) static_cast<void>(compute(chunks));
}

/// The layer's output for the nodes that the trees expand, in order. `states`: the last level's.
HiddenStates EagleDrafter::next_level(std::span<EagleTree> trees, const HiddenStates& states) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> from;
    for (EagleTree& tree : trees) {
        const TokenTree& nodes = *tree.proposal->tree;
        tree.slots.resize(static_cast<std::size_t>(nodes.num_nodes()), -1);
        for (const TreeGrowth::Wanted& wanted : tree.growth->wanted()) {
            const std::int64_t num_slots =
                std::count_if(tree.slots.begin(), tree.slots.end(), [](std::int32_t slot) { return slot >= 0; });
            tree.slots[wanted.node] = static_cast<std::int32_t>(num_slots);
            std::vector<std::int32_t> path = nodes.path_to(wanted.node);
            for (std::int32_t& node : path) node = tree.slots[node];
            const std::int64_t root = tree.sequence().kv().committed() - 1;
            ForwardRow row = tree_row(nodes.token[wanted.node], root, std::move(path), std::ssize(views));
            row.position = std::ssize(tree.proposal->context) - 2 + nodes.depth[wanted.node];
            rows.push_back(std::move(row));
            from.push_back(tree.states[wanted.node]);
        }
        views.push_back(tree.sequence().kv().view());
    }
    return layer_.forward(rows, views, gathered(states, from));
}

/// The draws of the nodes that the trees expand, in order. They point into `paths`.
std::vector<DraftRow> draws_of(std::span<const EagleTree> trees, std::deque<std::vector<std::int32_t>>& paths) {
    std::vector<DraftRow> draws;
    for (const EagleTree& tree : trees) {
        const Proposal& proposal = *tree.proposal;
        for (std::size_t i = 0; i < tree.growth->wanted().size(); ++i) {
            const std::int32_t node = tree.growth->wanted()[i].node;
            std::vector<std::int32_t>& path = paths.emplace_back(proposal.tree->path_to(node));
            for (std::int32_t& at : path) at = proposal.tree->token[at];
            DraftRow& row = draws.emplace_back(DraftRow{.context = {proposal.context, path},
                                                        .sampling = *proposal.sampling,
                                                        .noise = proposal.noise,
                                                        .position = std::ssize(proposal.context) + std::ssize(path),
                                                        .node = node,
                                                        .lanes = tree.growth->lanes_of(i),
                                                        .num_draws = tree.growth->num_draws()});
            if (row.sampling.temperature == 0) row.sampling.temperature = 1;
            if (row.noise.is_own()) row.noise.kind = Noise::Kind::silent;
        }
    }
    return draws;
}

/// Adds a level to each tree. `states`: the layer's output for the nodes that they expand, in order.
void EagleDrafter::grow(std::span<EagleTree> trees, const HiddenStates& states) {
    static const Norm none;  // the states are estimates of normed ones
    Logits logits = target_.logits(states, &none);
    std::deque<std::vector<std::int32_t>> paths;
    const std::vector<DraftRow> draws = draws_of(trees, paths);
    std::vector<Distribution> drafts = sampler_.distributions(logits, draws);
    std::int32_t row = 0;
    for (EagleTree& tree : trees) {
        const std::vector<TreeGrowth::Wanted> expanded(tree.growth->wanted().begin(), tree.growth->wanted().end());
        tree.growth->grow(std::span(drafts).subspan(row, expanded.size()));
        const TokenTree& nodes = *tree.proposal->tree;
        tree.states.resize(static_cast<std::size_t>(nodes.num_nodes()), -1);
        for (std::size_t i = 0; i < expanded.size(); ++i, ++row) {
            for (std::int32_t node = expanded[i].node + 1; node < nodes.num_nodes(); ++node) {
                if (nodes.parent[node] == expanded[i].node) tree.states[node] = row;
            }
        }
        ++tree.proposal->draft_calls;
    }
}

void EagleDrafter::propose(std::span<Proposal> proposals) {
    std::vector<EagleTree> trees;
    std::vector<PendingPairs> pairs;
    for (Proposal& proposal : proposals) {
        auto& sequence = static_cast<EagleSequence&>(*proposal.sequence);
        const std::int64_t depth = std::min(proposal.max_depth, max_depth());
        if (depth <= 0 || !sequence.is_ready(proposal.context)) continue;
        sequence.reserve(sequence.num_pending(), max_slots_);
        pairs.push_back({&sequence, proposal.context, sequence.num_pending()});
        trees.push_back({&proposal, method_->begin(*proposal.tree, proposal.noise, std::ssize(proposal.context), depth,
                                                   proposal.max_width)});
    }
    if (trees.empty()) return;
    HiddenStates states = compute(pairs);
    while (!trees.empty()) {
        grow(trees, states);
        std::erase_if(trees, [](const EagleTree& tree) { return tree.growth->wanted().empty(); });
        if (!trees.empty()) states = next_level(trees, states);
    }
}

}  // namespace

std::unique_ptr<Drafter> make_eagle_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.layer == nullptr)
        throw std::logic_error("draft = eagle was given no layer or no target");
    const TreeShape shape = context.options.shape();
    return std::make_unique<EagleDrafter>(
        context,
        make_dynamic_tree(
            {.width = shape.width, .depth = shape.depth, .max_nodes = shape.max_nodes(), .scatter = layer_scatter}),
        shape.width);
}

}  // namespace longhaul::engine
