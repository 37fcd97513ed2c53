// The files that replicas of a run append to, results/R-EPOCH.jsonl and log/stats-R-EPOCH.jsonl: which there are, and
// how much of each counts.
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

/// A file of one replica and launch.
struct LaunchFile {
    std::int64_t epoch = 0;
    std::int64_t replica = 0;
    std::string name;
};

/// "PREFIX R-EPOCH.jsonl" of a folder, oldest launch first.
std::vector<LaunchFile> launch_files(const std::filesystem::path& folder, std::string_view prefix);

/// Of a file all of whose whole lines count.
constexpr std::int64_t no_limit = INT64_MAX;

using LineVisitor = std::function<void(std::string_view line, std::int64_t offset)>;

/// Calls `visit` for each whole line that begins before `limit` bytes and ends within them.
void each_line(const std::filesystem::path& path, std::int64_t limit, const LineVisitor& visit);

/// Bytes of a result file that count once `newest` is the newest launch.
std::int64_t accepted_bytes(const LaunchFile& file, const LeaseRecord& newest);

/// Of the result files of a run folder, the bytes that count for a launch that follows `newest` (null: there was none).
/// Makes them durable. Throws StorageError.
std::map<std::string, std::int64_t> accept_results(const std::filesystem::path& run, const LeaseRecord* newest);

}  // namespace longhaul::runner
