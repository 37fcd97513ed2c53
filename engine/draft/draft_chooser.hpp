// What `draft-tree = auto` decides for the next step: the size of the trees (TreeChooser), and of a method with
// alternatives also which of them drafts (MethodChooser). Called by the replica on a group's first rank.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/draft/method_chooser.hpp"
#include "engine/draft/tree_chooser.hpp"

namespace longhaul::engine {

class DraftChooser {
  public:
    /// One TreeChooser per method: DraftMethod::alternatives, or the method itself.
    explicit DraftChooser(std::vector<TreeChooser> methods);

    /// Method and tree limits of the next step; depth 0 if no sequence decodes or nothing pays.
    TreeLimits choose(const TreeChooser::Batch& batch);

    /// See TreeChooser; of the next step's method.
    [[nodiscard]] double node_price() const { return trees_[method_].node_price(); }

    /// Whether a sequence that has not decoded yet waits for its drafter to read the text: not while drafting pauses,
    /// and not for a draft model that another method is certainly faster than.
    [[nodiscard]] bool feeds() const;

    /// Called after choose() for each tree of the step; see TreeChooser.
    void verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended, std::int64_t model_passes);
    /// Called after choose(), once all trees of the step are verified.
    void record(const TreeChooser::Step& step);

  private:
    std::vector<TreeChooser> trees_;        ///< one per method
    std::optional<MethodChooser> methods_;  ///< if there are two
    TreeChooser::Batch batch_{};
    std::size_t method_ = 0;  ///< of this step
};

}  // namespace longhaul::engine
