// Sweeps: a sweep file is a job file with two more forms of lines,
//
//   grid KEY = v1 | v2 | v3               all values are tried
//   variant NAME = key=value key=value …  a named set of keys; may be repeated
//
// that define its points: variants × the product of the grids. Each point is a job with its own run folder. Used by
// `longhaul sweep`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// `grid KEY = …`
struct SweepGrid {
    std::string key;
    std::vector<Assignment> values;
};

/// `variant NAME = …`
struct SweepVariant {
    std::string name;
    std::vector<Assignment> keys;
};

/// A sweep file merged with the command line. Values are resolved (resolve_assignments).
struct Sweep {
    std::vector<Assignment> plain;  ///< keys of all points: first the file's, then the command line's
    std::vector<SweepVariant> variants;
    std::vector<SweepGrid> grids;
    // Keys of the sweep as a whole:
    std::filesystem::path output;
    bool baseline = false;      ///< adds a plain-decoding point for each set of points that differ only in draft keys
    std::int64_t threads = 0;   ///< per rank; the processors are divided once, when the launch starts
    double lease_seconds = 30;  ///< of the lease on the sweep's folder
};

constexpr std::int64_t max_sweep_points = 10'000;

/// Parses the lines of a sweep file (read_job_file); `file` is its absolute path. Keys of the command line override
/// plain lines; keys that a grid or a variant sets are refused there. Throws UsageError naming file and line.
Sweep parse_sweep(const std::vector<Assignment>& lines, const std::vector<Assignment>& command_line,
                  const std::filesystem::path& file);

/// read_job_file followed by parse_sweep.
Sweep read_sweep(const std::filesystem::path& file, const std::vector<Assignment>& command_line);

/// The sweep as the text of a sweep file that gives the same sweep from any folder.
std::string format_sweep(const Sweep& sweep);

/// One job of a sweep.
struct SweepPoint {
    std::string name;     ///< name of its run folder in the sweep's folder
    std::string variant;  ///< "" if the sweep has no variants
    Settings settings;    ///< complete settings; `output` is the run folder
    /// `name` without the value of a `seed` grid: the same for points that differ only in their seed.
    std::string name_without_seed;
    /// index of the point with the same job by plain decoding; may be the point itself
    std::optional<std::size_t> baseline{};
};

/// All points in the order in which they run: points with the same model and the same data one after another, otherwise
/// in file order; a plain-decoding point added by `baseline` comes first. Throws UsageError if a point is not a valid
/// job.
///
/// Names: the variant and `key=value` of each grid, joined by commas; a path is cut to its last part. Characters that
/// are not allowed in these names become `_`, and a hash of the original keeps such names distinct. All points that
/// differ only in draft keys share one plain-decoding point. Its name is "draft=ar", then the keys of its variant that
/// differ from the plain lines, then its grids.
std::vector<SweepPoint> points_of(const Sweep& sweep);

/// Keys that distinguish the points, in file order: first those of variants, then those of grids.
std::vector<std::string> sweep_keys(const Sweep& sweep);

/// A key's value for the table: a path is cut to its last part; "" for keys that plain decoding ignores.
std::string shown_value(const SweepPoint& point, const std::string& key);

/// Text of the settings that must be equal for two points to share a loaded model, or open data.
std::string model_needs(const Settings& settings);
std::string data_needs(const Settings& settings);

bool is_path(const std::string& key);
/// The part of a value that is used in names: the last part of a path, otherwise the whole value.
std::string last_part(const std::string& key, const std::string& value);
/// Whether the name of a variant, which is also a folder name, may contain `c`.
bool is_name_letter(char c);

}  // namespace longhaul::runner
