// What this process and those beside it may use of a node: the limits of control groups (containers, and batch systems
// that enforce what a job asked for), and what Slurm gave the job where nothing enforces it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace longhaul::runner {

/// Where limits are read; tests have folders of their own.
struct LimitFiles {
    std::filesystem::path cgroups = "/sys/fs/cgroup";
    std::filesystem::path process = "/proc/self";
};

/// Processors that all our processes on this node may keep busy together, at least 1; nullopt where nothing limits
/// them. Names no processors: those are the affinity's.
std::optional<int> allowed_processors(const LimitFiles& files = {});

/// Bytes of memory that our `ranks` processes on this node may still take together, never negative; nullopt where
/// nothing limits them.
std::optional<std::int64_t> allowed_memory_bytes(int ranks, const LimitFiles& files = {});

/// Tasks on the node of number `node` in Slurm's words for a job's or step's tasks, "2(x3),1"; 1 where the words say
/// nothing of it.
int tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace longhaul::runner
