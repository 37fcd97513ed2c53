// Translates settings of the job file into options of the engine. Used by launch, check and bench.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/model/model.hpp"
#include "engine/replica/replica.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/device.hpp"
#include "runner/job/job.hpp"

namespace longhaul::runner {

/// Loads the tokenizer of a model folder. Throws InputError, also if it has ids without an embedding in the model.
std::unique_ptr<engine::Tokenizer> load_tokenizer(const std::filesystem::path& folder,
                                                  const engine::ModelConfig& config);

/// Folder of packed weights; "" if none are kept. Throws UsageError if `auto` finds no cache folder.
std::filesystem::path packed_folder(const Settings& settings);

engine::Precision precision_of(const Settings& settings);
/// Precision of the copy of the target that drafts with draft = self; nullopt: the target itself drafts.
std::optional<engine::Precision> draft_copy_precision(const Settings& settings);
kernels::DType kv_dtype_of(const Settings& settings);
engine::SamplingParams sampling_of(const Settings& settings);
engine::DraftOptions draft_of(const Settings& settings);

/// Generation options of an item: from the job's settings, or from the item's own.
std::shared_ptr<const engine::GenerationOptions> generation_options(const Settings& settings,
                                                                    const engine::ModelConfig& config);

/// Replica options except those for checkpoints and memory. Throws UsageError if `window` or `stride` do not fit the
/// model.
engine::ReplicaOptions replica_options(const Settings& settings, const engine::ModelConfig& config);

/// Maximum positions of an item's prompt and continuation: the model's context, or practically unlimited for
/// perplexity, which scores windows.
std::int64_t max_item_positions(const Settings& settings, const engine::ModelConfig& config);

}  // namespace longhaul::runner
