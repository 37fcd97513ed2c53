// How a replica drafts, as its caller asks for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"

namespace longhaul::engine {

class DraftHeads;
class Model;

struct DraftOptions {
    DraftMethodRef method = "ngram";
    TreeSpec tree;
    std::int64_t ngram_order = 4;
    std::int64_t ngram_top = 20;
    /// replay: the output of an item's earlier run, and how often the first guess is right.
    std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded;
    double replay_accept = 1.0;
    std::vector<Model*> models;               ///< draft language models, loaded; they must outlive the replica
    const DraftHeads* heads = nullptr;        ///< likewise, of methods that draft with heads
    double model_temperature = -1;            ///< of draft models; < 0: the target's (1 where that is greedy)
    std::function<TreeLimits()> tree_limits;  ///< tests: in the place of what `draft-tree = auto` chooses for a step

    /// Throws UsageError (tree_of).
    [[nodiscard]] TreeShape shape() const {
        return tree_of(*method, tree, std::max<std::int64_t>(static_cast<std::int64_t>(models.size()), 1));
    }
    /// Whether TreeChooser sizes the trees.
    [[nodiscard]] bool chooses_tree() const { return engine::chooses_tree(*method, tree); }
};

}  // namespace longhaul::engine
