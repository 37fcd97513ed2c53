#include "engine/draft/drafted_share.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double slow = 0.03;  // weight of a new value; with one sequence the values are 0 or 1

}  // namespace

void DraftedShare::count(const TokenTree& tree, std::int64_t levels) {
    if (levels == 0 && tree.is_all_from(Origin::resampled)) return;
    ++trees_;
    levels_in_step_ = std::max(levels_in_step_, std::min(levels, std::ssize(levels_)));
    const std::int64_t begins = tree.ngram_chain();
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
        if (tree.origin[node] == Origin::ngram || tree.origin[node] == Origin::resampled) continue;
        const std::int64_t level = tree.depth[node] - begins - 1;
        if (level < 0 || level >= std::ssize(levels_)) continue;
        ++levels_[static_cast<std::size_t>(level)].nodes_in_step;
        ++nodes_in_step_;
    }
}

void DraftedShare::end_step(std::span<const std::int64_t> asked) {
    for (std::size_t i = 0; i < levels_.size(); ++i) {
        Level& level = levels_[i];
        if (i < asked.size() && trees_ > 0) {
            if (level.seen == 0) level.share = expected(static_cast<std::int64_t>(i));
            const double weight = std::max(slow, 1.0 / (++level.seen + 1));
            const double nodes = static_cast<double>(level.nodes_in_step) / static_cast<double>(trees_ * asked[i]);
            level.share.nodes += weight * (nodes - level.share.nodes);
            level.share.passes +=
                weight * ((static_cast<std::int64_t>(i) < levels_in_step_ ? 1 : 0) - level.share.passes);
        }
        level.nodes_in_step = 0;
    }
    levels_in_step_ = nodes_in_step_ = trees_ = 0;
}

DraftedShare::Share DraftedShare::expected(std::int64_t level) const {
    std::int64_t known = level;
    while (known >= 0 && levels_[static_cast<std::size_t>(known)].seen == 0) --known;
    if (known < 0) return {};
    Share share = levels_[static_cast<std::size_t>(known)].share;
    const Share above = known == 0 ? Share{} : levels_[static_cast<std::size_t>(known) - 1].share;
    const auto kept = [](double below, double before) { return before > 0 ? std::min(below / before, 1.0) : 0.0; };
    const Share ratio{.nodes = kept(share.nodes, above.nodes), .passes = kept(share.passes, above.passes)};
    for (; known < level; ++known) share.nodes *= ratio.nodes, share.passes *= ratio.passes;
    return share;
}

}  // namespace longhaul::engine
