// The folder of a sweep. Layout:
//
//   SWEEP/sweep.cfg                      the sweep as resolved by its last launch; marks the folder
//   SWEEP/launches/                      leases of the sweep's launches, as in a run folder (lease.hpp)
//   SWEEP/sweep.csv, sweep.md, sweep.json  the table (sweep_table.hpp)
//   SWEEP/POINT/                         one run folder per point (run_folder.hpp)
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runner/sweep/sweep.hpp"

namespace longhaul::runner {

[[nodiscard]] bool is_sweep_folder(const std::filesystem::path& root);

/// Creates the folder and sweep.cfg. Throws UsageError if it holds something other than a sweep.
void create_sweep_folder(const Sweep& sweep);

/// Replaces SWEEP/sweep.cfg; only the holder of the lease may call this.
void write_sweep(const Sweep& sweep);

/// Compares a point with its existing run folder: the keys that decide the results, as in `run`, and the keys shown in
/// the table, which are the draft keys and `keys` (those of variants and grids). Throws UsageError.
void check_point(const SweepPoint& point, const std::vector<std::string>& keys);

}  // namespace longhaul::runner
