// What the machine gives this process.
#pragma once

#include <cstdint>

namespace longhaul::runner {

/// Processors this process may run on: its affinity, less where a container or Slurm gives fewer. At least 1.
int usable_processors();

/// Bytes of memory that `ranks` processes like this one could use now on this node without swapping, within the limits
/// of containers and Slurm; 0 where nobody says.
std::int64_t available_memory_bytes(int ranks = 1);

}  // namespace longhaul::runner
