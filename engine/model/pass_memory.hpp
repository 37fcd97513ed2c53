// Memory that the passes of a model take on one rank, computed from its configuration. Used to size KV caches.
#pragma once

#include <cstdint>

#include "engine/model/config.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/split.hpp"

namespace longhaul::engine {

/// Upper bound on the bytes of a rank's passes besides weights and KV, for `rows` rows of which `logit_rows` have
/// logits. Excludes what the device's operations allocate themselves.
std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows);

}  // namespace longhaul::engine
