// Draft method `self` (algorithms.md section 6b): the target drafts for itself. A draft pass runs the target's layers,
// usually with weights of lower precision, over a part of the target's own keys and values (PartialKv). Committed
// positions belong to the target and are only read, so nothing is prefilled, followed or checkpointed. The keys and
// values of the tokens being drafted are in the sequence's scratch slots, which verification then overwrites: the root
// in slot 0, node i in slot i.
#include <algorithm>
#include <stdexcept>

#include "engine/draft/model_trees.hpp"
#include "engine/kv/partial_kv.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

class SelfSequence final : public SequenceDrafter {
  public:
    PartialKv keys;  ///< what the current tree reads
};

SelfSequence& sequence_of(const GrowingTree& tree) {
    return static_cast<SelfSequence&>(*tree.proposal->sequence);
}

class SelfDrafter final : public Drafter, private DraftRows {
  public:
    SelfDrafter(const DraftContext& context, const TreeShape& shape, std::unique_ptr<TreeMethod> method)
        : method_(std::move(method)),
          cache_(context.options.partial_cache),
          max_nodes_(std::min(method_->max_nodes(), shape.max_nodes())),
          trees_(context.options.models, context.target, context.options.model_temperature) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<SelfSequence>();
    }

    void propose(std::span<Proposal> proposals) override {
        std::vector<GrowingTree> trees;
        for (Proposal& proposal : proposals) {
            const std::int64_t depth = std::min(proposal.max_depth, max_depth());
            if (depth <= 0) continue;
            if (!proposal.kv->reserve_scratch(scratch_slots())) throw std::bad_alloc();
            static_cast<SelfSequence*>(proposal.sequence)->keys = PartialKv::select(*proposal.kv, cache_);
            trees.push_back({&proposal, method_->begin(*proposal.tree, proposal.noise, std::ssize(proposal.context),
                                                       depth, proposal.max_width)});
        }
        trees_.grow(std::move(trees), *this);
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return max_nodes_; }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }
    [[nodiscard]] std::int64_t scratch_slots() const override { return max_nodes_ + 1; }

  private:
    void add(std::size_t /*model*/, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
             std::vector<ForwardRow>& rows) override {
        const Proposal& proposal = *tree.proposal;
        ForwardRow row;
        row.token_id = proposal.tree->token[node];
        row.position = std::ssize(proposal.context) - 1 + proposal.tree->depth[node];
        row.sequence = sequence;
        row.in_pages = sequence_of(tree).keys.num_slots;
        row.path = proposal.tree->path_to(node);
        row.path.insert(row.path.begin(), 0);
        row.place = {KvPlace::In::scratch, node};
        row.wants_logits = true;
        rows.push_back(std::move(row));
    }

    [[nodiscard]] KvView keys_of(std::size_t /*model*/, const GrowingTree& tree) const override {
        return {sequence_of(tree).keys.pages, tree.proposal->kv->scratch_pages()};
    }

    std::unique_ptr<TreeMethod> method_;
    PartialCache cache_;
    std::int64_t max_nodes_;
    ModelTrees trees_;
};

}  // namespace

std::unique_ptr<Drafter> make_self_drafter(const DraftContext& context) {
    if (context.options.models.size() != 1) throw std::logic_error("draft = self was not given its model");
    const TreeShape shape = context.options.shape();
    return std::make_unique<SelfDrafter>(context, shape, context.options.method->make_trees(shape, 1));
}

}  // namespace longhaul::engine
