// `draft-tree = auto`: depth and width of the next trees, for the most tokens a second of the whole batch. From what
// passes of target and draft models cost (CostModel, set right by what they turn out to take) and how often drafts are
// accepted (Acceptance). Where drafts do not pay it pauses them, and tries again ever more rarely, with a small part of
// the time that went by. On a group's first rank; it depends on measured time, so only `coupled` may use it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/acceptance.hpp"
#include "engine/draft/methods.hpp"
#include "engine/model/cost_model.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

/// Measured seconds over modelled ones, by number of rows: other sequences, communication and the work between passes
/// are in no model.
class Correction {
  public:
    [[nodiscard]] double factor(std::int64_t rows) const;
    void record(std::int64_t rows, double modelled, double measured);

  private:
    struct Share {
        double factor = 1;
        int seen = 0;
    };
    static std::size_t size_class(std::int64_t rows);

    Share all_;                        ///< the machine's speed now
    std::array<Share, 12> of_size_{};  ///< beside that, of passes of so many rows
};

class TreeChooser {
  public:
    /// The sequences that decode.
    struct Batch {
        std::int64_t sequences = 1;
        std::int64_t context = 1;  ///< positions, in the mean
    };
    /// What a step took and brought.
    struct Step {
        std::int64_t sequences = 0, rows = 0;  ///< that decoded; of the target's pass
        std::int64_t tokens = 0;               ///< emitted
        double draft_seconds = 0, forward_seconds = 0, verify_seconds = 0;
        bool measured = true;  ///< false: the pass computed parts of prompts as well
    };

    TreeChooser(TreeFamily family, CostModel target, std::vector<CostModel> drafts);

    /// The trees of the next step; none where no sequence decodes.
    TreeLimits choose(const Batch& batch);

    /// Drafts do not pay: those that sequences lack are not waited for.
    [[nodiscard]] bool pauses() const { return paused_; }

    /// After choose: a tree of the step, see Acceptance::record.
    void verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended);
    /// After choose, once the step's trees are verified.
    void record(const Step& step);

  private:
    struct Candidate {
        TreeLimits limits{.depth = 0, .width = 0};
        std::int64_t nodes = 0, level_nodes = 1;  ///< of the lowest level
        double drafting = 0;                      ///< seconds of the whole batch, as modelled
        double tokens = 1, seconds = 0;           ///< expected, of one sequence; of the whole batch
        [[nodiscard]] double rate() const { return tokens / seconds; }
    };
    [[nodiscard]] Candidate plain() const;
    [[nodiscard]] Candidate best_tree(std::int64_t max_depth, double hope = 0) const;
    [[nodiscard]] Candidate further(const Candidate& from) const;
    [[nodiscard]] double drafting_seconds(std::int64_t level, std::int64_t rows, const Candidate& tree) const;
    void add_level(Candidate& tree) const;
    [[nodiscard]] Candidate sized(const TreeLimits& limits) const;
    [[nodiscard]] double draft_factor(const Candidate& tree) const;
    [[nodiscard]] double level_seconds(std::int64_t rows, std::int64_t width) const;
    [[nodiscard]] double pass_seconds(const CostModel& costs, std::int64_t rows) const;
    [[nodiscard]] double target_seconds(std::int64_t rows) const;
    [[nodiscard]] std::int64_t depth_in_reach() const;
    [[nodiscard]] std::int64_t probe_depth() const { return std::min(family_.max_depth, std::int64_t{2}); }
    [[nodiscard]] bool may_probe() const;
    [[nodiscard]] double patience() const;
    TreeLimits next_trees();
    void pause();
    void end_probe();
    void weigh(const Step& step, double seconds);

    TreeFamily family_;
    CostModel target_;
    std::vector<CostModel> drafts_;
    Acceptance acceptance_;
    Correction target_correction_, draft_correction_;
    double verify_seconds_ = 0;  ///< a token

    Batch batch_;
    Candidate chosen_;   ///< while drafting
    TreeLimits limits_;  ///< of this step
    std::int64_t step_ = 0;
    bool drafted_before_ = false;    ///< in the step before
    std::int64_t not_drafted_ = 0;   ///< tokens of a sequence since the last draft
    double elapsed_ = 0, lost_ = 0;  ///< seconds; of them those that drafts cost more than they brought

    bool paused_ = false;
    std::int64_t probe_left_ = 0;               ///< steps
    std::int64_t pause_ = 16, next_probe_ = 0;  ///< steps; the step
};

}  // namespace longhaul::engine
