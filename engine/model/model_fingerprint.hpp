// Which model it is: run folders and checkpoints of one model are refused by any other.
#pragma once

#include <cstdint>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// Identity of a model: hash of its config, and of the fingerprint of its weights.
std::uint64_t model_fingerprint(const ModelConfig& config, std::uint64_t weights);

}  // namespace longhaul::engine
