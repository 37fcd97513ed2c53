// Loads one rank's part of a model: from a model folder, from a file of packed weights, or with random values. Called
// by Model::load and Model::random.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/packed_file.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// One rank's part of a loaded model.
struct LoadedModel {
    LoadedModel(const ModelConfig& of, Precision in, const kernels::Device& device, const Group& group,
                std::optional<kernels::DType> kv_dtype);

    ModelConfig config;
    Precision precision;
    Split split;
    kernels::DType act;                      ///< input type of matmuls with its weights
    std::vector<kernels::KvLayout> layouts;  ///< by group of layers
    std::unique_ptr<PackedFile> packed;      ///< the mapped file that `weights` may point into
    Weights weights;
    LoadReport report;
    std::uint64_t fingerprint = 0, adapter_fingerprint = 0;
    std::vector<std::string> notices;
};

/// As Model::load. Collective: if a rank fails, all ranks throw.
std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, Precision precision,
                                        kernels::Device& device, Group& group, std::optional<kernels::DType> kv_dtype,
                                        const std::filesystem::path& packed_folder,
                                        const std::filesystem::path& adapter_folder);

/// As Model::random. Not collective.
std::unique_ptr<LoadedModel> random_model(const ModelConfig& config, Precision precision, kernels::Device& device,
                                          const Group& group, std::uint64_t seed,
                                          std::optional<kernels::DType> kv_dtype);

/// Appends the lines of all ranks to `lines` on the first rank, without duplicates. Collective.
void gather_lines(Group& group, std::vector<std::string>& lines);

}  // namespace longhaul::engine
