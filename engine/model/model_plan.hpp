// How large a model is, and what a rank will hold of it. Computed from config.json before any weight is read; used by
// loading, `check`, `inspect` and the memory plan.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weight_plan.hpp"

namespace longhaul::engine {

WeightTypes weight_types(Precision precision);

/// Number of parameters (embeddings counted once if tied).
std::int64_t num_parameters(const ModelConfig& config);
/// Those that a token's pass uses: of the experts in a layer, as many as are chosen for a token.
std::int64_t num_active_parameters(const ModelConfig& config);

/// KV layouts of one rank, one per group of layers (ModelConfig::layer_groups). Throws UsageError if `dtype` does not
/// support the head dimension.
std::vector<kernels::KvLayout> kv_layouts_of(const ModelConfig& config, const Split& split, kernels::DType dtype);

/// Bytes of a rank's weights, packed by `device`.
std::int64_t packed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                 const kernels::Device& device);

/// The part of them that a pass of one token reads: without tables of which it reads single rows.
std::int64_t streamed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                   const kernels::Device& device);

/// Largest number of inputs or outputs of the matrices in a rank's layers.
std::int64_t widest_matrix(const ModelConfig& config, const Split& split);

}  // namespace longhaul::engine
