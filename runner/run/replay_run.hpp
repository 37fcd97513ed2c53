// What an earlier run wrote, for draft = replay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace longhaul::runner {

/// Tokens of (id, sample); none for an item that the run does not have. Throws UsageError where `run` is no run folder,
/// InputError where its results have no token ids.
std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_tokens(
    const std::filesystem::path& run);

}  // namespace longhaul::runner
