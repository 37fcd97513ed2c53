// What a sweep is: a job file with two more forms of lines,
//
//   grid KEY = v1 | v2 | v3               every value is tried
//   variant NAME = key=value key=value …  a named set of keys; a repeatable line
//
// and the points they make: variants × the product of the grids, each a job with a run folder of its own.
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

/// A sweep file with what the command line changed of it. Values are resolved (resolve_assignments).
struct Sweep {
    std::vector<Assignment> plain;  ///< all points have these; first the file's, then the command line's
    std::vector<SweepVariant> variants;
    std::vector<SweepGrid> grids;
    // Of the sweep as a whole:
    std::filesystem::path output;
    bool baseline = false;      ///< every set of points that differ in draft keys alone gets one of plain decoding
    std::int64_t threads = 0;   ///< a rank; the processors are divided once, when the launch starts
    double lease_seconds = 30;  ///< of the sweep's folder
};

constexpr std::int64_t max_sweep_points = 10'000;

/// Checks the lines of a sweep file (read_job_file); `file` is its absolute path. Keys of the command line override
/// plain lines; a key that a grid or a variant sets is refused there. Throws UsageError naming file and line.
Sweep parse_sweep(const std::vector<Assignment>& lines, const std::vector<Assignment>& command_line,
                  const std::filesystem::path& file);

/// read_job_file and parse_sweep in one.
Sweep read_sweep(const std::filesystem::path& file, const std::vector<Assignment>& command_line);

/// The sweep as a file that reads back as the same from any folder.
std::string format_sweep(const Sweep& sweep);

/// One job of a sweep.
struct SweepPoint {
    std::string name;     ///< its folder below the sweep's
    std::string variant;  ///< "" where there is none
    Settings settings;    ///< whole; output is the folder
    /// Its variant and the values of its grids but for the seed's: points alike in it differ in their seed alone.
    std::string name_without_seed;
    std::optional<std::size_t> baseline{};  ///< the point that is its job by plain decoding; may be itself
};

/// All points, in the order in which they run: those with the same model and the same data one after another, as far as
/// that goes in the order of the file, and plain decoding first where `baseline` added it. Throws UsageError where a
/// point is no job.
///
/// Names: the variant and `key=value` of each grid, joined by commas; of a path the last part counts. What a file name
/// should not hold becomes `_`, and a hash of the whole keeps names apart. Plain decoding (draft = ar) is one point for
/// all that differ in draft keys alone: "draft=ar", keys of its variant that differ from the plain ones, its grids.
std::vector<SweepPoint> points_of(const Sweep& sweep);

/// Keys that tell the points apart, in the order of the file: those of variants, then those of grids.
std::vector<std::string> sweep_keys(const Sweep& sweep);

/// What a table shows of a key: of a path its last part; nothing for what plain decoding does not heed.
std::string shown_value(const SweepPoint& point, const std::string& key);

/// What must be the same for two points to share a loaded model, and to share open data. Equal texts: the same.
std::string model_needs(const Settings& settings);
std::string data_needs(const Settings& settings);

bool is_path(const std::string& key);
/// What names a value: of a path its last part, of anything else the whole.
std::string last_part(const std::string& key, const std::string& value);
/// Whether a name of a variant, and so of a folder, may hold it.
bool is_name_letter(char c);

}  // namespace longhaul::runner
