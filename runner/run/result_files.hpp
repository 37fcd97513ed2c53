// The files that replicas of a run append to, results/R-EPOCH.jsonl and log/stats-R-EPOCH.jsonl: finds them and decides
// how many bytes of each count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runner/run/lease_record.hpp"

namespace longhaul::runner {

/// A file of one replica and one launch.
struct LaunchFile {
    std::int64_t epoch = 0;
    std::int64_t replica = 0;
    std::string name;
};

/// All files of a folder named `prefix` + "R-EPOCH.jsonl", oldest launch first. Throws StorageError.
std::vector<LaunchFile> launch_files(const std::filesystem::path& folder, std::string_view prefix);

/// Limit of a file in which all complete lines count.
constexpr std::int64_t no_limit = INT64_MAX;

using LineVisitor = std::function<void(std::string_view line, std::int64_t offset)>;

/// Calls `visit` for each complete line within the first `limit` bytes.
void each_line(const std::filesystem::path& path, std::int64_t limit, const LineVisitor& visit);

/// Number of bytes of a result file that count if `newest` is the newest launch.
std::int64_t accepted_bytes(const LaunchFile& file, const LeaseRecord& newest);

/// For each result file of a run folder, the number of bytes that count for the launch after `newest` (null: the first
/// launch). Makes them durable. Throws StorageError.
std::map<std::string, std::int64_t> accept_results(const std::filesystem::path& run, const LeaseRecord* newest);

/// What a user can do if a result file is gone.
constexpr const char* lost_results =
    "restore it, or make an empty file of that name: then its items are computed again";

/// Throws InputError if a result file that counts for launch `newest` is not there: what the next launch does not find
/// will never count again, and a file system may hide a file for a while.
void must_have_accepted(const std::filesystem::path& run, const LeaseRecord& newest);

}  // namespace longhaul::runner
