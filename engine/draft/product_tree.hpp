// Trees in which all nodes of a level have the same children: a head that sees no tokens after the root predicts a
// level, not a node (medusa.cpp, tokenswift.cpp).
#pragma once

#include <cstdint>
#include <span>

#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"

namespace longhaul::engine {

/// The draws of the level below `level` (0: the root's children), of which there are branching[level]. Under the
/// sampling rules the drafts are not sampled (Draws::certain): they are the most probable tokens, without noise.
/// `passes`: TreeFamily::passes.
DraftRow product_row(const Proposal& proposal, std::int64_t level, std::span<const std::int64_t> branching,
                     std::int64_t passes = 1);

/// Adds the same children to all nodes from `level_begin` on, up to `max_nodes` in all: the tokens that the target most
/// likely draws there. Returns the index of the first child.
std::int32_t add_product_level(TokenTree& tree, std::int32_t level_begin, const Distribution& p, const DraftRow& row,
                               std::int64_t max_nodes);

}  // namespace longhaul::engine
