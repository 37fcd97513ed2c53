// Drafts of small language models with the target's vocabulary: sd, spectr, specinfer, rsd-c, rsd-s. Each level of all
// trees of a batch is one pass of a draft model with tree attention; keys and values of accepted nodes are kept.
#pragma once

#include <memory>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {

/// `options.models`: as many as the method takes. A model may be sharded over the target's group, or held whole by
/// every rank: its own group says. Throws UsageError for a tree that cannot be.
std::unique_ptr<Drafter> make_lm_drafter(const DraftContext& context);

}  // namespace longhaul::engine
