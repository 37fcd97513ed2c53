// The folder of a sweep. Layout:
//
//   SWEEP/sweep.cfg                      the sweep as its last launch resolved it; marks the folder
//   SWEEP/launches/                      who runs here, as in a run folder (lease.hpp)
//   SWEEP/sweep.csv, sweep.md, sweep.json  the table (sweep_table.hpp)
//   SWEEP/POINT/                         a run folder for each point (run_folder.hpp)
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runner/sweep/sweep.hpp"

namespace longhaul::runner {

[[nodiscard]] bool is_sweep_folder(const std::filesystem::path& root);

/// Makes the folder and marks it. Throws UsageError where it holds something else than a sweep.
void create_sweep_folder(const Sweep& sweep);

/// Replaces SWEEP/sweep.cfg; only the holder of the lease may.
void write_sweep(const Sweep& sweep);

/// Compares a point with what its folder has of it: what decides the results, as in `run`, and besides that what the
/// table says of it: draft keys and `keys`, those of its variant and grids. Throws UsageError.
void check_point(const SweepPoint& point, const std::vector<std::string>& keys);

}  // namespace longhaul::runner
