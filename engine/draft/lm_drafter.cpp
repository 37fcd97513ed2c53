#include "engine/draft/lm_drafter.hpp"

#include <algorithm>
#include <stdexcept>

#include "engine/draft/lm_sequence.hpp"
#include "engine/draft/model_trees.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

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
            pools_.push_back(make_draft_pool(*model));
            windows_.emplace_back(model->config().max_positions);
        }
    }

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        std::vector<KvPool*> pools;
        for (const auto& pool : pools_) pools.push_back(pool.get());
        return std::make_unique<LmSequence>(std::move(pools), windows_, method_->max_depth() + 2);
    }

    void propose(std::span<Proposal> proposals) override;
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations) {
            auto& sequence = static_cast<LmSequence&>(*seen.sequence);
            sequence.accept(seen.context, seen.path);
            if (seen.max_catch_up <= 0) continue;
            sequence.move_on(std::ssize(seen.context));
            for (std::size_t model = 0; model < models_.size(); ++model)
                sequence.catch_up(*models_[model], model, seen.context, seen.max_catch_up);
        }
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return max_nodes_; }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }
    [[nodiscard]] std::int64_t bytes_per_token() const override {
        std::int64_t bytes = 0;
        for (const Model* model : models_) bytes += position_bytes(model->kv_layouts());
        return bytes;
    }

    [[nodiscard]] std::int64_t bytes_per_sequence() const override {
        std::int64_t bytes = 0;
        for (const Model* model : models_) bytes += state_bytes(model->device(), model->kv_layouts(), max_nodes_);
        return bytes;
    }

  private:
    void add(std::size_t model, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
             std::vector<ForwardRow>& rows) override {
        sequence_of(tree).add_rows(model, tree.proposal->context, *tree.proposal->tree, node, sequence, rows);
    }
    [[nodiscard]] KvView kv_of(std::size_t model, const GrowingTree& tree) const override {
        return sequence_of(tree).view(model);
    }
    void computed(std::size_t model, const GrowingTree& tree, std::int32_t node) override {
        sequence_of(tree).computed(model, tree.proposal->context, *tree.proposal->tree, node);
    }

    std::vector<Model*> models_;
    std::unique_ptr<TreeMethod> method_;
    std::int64_t max_nodes_;
    bool pauses_;  ///< drafting may pause for some steps (TreeChooser)
    ModelTrees trees_;
    // One of each per model.
    std::vector<TextWindow> windows_;
    std::vector<std::unique_ptr<KvPool>> pools_;
};

void LmDrafter::propose(std::span<Proposal> proposals) {
    std::vector<GrowingTree> trees;
    for (Proposal& proposal : proposals) {
        if (proposal.max_depth <= 0) continue;
        auto& sequence = static_cast<LmSequence&>(*proposal.sequence);
        const std::int64_t size = std::ssize(proposal.context);
        sequence.move_on(size);
        if (pauses_) sequence.begin_anew_if_late(size);
        const std::int64_t depth = std::min({proposal.max_depth, method_->max_depth(), sequence.depth(size)});
        if (depth <= 0) continue;
        sequence.begin_tree(size, depth, max_nodes_);
        trees.push_back({&proposal, method_->begin(*proposal.tree, proposal.noise, size, depth, proposal.max_width)});
    }
    trees_.grow(std::move(trees), *this);
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
