// Draft methods `eagle` (EAGLE 1 to 3; ALGORITHMS.md section 6) and `mtp` (the target's own layer): a draft layer
// predicts the target's next hidden state from the one before it and the token between them; the target's output head
// turns it into a distribution. Level by level the predicted states of the best nodes and their tokens are the layer's
// next input (dynamic_tree.cpp).
#include <algorithm>
#include <stdexcept>

#include "engine/draft/layer_drafter.hpp"

namespace longhaul::engine {
namespace {

class EagleDrafter final : public LayerDrafter {
  public:
    EagleDrafter(const DraftContext& context, std::unique_ptr<TreeMethod> method, std::int64_t width)
        : LayerDrafter(context), method_(std::move(method)), max_slots_(width * (method_->max_depth() - 1)) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<LayerSequence>(pool_, kind_, one_text_);
    }
    void propose(std::span<Proposal> proposals) override;

    [[nodiscard]] std::int64_t max_nodes() const override { return method_->max_nodes(); }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }

  private:
    [[nodiscard]] HiddenStates next_level(std::span<LayerTree> trees, const HiddenStates& states);

    std::unique_ptr<TreeMethod> method_;
    std::int64_t max_slots_;  ///< expanded nodes of a tree, the root excluded
};

/// The layer's output for the nodes that the trees expand, in order. `states`: the last level's.
HiddenStates EagleDrafter::next_level(std::span<LayerTree> trees, const HiddenStates& states) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> from;
    for (LayerTree& tree : trees) {
        const TokenTree& nodes = *tree.tree;
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
            from.push_back(tree.from[wanted.node]);
        }
        views.push_back(tree.sequence().kv().view());
    }
    return layer_.forward(rows, views, gathered(states, from));
}

void EagleDrafter::propose(std::span<Proposal> proposals) {
    std::vector<LayerTree> trees;
    std::vector<PendingPairs> pairs;
    for (Proposal& proposal : proposals) {
        auto& sequence = static_cast<LayerSequence&>(*proposal.sequence);
        const std::int64_t depth = std::min(proposal.max_depth, max_depth());
        if (depth <= 0 || !sequence.is_ready(proposal.context)) continue;
        sequence.reserve(sequence.num_pending(), max_slots_);
        pairs.push_back({&sequence, proposal.context, sequence.num_pending()});
        trees.push_back({&proposal, proposal.tree,
                         method_->begin(*proposal.tree, proposal.noise, std::ssize(proposal.context), depth,
                                        proposal.max_width, proposal.prices)});
    }
    if (trees.empty()) return;
    HiddenStates states = compute(pairs);
    while (!trees.empty()) {
        Logits logits = layer_.logits(states);
        grow(trees, logits);
        for (const LayerTree& tree : trees) ++tree.proposal->model_passes;
        std::erase_if(trees, [](const LayerTree& tree) { return tree.is_complete(); });
        if (!trees.empty()) states = next_level(trees, states);
    }
}

}  // namespace

std::unique_ptr<Drafter> make_eagle_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.layer == nullptr)
        throw std::logic_error("this draft method was given no layer or no target");
    const TreeShape shape = context.options.shape();
    return std::make_unique<EagleDrafter>(
        context,
        make_dynamic_tree(
            {.width = shape.width, .depth = shape.depth, .max_nodes = shape.max_nodes(), .scatter = layer_scatter}),
        shape.width);
}

}  // namespace longhaul::engine
