#include "engine/draft/draft_economy.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double keep = 0.99;               // decay per pass: a memory of about 100, to follow a growing context
constexpr double untried = 0.1;             // min_probability() during the first passes
constexpr std::int64_t passes_to_try = 16;  // number of these passes
constexpr double keep_promises = 0.998;  // decay of accepted and expected nodes; slower: drafts are rarer than passes
constexpr double prior_nodes = 1;        // weight, in nodes, of the prior that the drafters' estimates are right

}  // namespace

void DraftEconomy::record(std::int64_t rows, double seconds, std::int64_t tokens, std::int64_t accepted,
                          double expected) {
    // Caps outliers: the time of a pass that another process interrupted does not depend on its rows.
    if (weight_ > 0) seconds = std::min(seconds, 3 * seconds_ / weight_);
    const auto x = static_cast<double>(rows);
    weight_ = keep * weight_ + 1;
    rows_ = keep * rows_ + x;
    seconds_ = keep * seconds_ + seconds;
    rows_squared_ = keep * rows_squared_ + x * x;
    rows_seconds_ = keep * rows_seconds_ + x * seconds;
    tokens_ = keep * tokens_ + static_cast<double>(tokens);
    accepted_ = keep_promises * accepted_ + static_cast<double>(accepted);
    expected_ = keep_promises * expected_ + expected;
    ++passes_;
    const double spread = rows_squared_ / weight_ - rows_ / weight_ * (rows_ / weight_);
    if (spread < 0.25) return;  // all passes have about the same size: keep the previous slope
    const double joint = rows_seconds_ / weight_ - rows_ / weight_ * (seconds_ / weight_);
    slope_ = std::clamp(joint / spread, 0.0, seconds_ / rows_);
}

double DraftEconomy::min_probability() const {
    if (passes_ < passes_to_try) return untried;
    const double tokens_per_second = tokens_ / seconds_;
    // While nothing is drafted the sums decay towards the prior, so drafting is tried again.
    const double kept_promise = (accepted_ + prior_nodes) / (expected_ + prior_nodes);
    return std::clamp(slope_ * tokens_per_second / kept_promise, 0.02, 2.0);
}

}  // namespace longhaul::engine
