#include "engine/draft/draft_economy.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double keep_passes = 0.99;        // decay per pass: a memory of about 100, to follow a growing context
constexpr double min_modelled_price = 0.1;  // rows that cost nothing are tried, not all of them
constexpr std::int64_t passes_to_try = 16;  // number of these passes
constexpr double min_price = 0.02, max_price = 2;
// Decay per pass of the cost of a row while it is not measured: one that interrupted passes made too high is tried
// again.
constexpr double forget = 0.9998;
constexpr double keep_drafts = 0.98;  // decay of the time of a draft pass
constexpr double keep_calibration =
    0.998;                         // decay of accepted and expected nodes; slower: drafts are rarer than passes
constexpr double fair_trial = 8;   // drafts of a model before n-grams may stand in for it
constexpr double prior_nodes = 1;  // weight, in nodes, of the prior that the drafters' estimates are right

void add(const DraftEconomy::Calibration& step, DraftEconomy::Calibration& sum) {
    sum.accepted = keep_calibration * sum.accepted + step.accepted;
    sum.expected = keep_calibration * sum.expected + step.expected;
}

}  // namespace

void DraftEconomy::record(const Step& step) {
    // Caps outliers: the time of a pass that another process interrupted does not depend on its rows.
    double seconds = step.seconds;
    if (weight_ > 0) seconds = std::min(seconds, 3 * seconds_ / weight_);
    if (step.model_passes > 0) {
        const double each =
            step.draft_seconds / static_cast<double>(step.model_passes * std::max<std::int64_t>(step.sequences, 1));
        const double known = draft_pass_seconds_;
        draft_pass_seconds_ = known == 0 ? each : known + (1 - keep_drafts) * (std::min(each, 3 * known) - known);
    }
    const auto x = static_cast<double>(step.rows);
    weight_ = keep_passes * weight_ + 1;
    rows_ = keep_passes * rows_ + x;
    seconds_ = keep_passes * seconds_ + seconds;
    rows_squared_ = keep_passes * rows_squared_ + x * x;
    rows_seconds_ = keep_passes * rows_seconds_ + x * seconds;
    tokens_ = keep_passes * tokens_ + static_cast<double>(step.tokens);
    all_seconds_ = keep_passes * all_seconds_ + seconds + step.draft_seconds;
    add(step.ngrams, ngrams_);
    add(step.models, models_);
    if (step.first_drafts > 0) {
        first_drafts_ = keep_passes * first_drafts_ + static_cast<double>(step.first_drafts);
        right_first_drafts_ = keep_passes * right_first_drafts_ + static_cast<double>(step.right_first_drafts);
        model_tokens_ = keep_passes * model_tokens_ + step.models.accepted;
    }
    ++passes_;
    const double spread = rows_squared_ / weight_ - rows_ / weight_ * (rows_ / weight_);
    if (spread < 0.25) {  // all passes have about the same size
        slope_ *= forget;
        return;
    }
    const double joint = rows_seconds_ / weight_ - rows_ / weight_ * (seconds_ / weight_);
    slope_known_ = true;
    slope_ = std::clamp(joint / spread, 0.0, seconds_ / rows_);
}

/// Accepted drafts per expected one. While nothing is drafted this goes back to 1, so drafting is tried again.
double DraftEconomy::kept(const Calibration& calibration) {
    return (calibration.accepted + prior_nodes) / (calibration.expected + prior_nodes);
}

double DraftEconomy::modelled_price() const {
    return std::clamp(modelled_price_, min_modelled_price, max_price);
}

/// Passes that all had about the same size say nothing about a row.
double DraftEconomy::row_seconds() const {
    return slope_known_ || tokens_ == 0 ? slope_ : modelled_price() * all_seconds_ / tokens_;
}

/// The chance, as its drafter estimates it, that a draft must have to be worth `seconds`.
double DraftEconomy::price(double seconds, const Calibration& calibration) const {
    if (passes_ < passes_to_try) return modelled_price();
    return std::clamp(seconds * tokens_ / all_seconds_ / kept(calibration), min_price, max_price);
}

double DraftEconomy::min_probability() const {
    return price(row_seconds(), ngrams_);
}

double DraftEconomy::min_node_probability() const {
    return price(row_seconds(), models_);
}

double DraftEconomy::min_level_probability() const {
    return price(row_seconds() + draft_pass_seconds_, models_);
}

double DraftEconomy::sure_probability() const {
    if (first_drafts_ < fair_trial || model_tokens_ <= 0) return 1;
    const double right = right_first_drafts_ / first_drafts_;
    const double tokens_if_right = model_tokens_ / right_first_drafts_;
    const double tokens_saved = draft_pass_seconds_ * tokens_ / all_seconds_;
    return std::clamp((right - tokens_saved / tokens_if_right) / kept(ngrams_), 0.5, 1.0);
}

}  // namespace longhaul::engine
