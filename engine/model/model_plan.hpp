// What a rank will hold of a model, and whether a model folder provides it. Computed from config.json and the headers
// of the weight files before any weight is read; used by loading, `check`, `inspect` and the memory plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

WeightTypes weight_types(Precision precision);

/// KV layouts of one rank, one per group of layers (ModelConfig::layer_groups). Throws UsageError if `dtype` does not
/// support the head dimension.
std::vector<kernels::KvLayout> kv_layouts_of(const ModelConfig& config, const Split& split, kernels::DType dtype);

/// All mismatches between the tensors of a folder and `config`, one line each: missing tensors, wrong shapes or types,
/// layers beyond the last. Reads no weights.
std::vector<std::string> tensor_faults(const ModelConfig& config, const SafetensorsFolder& tensors);

/// Numbered tensors ("model.layers."), whose count config.json gives in `key`.
struct NumberedTensors {
    std::string prefix, what, key;
    std::int64_t count = 0;
    std::string mtp_marker = {};  ///< see TensorNames; such layers are not reported
};
/// The same for any weight plans. Also reports numbered tensors beyond `count`: a config.json with too small a count
/// would run and produce nonsense.
std::vector<std::string> tensor_faults(const std::vector<WeightPlan>& plans, const NumberedTensors& numbered,
                                       const SafetensorsFolder& tensors);

/// Bytes of a rank's weights, packed by `device`.
std::int64_t packed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                 const kernels::Device& device);

/// The part of them that a pass of one token reads: without tables of which it reads single rows.
std::int64_t streamed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                   const kernels::Device& device);

/// Largest number of inputs or outputs of the matrices in a rank's layers.
std::int64_t widest_matrix(const ModelConfig& config, const Split& split);

/// Upper bound on the bytes of a rank's passes besides weights and KV, for `rows` rows of which `logit_rows` have
/// logits. Excludes what the device's operations allocate themselves.
std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows);

/// Identity of a model: hash of its config and of the fingerprint of its weights.
std::uint64_t model_fingerprint(const ModelConfig& config, std::uint64_t weights);

}  // namespace longhaul::engine
