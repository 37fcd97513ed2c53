// Resource limits of our processes on a node: control groups (containers, and batch systems that enforce requests), and
// the Slurm allocation where nothing enforces it. Used by placement and resources.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace longhaul::runner {

/// Where limits are read from; tests use their own folders.
struct LimitFiles {
    std::filesystem::path cgroups = "/sys/fs/cgroup";
    std::filesystem::path process = "/proc/self";
};

/// Number of processors that all our processes on this node may use together, at least 1; nullopt if there is no limit.
/// It is only a count: which processors is decided by the affinity mask.
std::optional<int> allowed_processors(const LimitFiles& files = {});

/// Bytes of memory that our `ranks` processes on this node may still allocate together, never negative; nullopt if
/// there is no limit.
std::optional<std::int64_t> allowed_memory_bytes(int ranks, const LimitFiles& files = {});

/// Number of tasks on node number `node`, from Slurm's tasks-per-node format "2(x3),1"; 1 if the text does not say.
int tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace longhaul::runner
