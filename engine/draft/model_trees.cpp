#include "engine/draft/model_trees.hpp"

#include <algorithm>

#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

/// A row of a draft model's logits: the draft distribution after a tree node.
struct WantedRow {
    GrowingTree* tree;
    std::size_t place;  ///< index in growth->wanted()
    std::int32_t node;
    std::vector<std::int32_t> path;  ///< tokens from below the root to the node
};

/// The wanted rows of `model`, in the order of its logits rows.
std::vector<WantedRow> wanted_rows(std::size_t model, std::vector<GrowingTree>& trees) {
    std::vector<WantedRow> rows;
    for (GrowingTree& tree : trees) {
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

}  // namespace

ModelTrees::ModelTrees(std::span<Model* const> models, const Model* target, double temperature)
    : models_(models.begin(), models.end()), temperature_(temperature) {
    for (Model* model : models_) {
        const std::int64_t vocab_size = model->config().vocab_size;
        samplers_.emplace_back(model->device(),
                               target != nullptr ? std::min(vocab_size, target->config().vocab_size) : vocab_size);
    }
}

/// The target's sampling parameters with the draft's temperature. A greedy target's drafts have temperature 1 if no
/// other is given: a one-hot distribution gives no tree.
SamplingParams ModelTrees::params_of(const Proposal& proposal) const {
    SamplingParams params = *proposal.sampling;
    if (temperature_ >= 0) {
        params.temperature = temperature_;
    } else if (params.temperature == 0) {
        params.temperature = 1;
    }
    return params;
}

/// One forward pass of a draft model: the rows that all trees want from it for their next level.
void ModelTrees::run_model(std::size_t model, std::vector<GrowingTree>& trees, DraftRows& rows) {
    rows_.clear();
    kv_.clear();
    for (const GrowingTree& tree : trees) {
        const auto sequence = static_cast<std::int32_t>(kv_.size());
        bool any = false;
        for (const TreeGrowth::Wanted& wanted : tree.growth->wanted()) {
            if (wanted.model != static_cast<std::int32_t>(model)) continue;
            any = true;
            rows.add(model, tree, wanted.node, sequence, rows_);
        }
        if (any) kv_.push_back(rows.kv_of(model, tree));
    }
    if (rows_.empty()) return;
    PassResult result = models_[model]->forward({.rows = rows_, .sequences = kv_});
    const std::vector<WantedRow> wanted = wanted_rows(model, trees);
    std::vector<DraftRow> draws;
    for (const WantedRow& row : wanted) {
        const Proposal& proposal = *row.tree->proposal;
        draws.push_back({.context = {proposal.context, row.path},
                         .sampling = params_of(proposal),
                         .noise = proposal.noise,
                         .position = std::ssize(proposal.context) + std::ssize(row.path),
                         .node = row.node,
                         .lanes = row.tree->growth->lanes_of(row.place),
                         .num_draws = row.tree->growth->num_draws()});
    }
    std::vector<Distribution> drafts = samplers_[model].distributions(result.logits, draws);
    for (std::size_t r = 0; r < wanted.size(); ++r) {
        wanted[r].tree->drafts[wanted[r].place] = std::move(drafts[r]);
        rows.computed(model, *wanted[r].tree, wanted[r].node);
    }
}

/// Grows all trees by one level. False if every tree is complete.
bool ModelTrees::grow_level(std::vector<GrowingTree>& trees, DraftRows& rows) {
    std::erase_if(trees, [](const GrowingTree& tree) { return tree.growth->wanted().empty(); });
    if (trees.empty()) return false;
    for (GrowingTree& tree : trees) tree.drafts.resize(tree.growth->wanted().size());
    for (std::size_t model = 0; model < models_.size(); ++model) run_model(model, trees, rows);
    for (GrowingTree& tree : trees) {
        tree.growth->grow(tree.drafts);
        ++tree.proposal->model_passes;
    }
    return true;
}

void ModelTrees::grow(std::vector<GrowingTree> trees, DraftRows& rows) {
    for (DraftSampler& sampler : samplers_) sampler.release_kept();
    while (grow_level(trees, rows)) {
    }
}

}  // namespace longhaul::engine
