// Drafts of small language models with the target's vocabulary: methods sd, spectr, specinfer, rsd-c, rsd-s
// (ALGORITHMS.md section 4). Each level of all trees of a batch is one forward pass per draft model, with tree
// attention. The draft KV of accepted nodes is kept.
#pragma once

#include <memory>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {

/// `options.models` must hold as many models as the method takes. A model is sharded over the target's group or
/// replicated on every rank, depending on the group it was loaded with. Throws UsageError for an invalid tree.
std::unique_ptr<Drafter> make_lm_drafter(const DraftContext& context);

}  // namespace longhaul::engine
