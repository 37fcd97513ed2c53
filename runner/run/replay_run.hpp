// Recorded tokens of an earlier run, for draft = replay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace longhaul::runner {

/// Returns a lookup of the tokens of (id, sample), empty for items that the run does not have. Throws UsageError if
/// `run` is not a run folder, InputError if its results have no token ids.
std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_tokens(
    const std::filesystem::path& run);

}  // namespace longhaul::runner
