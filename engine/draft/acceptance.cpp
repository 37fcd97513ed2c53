#include "engine/draft/acceptance.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace longhaul::engine {
namespace {

constexpr double keep = 0.995;  // decay per trial: a memory of about 200 trials
// Decay of the short memory (about 20 trials), and the standard errors between both at which the long one is reset.
constexpr double keep_last = 0.95, clear_change = 3.5;
constexpr double doubted = 0.3;  // factor on the counts in doubt()
// Prior of the first level: high enough that drafts are tried, with a weight that a few misses outweigh.
constexpr double first_chance = 0.6, wider_chance = 0.25, first_weight = 2;
constexpr double level_weight = 4;  // weight, in trials, of the prior that a level equals the one above it

/// Standard error of a ratio observed in `trials` trials. Smoothed, so that it is not 0 where nothing was accepted.
double standard_error(double share, double trials) {
    const double likely = (share * trials + 0.5) / (trials + 1);
    return std::sqrt(likely * (1 - likely) / (trials + 1));
}

}  // namespace

void Acceptance::Cell::count(bool hit) {
    trials = keep * trials + 1;
    hits = keep * hits + (hit ? 1 : 0);
    last_trials = keep_last * last_trials + 1;
    last_hits = keep_last * last_hits + (hit ? 1 : 0);
    const double share = hits / trials;
    const double change = std::abs(last_hits / last_trials - share);
    // The text has changed (another item, for example): drop the long memory.
    if (change > clear_change * standard_error(share, last_trials)) trials = last_trials, hits = last_hits;
}

Acceptance::Acceptance(TreeFamily family)
    : family_(std::move(family)),
      cells_(static_cast<std::size_t>(family_.max_depth), std::vector<Cell>(family_.widths.size())) {
    // The prior is stored as trials, so it decays like them.
    for (std::size_t i = 0; i < family_.widths.size(); ++i)
        cells_[0][i] = {.trials = first_weight, .hits = first_weight * (i == 0 ? first_chance : wider_chance)};
}

/// Index of the smallest width whose trees contain `node`. Nodes of a level are in draw order.
std::size_t Acceptance::narrowest_with(const TokenTree& tree, std::int32_t node, std::int64_t level) const {
    const auto at = static_cast<std::size_t>(node);
    std::int64_t place = 0;
    for (std::size_t other = at; other-- > 0 && tree.depth[other] == tree.depth[at];)
        place += !family_.branches || tree.parent[other] == tree.parent[at] ? 1 : 0;
    std::size_t width = 0;
    while (width + 1 < family_.widths.size() && place >= family_.fan_out(level, family_.widths[width])) ++width;
    return width;
}

bool Acceptance::record(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended,
                        const TreeLimits& limits) {
    // Nodes of n-grams and of re-sampling say nothing about the drafts of models.
    const auto is_other = [&](std::int32_t node) {
        return tree.origin[node] == Origin::ngram || tree.origin[node] == Origin::resampled;
    };
    // A model that drafts below a chain of n-grams begins anew there.
    const std::int64_t begins = tree.ngram_chain();
    if (std::ssize(accepted) < begins) return false;
    accepted = accepted.subspan(static_cast<std::size_t>(begins));
    accepted = accepted.first(std::find_if(accepted.begin(), accepted.end(), is_other) - accepted.begin());
    deepest_ = std::max(deepest_, static_cast<std::int64_t>(accepted.size()));
    const auto above = std::upper_bound(family_.widths.begin(), family_.widths.end(), limits.width);
    const auto grown = static_cast<std::size_t>(std::max<std::ptrdiff_t>(above - family_.widths.begin(), 1)) - 1;
    std::size_t narrowest = 0;  // index of the smallest width whose trees contain the accepted path so far
    const std::int64_t depth = std::min(limits.depth, std::ssize(cells_));
    for (std::size_t level = 0; std::cmp_less(level, depth); ++level) {
        const bool hit = level < accepted.size();
        if (!hit && ended) break;
        const std::size_t found =
            hit ? std::min(narrowest_with(tree, accepted[level], static_cast<std::int64_t>(level)), grown) : grown + 1;
        for (std::size_t i = narrowest; i <= std::min(found, grown); ++i) {
            cells_[level][i].count(i == found);
        }
        if (!hit) break;
        narrowest = std::max(narrowest, found);
    }
    return true;
}

std::int64_t Acceptance::fan_out(std::size_t level, std::size_t width) const {
    return family_.fan_out(static_cast<std::int64_t>(level), family_.widths[width]);
}

std::vector<double> Acceptance::chances(std::size_t width, std::int64_t depth, double hope) const {
    std::vector<double> all_miss(static_cast<std::size_t>(depth), 1.0);
    for (std::size_t i = 0; i <= width; ++i) {
        double belief = 0;
        double weight = 0;  // the first level has its own prior
        bool same_so_far = i > 0;
        for (std::size_t level = 0; level < all_miss.size(); ++level) {
            same_so_far = same_so_far && fan_out(level, i) == fan_out(level, i - 1);
            if (same_so_far) continue;  // the same nodes as in the next narrower trees
            const Cell& cell = cells_[level][i];
            belief = (cell.hits + weight * belief) / (cell.trials + weight);
            weight = level_weight;
            const double hoped = hope > 0 && i == 0 ? hope * standard_error(belief, cell.trials + weight) : 0;
            all_miss[level] *= std::max(0.0, 1 - belief - hoped);
        }
    }
    for (double& chance : all_miss) chance = 1 - chance;
    return all_miss;
}

void Acceptance::doubt() {
    for (std::vector<Cell>& level : cells_) {
        for (Cell& cell : level) {
            if (cell.trials > level_weight) cell.trials *= doubted, cell.hits *= doubted;
        }
    }
}

}  // namespace longhaul::engine
