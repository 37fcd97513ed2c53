// `draft-tree = auto`: chooses depth and width of the next trees to maximise tokens per second of the whole batch. Uses
// the modelled cost of target and draft passes (CostModel, corrected by measured times) and the acceptance of drafts
// (Acceptance). If drafts do not pay, it pauses drafting and probes again at growing intervals, and when the text has
// grown by a quarter or half of the sequences have ended, within a small share of the elapsed time. Called by the
// replica on a group's first rank; it depends on measured time, so only `coupled` may use it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/acceptance.hpp"
#include "engine/draft/drafted_share.hpp"
#include "engine/draft/methods.hpp"
#include "engine/model/cost_model.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::engine {

/// Ratio of measured to modelled seconds, by number of rows (of drafts: by number of nodes). The model does not cover
/// other sequences, communication and the work between passes.
class Correction {
  public:
    [[nodiscard]] double factor(std::int64_t rows) const;
    /// `rare`: passes of this size are measured now and then only, so that each of them says more.
    void record(std::int64_t rows, double modelled, double measured, bool rare = false);

  private:
    struct Share {
        double factor = 1;
        int seen = 0;
    };
    static std::size_t size_class(std::int64_t rows);

    Share all_;                        ///< common factor: the machine's current speed
    std::array<Share, 12> of_size_{};  ///< additional factor of each size class
};

class TreeChooser {
  public:
    /// The decoding sequences.
    struct Batch {
        std::int64_t sequences = 1;
        std::int64_t context = 1;  ///< mean number of positions per sequence
        std::int64_t prompt = 0;   ///< of these, in the prompt
    };
    /// Times and result of a step.
    struct Step {
        std::int64_t sequences = 0, rows = 0;  ///< sequences that decoded; rows of the target's pass
        std::int64_t tokens = 0;               ///< tokens emitted
        std::int64_t ngram_rows = 0;           ///< n-gram nodes in trees of models
        std::int64_t ngram_tokens = 0;         ///< the part of `tokens` that these nodes brought
        double draft_seconds = 0, forward_seconds = 0, verify_seconds = 0;
        bool measured = true;  ///< false: some sequence in flight did not decode, so the times cover prefill as well
    };

    TreeChooser(TreeFamily family, CostModel target, std::vector<CostModel> drafts);

    /// Tree limits of the next step; depth 0 if no sequence decodes.
    TreeLimits choose(const Batch& batch);

    /// Whether drafting is paused because it does not pay. Sequences then do not wait for their drafters to catch up.
    [[nodiscard]] bool pauses() const { return paused_; }

    /// What one more row of each sequence costs, in tokens of plain decoding; at first from the cost model alone.
    [[nodiscard]] double node_price() const;

    /// Called after choose() for each tree of the step, with the passes of models that drafted it; see
    /// Acceptance::record.
    void verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended, std::int64_t model_passes);
    /// Called after choose(), once all trees of the step are verified.
    void record(const Step& step);
    /// Called in place of choose(), verified() and record() after a step in which another method drafted.
    void pass_over(const Step& step);

    /// Whether the drafter has to read the text that it did not draft for.
    [[nodiscard]] bool follows_text() const { return family_.follows_text; }

  private:
    struct Candidate {
        TreeLimits limits{.depth = 0, .width = 0};
        std::int64_t nodes = 0, level_nodes = 1;           ///< of the tree, root excluded; of its lowest level
        double drafting = 0;                               ///< modelled seconds of drafting for the whole batch
        double expected_nodes = 0, expected_drafting = 0;  ///< the parts of both that are not left out (DraftedShare)
        double tokens = 1, seconds = 0;                    ///< expected tokens per sequence; seconds of the whole batch
        [[nodiscard]] double rate() const { return tokens / seconds; }
    };
    [[nodiscard]] Candidate plain() const;
    [[nodiscard]] Candidate best_tree(std::int64_t max_depth, double hope = 0) const;
    [[nodiscard]] Candidate further(const Candidate& from) const;
    [[nodiscard]] double drafting_seconds(std::int64_t level, std::int64_t rows, const Candidate& tree) const;
    void add_level(Candidate& tree) const;
    [[nodiscard]] Candidate sized(const TreeLimits& limits) const;
    [[nodiscard]] double draft_factor(const Candidate& tree) const;
    [[nodiscard]] std::int64_t levels_drafted(const TokenTree& tree, std::int64_t model_passes) const;
    [[nodiscard]] double level_seconds(std::int64_t rows, std::int64_t width) const;
    [[nodiscard]] double pass_seconds(const CostModel& costs, std::int64_t rows, std::int64_t context) const;
    [[nodiscard]] double target_model(double mean_rows) const;
    [[nodiscard]] double target_seconds(double mean_rows) const;
    [[nodiscard]] std::int64_t depth_in_reach() const;
    [[nodiscard]] std::int64_t probe_depth() const { return std::min(family_.max_depth, std::int64_t{2}); }
    [[nodiscard]] bool may_probe() const;
    [[nodiscard]] double patience() const;
    /// Tokens that draft models must read before they can draft.
    [[nodiscard]] std::int64_t not_read() const {
        return family_.follows_text ? std::min(not_drafted_, max_catching_up) : 0;
    }
    TreeLimits next_trees();
    void cap_losses();
    void pause();
    void end_probe();
    void weigh(const Step& step, double seconds);
    void learn_drafted_share();
    [[nodiscard]] double reading_seconds() const;

    TreeFamily family_;
    CostModel target_;
    std::vector<CostModel> drafts_;
    Acceptance acceptance_;
    DraftedShare drafted_share_;
    double reached_share_ = 1;  ///< of the trees: those in which the text got to the first level of a model's drafts
    double reached_weight_;     ///< of the next tree in it
    Correction target_correction_, draft_correction_;
    double verify_seconds_ = 0;  ///< per token
    double delay_ = 1;  ///< mean of measured / expected seconds of a target pass: above 1 beside other processes
    /// What n-grams add per sequence and step.
    struct NgramGain {
        double rows = 0, tokens = 0;
    };
    std::array<NgramGain, 2> ngrams_{};  ///< [0]: steps in which models do not draft; [1]: the others

    Batch batch_;
    Candidate chosen_;   ///< while not paused
    TreeLimits limits_;  ///< of this step
    std::int64_t step_ = 0;
    bool drafted_before_ = false;    ///< whether the previous step drafted
    std::int64_t not_drafted_ = 0;   ///< tokens per sequence since the last draft
    double elapsed_ = 0, lost_ = 0;  ///< seconds of all measured steps; seconds that drafts cost beyond their gain

    bool paused_ = false;
    Batch probed_;                              ///< that of the last probe, or of the pause's beginning
    std::int64_t probe_left_ = 0;               ///< steps left of the current probe
    std::int64_t pause_ = 16, next_probe_ = 0;  ///< steps between probes; first step at which the next may begin
};

}  // namespace longhaul::engine
