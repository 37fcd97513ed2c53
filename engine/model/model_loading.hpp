// How a rank comes by its part of a model: from a folder, from a file of packed weights, or at random.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/packed_file.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// One rank's part of a model, as it is loaded.
struct LoadedModel {
    LoadedModel(const ModelConfig& of, Precision in, const kernels::Device& device, const Group& group,
                std::optional<kernels::DType> kv_dtype);

    ModelConfig config;
    Precision precision;
    Split split;
    kernels::DType act;  ///< what products with its weights read
    kernels::KvLayout layout;
    std::unique_ptr<PackedFile> packed;  ///< what `weights` may lie in
    Weights weights;
    LoadReport report;
    std::uint64_t fingerprint = 0;
    std::vector<std::string> notices;
};

/// As Model::load. Collective: where a rank fails, all throw.
std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, Precision precision,
                                        kernels::Device& device, Group& group, std::optional<kernels::DType> kv_dtype,
                                        const std::filesystem::path& packed_folder);

/// As Model::random. Not collective.
std::unique_ptr<LoadedModel> random_model(const ModelConfig& config, Precision precision, kernels::Device& device,
                                          const Group& group, std::uint64_t seed,
                                          std::optional<kernels::DType> kv_dtype);

/// Every rank's lines on the first one, each once. Collective.
void gather_lines(Group& group, std::vector<std::string>& lines);

}  // namespace longhaul::engine
