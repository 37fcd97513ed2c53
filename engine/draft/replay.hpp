// Drafts of a known quality, for benchmarks and tests: the tokens that an earlier run of the same job gave, some of
// them made wrong on purpose. So the speed of speculation at a given acceptance is measured on real shapes with random
// weights.
#pragma once

#include <memory>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {

/// `options.recorded` gives the output of an item's earlier run. Each level of a tree has `width` nodes, all children
/// of one node; its first is the recorded token with probability `options.replay_accept`, else its second, and so on;
/// what is under a wrong node is wrong, too. Throws UsageError for a tree that cannot be.
std::unique_ptr<Drafter> make_replay_drafter(const DraftOptions& options);

}  // namespace longhaul::engine
