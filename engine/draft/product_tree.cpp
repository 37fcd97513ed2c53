#include "engine/draft/product_tree.hpp"

#include <algorithm>

namespace longhaul::engine {

DraftRow product_row(const Proposal& proposal, std::int64_t level, std::span<const std::int64_t> branching,
                     std::int64_t passes) {
    static constexpr std::uint32_t first_lane = 0;
    DraftRow row{.context = {proposal.context, {}},
                 .sampling = *proposal.sampling,
                 .noise = proposal.noise,
                 .position = std::ssize(proposal.context) + level,
                 .lanes = {&first_lane, 1},
                 .num_draws = branching[static_cast<std::size_t>(level)],
                 .with_q = false};
    if (row.sampling.temperature == 0) row.sampling.temperature = 1;  // a one-hot distribution gives no tree
    if (level > 0) row.sampling.constraint = nullptr;                 // which path it is for is not known
    if (row.noise.is_own()) row.noise.kind = Noise::Kind::silent;
    if (proposal.max_width < TreeLimits::none) {
        const TreeFamily family{.widths = {}, .branches = true, .passes = passes};
        row.num_draws = std::min(row.num_draws, family.fan_out(level, proposal.max_width));
    }
    return row;
}

std::int32_t add_product_level(TokenTree& tree, std::int32_t level_begin, const Distribution& p, const DraftRow& row,
                               std::int64_t max_nodes) {
    const std::vector<Perturbed> best = gumbel_top_k(p, row.noise.row(row.position, 0, 0), row.num_draws);
    const std::int32_t level_end = tree.num_nodes();
    for (std::int32_t parent = level_begin; parent < level_end; ++parent) {
        for (const Perturbed& draw : best) {
            if (tree.num_nodes() <= max_nodes) tree.add(parent, p.ids[draw.place], Origin::model);
        }
    }
    return level_end;
}

}  // namespace longhaul::engine
