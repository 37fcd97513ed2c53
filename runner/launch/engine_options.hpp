// What settings mean to the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/model/model.hpp"
#include "engine/replica/replica.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/device.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// The tokenizer of a model folder. Throws InputError, also where it has ids that the model has no embedding for.
std::unique_ptr<engine::Tokenizer> load_tokenizer(const std::filesystem::path& folder,
                                                  const engine::ModelConfig& config);

/// Folder of packed weights; "": none are kept. Throws UsageError where `auto` finds no cache folder.
std::filesystem::path packed_folder(const Settings& settings);

engine::Precision precision_of(const Settings& settings);
kernels::DType kv_dtype_of(const Settings& settings);
engine::SamplingParams sampling_of(const Settings& settings);
engine::DraftOptions draft_of(const Settings& settings);

/// What decides the output of an item under these settings: the job's, or its own.
std::shared_ptr<const engine::GenerationOptions> generation_options(const Settings& settings,
                                                                    const engine::ModelConfig& config);

/// Replica options but for checkpoints and memory. Throws UsageError where `window` and `stride` do not fit the model.
engine::ReplicaOptions replica_options(const Settings& settings, const engine::ModelConfig& config);

/// Positions that prompt and continuation of an item may take: the model's context, or without an end where windows run
/// over them.
std::int64_t max_item_positions(const Settings& settings, const engine::ModelConfig& config);

}  // namespace longhaul::runner
