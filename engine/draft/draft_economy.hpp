// Decides when another draft node pays: it costs one more row of the target's forward pass and saves a token if it is
// accepted. Measured while decoding: seconds per pass by number of rows, tokens per second, and accepted nodes against
// those the drafter expected. Used on a group's first rank, only under `coupled`, where measured time cannot change the
// text. For drafters that estimate a probability per node
// (Drafter::adapts). TreeChooser limits the trees of models.
#pragma once

#include <cstdint>

namespace longhaul::engine {

class DraftEconomy {
  public:
    /// Draft nodes of one kind: how many were accepted, and how many their drafter expected to be accepted.
    struct Calibration {
        double accepted = 0, expected = 0;
    };
    /// A decode step.
    struct Step {
        std::int64_t rows = 0;       ///< of the target's pass
        std::int64_t sequences = 1;  ///< that decoded
        double seconds = 0;          ///< of pass and verification
        std::int64_t model_passes = 0;
        double draft_seconds = 0;
        std::int64_t tokens = 0;  ///< emitted
        Calibration ngrams{}, models{};
        /// First levels of a model's drafts that were compared with the text, and those of which a node was accepted.
        std::int64_t first_drafts = 0, right_first_drafts = 0;
    };
    void record(const Step& step);
    /// The price of a node as a cost model has it, in tokens: what counts until passes of different sizes are measured.
    void set_modelled_price(double price) { modelled_price_ = price; }

    /// The smallest acceptance probability, as n-grams estimate it, at which another node pays.
    [[nodiscard]] double min_probability() const;
    /// The smallest acceptance probability of a model's draft, as the model estimates it, at which one more pass of the
    /// model, for a node below that draft, pays.
    [[nodiscard]] double min_level_probability() const;
    /// The smallest acceptance probability, as n-grams estimate it, at which an n-gram in place of a model's next draft
    /// gains: it saves the model's pass, and loses the drafts below where it is wrong and the model would be right.
    [[nodiscard]] double sure_probability() const;

    /// The same at which one more node of a model's tree pays, if it needs no further pass of the model.
    [[nodiscard]] double min_node_probability() const;

  private:
    [[nodiscard]] static double kept(const Calibration& calibration);
    [[nodiscard]] double modelled_price() const;
    [[nodiscard]] double row_seconds() const;
    [[nodiscard]] double price(double seconds, const Calibration& calibration) const;

    // Exponentially weighted sums over the passes, for a line fit of (rows, seconds) and for tokens per second.
    double weight_ = 0, rows_ = 0, seconds_ = 0, rows_squared_ = 0, rows_seconds_ = 0, tokens_ = 0;
    double all_seconds_ = 0;         ///< drafts included
    double draft_pass_seconds_ = 0;  ///< per sequence
    Calibration ngrams_, models_;
    double first_drafts_ = 0, right_first_drafts_ = 0, model_tokens_ = 0;  ///< sums over steps with models' drafts
    double slope_ = 0;
    bool slope_known_ = false;
    double modelled_price_ = 0;
    std::int64_t passes_ = 0;
};

}  // namespace longhaul::engine
