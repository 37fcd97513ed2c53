// Recorded tokens of an earlier run, for draft = replay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/verify/rule.hpp"

namespace longhaul::runner {

/// Returns a lookup of the tokens of (id, sample), empty for items that the run does not have. `verify`: the rule that
/// will judge them as drafts. Throws UsageError if `run` is not a run folder, or was made under a sampling rule and
/// `verify` is one, too: its tokens depend on random numbers that `verify` draws again, which would bias the text.
/// Throws InputError if its results have no token ids.
std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_tokens(
    const std::filesystem::path& run, engine::VerifyRule verify);

}  // namespace longhaul::runner
