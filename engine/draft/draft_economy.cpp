#include "engine/draft/draft_economy.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double keep = 0.99;    // weight of the past: about 100 passes, so it follows a growing context
constexpr double untried = 0.1;  // until enough passes of different sizes were seen
constexpr std::int64_t passes_to_try = 16;
constexpr double keep_promises = 0.998;  // drafts are rarer than passes: a longer memory
constexpr double prior_nodes = 1;        // weight of the belief that drafters expect what happens

}  // namespace

void DraftEconomy::record(std::int64_t rows, double seconds, std::int64_t tokens, std::int64_t accepted,
                          double expected) {
    // A pass that was interrupted by another process says nothing about rows.
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
    if (spread < 0.25) return;  // all passes alike: what was learned before stays
    const double joint = rows_seconds_ / weight_ - rows_ / weight_ * (seconds_ / weight_);
    slope_ = std::clamp(joint / spread, 0.0, seconds_ / rows_);
}

double DraftEconomy::min_probability() const {
    if (passes_ < passes_to_try) return untried;
    const double tokens_per_second = tokens_ / seconds_;
    // With nothing drafted the sums fade, and the belief returns: drafting is tried again.
    const double kept_promise = (accepted_ + prior_nodes) / (expected_ + prior_nodes);
    return std::clamp(slope_ * tokens_per_second / kept_promise, 0.02, 2.0);
}

}  // namespace longhaul::engine
