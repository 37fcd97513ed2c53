// What a rank of a model will hold, and whether a folder has it: known from config.json and the headers of the weights,
// before a weight is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

WeightTypes weight_types(Precision precision);

/// Keys and values of one rank. Throws UsageError where a type cannot hold them.
kernels::KvLayout kv_layout_of(const ModelConfig& config, const Split& split, kernels::DType dtype);

/// Everything that keeps the tensors of a folder from being those of `config`, a line each: missing ones, other shapes
/// and types, layers beyond the last. Reads no weights.
std::vector<std::string> tensor_faults(const ModelConfig& config, const SafetensorsFolder& tensors);

/// Tensors of numbered things, "model.layers.", of which config.json's `key` says how many there are.
struct NumberedTensors {
    std::string prefix, what, key;
    std::int64_t count = 0;
};
/// The same of any plans. A config.json that says fewer things than there are would run, and write nonsense.
std::vector<std::string> tensor_faults(const std::vector<WeightPlan>& plans, const NumberedTensors& numbered,
                                       const SafetensorsFolder& tensors);

/// Bytes of a rank's weights as `device` packs them.
std::int64_t packed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                 const kernels::Device& device);

/// Inputs or outputs of the widest matrix of a rank's layers.
std::int64_t widest_matrix(const ModelConfig& config, const Split& split);

/// Bytes that a rank's passes take beside weights, keys and values, at most: of so many rows, and so many of them with
/// logits. What a device's operations need for themselves is not in it.
std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows);

/// Identity of a model: its config, and the fingerprint of its weights.
std::uint64_t model_fingerprint(const ModelConfig& config, std::uint64_t weights);

}  // namespace longhaul::engine
