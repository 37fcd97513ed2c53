// The check of a checkpoint folder before a resume (the command `verify`).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace longhaul::engine {

/// What `check_checkpoints` found in a folder.
struct CheckpointReport {
    std::int64_t num_rounds = 0;                ///< commits of unfinished items
    std::int64_t num_files = 0, num_bytes = 0;  ///< these and their KV files, as far as they are intact
    std::map<std::string, std::int64_t> items;  ///< by key: output tokens that can be restored
    std::vector<std::string> damage;            ///< one line per damaged or missing file
};

/// Reads every commit in `folder` of epochs up to `max_epoch`, and all bytes of the KV files of those that have an item
/// that is not in `done` (item keys): what a resume may need. Writes nothing. Throws InputError if the folder cannot
/// be read.
CheckpointReport check_checkpoints(const std::filesystem::path& folder, std::int64_t max_epoch,
                                   const std::set<std::string>& done);

}  // namespace longhaul::engine
