// Draft settings of a replica, set by its caller (the runner fills them from the job file).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/kv/partial_kv.hpp"

namespace longhaul::engine {

class DraftHeads;
class DraftLayer;
class Model;

/// Texts, in tokens of the target, whose n-grams drafts know from the start.
using DraftCorpus = std::vector<std::vector<std::int32_t>>;
/// Tokens of a corpus that are read, and host memory that their n-grams take at most on each rank.
constexpr std::int64_t max_corpus_tokens = 500'000;
constexpr std::int64_t max_corpus_bytes = 180'000'000;

struct DraftOptions {
    DraftMethodRef method = "ngram";
    TreeSpec tree;
    std::int64_t ngram_order = 4;
    std::int64_t ngram_top = 20;
    std::shared_ptr<const DraftCorpus> corpus{};  ///< for methods with n-grams; not used under Noise::Kind::own
    /// replay: the output of an item in an earlier run, and the probability that the first guess is right.
    std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded;
    double replay_accept = 1.0;
    /// Loaded models that draft; the last one of a method that copies the target is the copy, or the target. They must
    /// outlive the replica.
    std::vector<Model*> models;
    PartialCache partial_cache;   ///< of methods that copy the target
    std::int64_t passes = 1;      ///< of the drafting model before its heads: the first levels of the tree
    bool before_filters = false;  ///< tokenswift: the best tokens without top-k, top-p, min-p and eta, as published
    bool decides_text = false;    ///< drafts influence the text: the rule is not `coupled`
    const DraftHeads* heads = nullptr;  ///< loaded heads, for methods that use them; must outlive the replica
    DraftLayer* layer = nullptr;        ///< a loaded draft layer, likewise
    // For methods that chain states:
    Resample resample = Resample::fused;
    TreeSpec resample_tree = default_resample_tree;
    std::int64_t resample_threshold = 0;  ///< re-samples if more levels than these remain
    double model_temperature = -1;        ///< of draft models; 0: greedy; < 0: the target's (1 if the target is greedy)
    std::function<TreeLimits()> tree_limits;  ///< tests: replaces the choice of `draft-tree = auto` in every step

    /// The tree shape of the method and these settings, the levels of `passes` included. Throws UsageError (tree_of).
    [[nodiscard]] TreeShape shape() const {
        TreeShape shape = tree_of(*method, tree, std::max<std::int64_t>(static_cast<std::int64_t>(models.size()), 1));
        shape.depth += passes - 1;
        shape.budget += passes - 1;
        if (!shape.branching.empty()) shape.branching.insert(shape.branching.begin(), passes - 1, 1);
        return shape;
    }
    /// Whether the size of the trees is left to the program.
    [[nodiscard]] bool adapts_tree() const { return !tree.is_given() || tree.is_auto(); }
    /// Whether TreeChooser chooses it.
    [[nodiscard]] bool chooses_tree() const { return engine::chooses_tree(*method, tree); }

    /// The options of one of DraftMethod::alternatives, with its own models: the last of `models` is the target or its
    /// copy, the others are draft models.
    [[nodiscard]] DraftOptions alternative(std::size_t index) const {
        DraftOptions one = *this;
        one.method = method->alternatives.at(index);
        if (one.method->copies_target) {
            one.models = {models.back()};
        } else {
            one.models.pop_back();
        }
        return one;
    }
};

}  // namespace longhaul::engine
