// Grows the trees of a batch level by level with passes of draft models: each level of all trees is one pass per model.
// Where the rows' keys and values are is left to the caller (DraftRows). Called by lm_drafter.cpp and self_drafter.cpp.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"

namespace longhaul::engine {

/// One tree of a batch while it grows.
struct GrowingTree {
    Proposal* proposal = nullptr;
    std::unique_ptr<TreeGrowth> growth;
    std::vector<Distribution> drafts{};  ///< one per entry of growth->wanted()
};

/// The rows of a draft pass, and the keys and values that they read and write.
class DraftRows {
  public:
    virtual ~DraftRows() = default;
    /// Adds the rows that `model` needs for the distribution after `node`; only the last one wants logits. `sequence`:
    /// index of the tree's KV in the pass.
    virtual void add(std::size_t model, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
                     std::vector<ForwardRow>& rows) = 0;
    [[nodiscard]] virtual KvView kv_of(std::size_t model, const GrowingTree& tree) const = 0;
    /// The rows of `node` were computed.
    virtual void computed(std::size_t /*model*/, const GrowingTree& /*tree*/, std::int32_t /*node*/) {}
};

class ModelTrees {
  public:
    /// The models must outlive the object. `target` (may be nullptr) bounds the drafted tokens: ids beyond its
    /// vocabulary are padding. `temperature`: of the drafts; 0: their most probable token; < 0: the
    /// target's (1 if the target is greedy).
    ModelTrees(std::span<Model* const> models, const Model* target, double temperature);

    /// Grows all trees to their end. Collective.
    void grow(std::vector<GrowingTree> trees, DraftRows& rows);

  private:
    bool grow_level(std::vector<GrowingTree>& trees, DraftRows& rows);
    void run_model(std::size_t model, std::vector<GrowingTree>& trees, DraftRows& rows);
    [[nodiscard]] SamplingParams params_of(const Proposal& proposal) const;

    std::vector<Model*> models_;
    std::vector<DraftSampler> samplers_;  ///< one per model
    double temperature_;
    // Rows and KV of the current pass.
    std::vector<ForwardRow> rows_;
    std::vector<KvView> kv_;
};

}  // namespace longhaul::engine
