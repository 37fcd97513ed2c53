// Loading of weights: from their source into memory or into a file of packed weights, and from that file.
#pragma once

#include <vector>

#include "engine/model/packed_file.hpp"
#include "engine/model/tensor_source.hpp"
#include "engine/model/weight_plan.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// Called when the destination of `plan` is filled. A device's own memory is allocated in granules of megabytes, of
/// which each expert's small matrices would waste a part: once all experts of a layer are there, they move into one
/// buffer.
void place_experts(const WeightPlan& plan, kernels::Device& device);

/// Packs the weights of `source` into the plans' destinations.
void load_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source);

/// Packs the matrices and vectors one after another into `file`, holding only one in memory at a time.
void write_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source,
                   PackedFileWriter& file);

/// Fills the plans' destinations from `file`, which must outlive them. Throws PackedFileError if it does not fit.
void adopt_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, const PackedFile& file);

}  // namespace longhaul::engine
