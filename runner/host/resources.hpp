// Processors and memory that are available to this process now.
#pragma once

#include <cstdint>

namespace longhaul::runner {

/// Processors this process may run on: its affinity mask, capped by container and Slurm limits. At least 1.
int usable_processors();

/// Bytes of memory that `ranks` processes like this one can allocate now on this node without swapping, within
/// container and Slurm limits; 0 if unknown.
std::int64_t available_memory_bytes(int ranks = 1);

}  // namespace longhaul::runner
