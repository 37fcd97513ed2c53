// Whether the tensors of a model folder are those that its config.json describes. Computed from the headers of the
// weight files before any weight is loaded; used by loading and `check`, also for what drafts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/weight_plan.hpp"

namespace longhaul::engine {

/// All mismatches between the tensors of a folder and `config`, one line each: missing tensors, wrong shapes or types,
/// layers beyond the last. Reads no weights.
std::vector<std::string> tensor_faults(const ModelConfig& config, const SafetensorsFolder& tensors);

/// Numbered tensors ("model.layers."), whose count config.json gives in `key`. prefix = "": there are none.
struct NumberedTensors {
    std::string prefix = {}, what = {}, key = {};
    std::int64_t count = 0;
    std::string marker = {};  ///< items that have a tensor of this name are something else, and not reported
};
/// The same for any weight plans. Also reports numbered tensors beyond `count`: a config.json with too small a count
/// would run and produce nonsense.
std::vector<std::string> tensor_faults(const std::vector<WeightPlan>& plans, const NumberedTensors& numbered,
                                       const SafetensorsFolder& tensors);

}  // namespace longhaul::engine
