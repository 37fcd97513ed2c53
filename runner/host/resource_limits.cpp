#include "runner/host/resource_limits.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runner/host/files.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

template <typename Number>
void lower(std::optional<Number>& limit, std::optional<Number> other) {
    if (other) limit = limit ? std::min(*limit, *other) : *other;
}

/// Parses an integer and nothing else; nullopt for "max" and for an absent file.
std::optional<std::int64_t> number_of(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
}

std::optional<std::int64_t> variable(const char* name) {
    const char* text = std::getenv(name);
    const auto number = text == nullptr ? std::nullopt : number_of(text);
    return number && *number > 0 ? number : std::nullopt;
}

/// The number after `name` in a file of lines "name number".
std::optional<std::int64_t> number_after(const fs::path& file, std::string_view name) {
    std::istringstream in(read_if_there(file));
    std::string word;
    std::int64_t number = 0;
    for (std::string line; std::getline(in, line);) {
        std::istringstream parts(line);
        if (parts >> word && word == name && parts >> number) return number;
    }
    return std::nullopt;
}

/// The control groups of this process for `controller` ("" for version 2), innermost first. All ancestors are listed
/// because a job's limit is usually set some levels above its processes.
std::vector<fs::path> groups_of(const LimitFiles& files, std::string_view controller) {
    std::vector<fs::path> groups;
    std::istringstream in(read_if_there(files.process / "cgroup"));
    const fs::path root = controller.empty() ? files.cgroups : files.cgroups / controller;
    for (std::string line; std::getline(in, line);) {  // "4:cpu,cpuacct:/path"; version 2: "0::/path"
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool mine =
            controller.empty() ? names == ",," : names.find("," + std::string(controller) + ",") != std::string::npos;
        if (!mine) continue;
        fs::path below = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
        if (!below.empty() && *below.begin() == "..") below.clear();  // outside of what a container sees
        for (; !below.empty() && below != "."; below = below.parent_path()) groups.push_back(root / below);
    }
    groups.push_back(root);
    return groups;
}

/// Rounded up: half a processor counts as one.
std::optional<int> processors_of(std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return static_cast<int>(std::clamp<std::int64_t>((*quota + *period - 1) / *period, 1, 1 << 16));
}

std::optional<int> group_processors(const LimitFiles& files) {
    std::optional<int> limit;
    for (const fs::path& group : groups_of(files, "")) {
        const std::string text = read_if_there(group / "cpu.max");  // "QUOTA PERIOD", "max PERIOD"
        const std::size_t blank = std::min(text.find(' '), text.size());
        lower(limit, processors_of(number_of(text.substr(0, blank)),
                                   number_of(text.substr(std::min(blank + 1, text.size())))));
    }
    for (const fs::path& group : groups_of(files, "cpu")) {
        lower(limit, processors_of(number_of(read_if_there(group / "cpu.cfs_quota_us")),
                                   number_of(read_if_there(group / "cpu.cfs_period_us"))));
    }
    return limit;
}

/// Memory left in a group. Cached file pages count as used, but the kernel frees them on demand.
std::optional<std::int64_t> left_of(std::optional<std::int64_t> limit, std::optional<std::int64_t> used,
                                    std::optional<std::int64_t> reclaimable) {
    if (!limit || !used) return std::nullopt;
    return std::max<std::int64_t>(0, *limit - *used + reclaimable.value_or(0));
}

std::optional<std::int64_t> group_memory(const LimitFiles& files) {
    std::optional<std::int64_t> left;
    for (const fs::path& group : groups_of(files, "")) {
        lower(left, left_of(number_of(read_if_there(group / "memory.max")),
                            number_of(read_if_there(group / "memory.current")),
                            number_after(group / "memory.stat", "inactive_file")));
    }
    for (const fs::path& group : groups_of(files, "memory")) {
        lower(left, left_of(number_of(read_if_there(group / "memory.limit_in_bytes")),
                            number_of(read_if_there(group / "memory.usage_in_bytes")),
                            number_after(group / "memory.stat", "total_inactive_file")));
    }
    return left;
}

/// Processors of this node that belong to the job, as Slurm counts them (cores or hardware threads).
std::optional<std::int64_t> slurm_processors() {
    if (!variable("SLURM_JOB_ID")) return std::nullopt;
    return variable("SLURM_CPUS_ON_NODE");
}

/// Memory of this node that belongs to the job, in bytes. Slurm's variables are in MiB; 0 means the whole node (nullopt
/// here).
std::optional<std::int64_t> slurm_memory() {
    constexpr std::int64_t mebibyte = 1 << 20, most = std::int64_t{1} << 40;
    if (!variable("SLURM_JOB_ID")) return std::nullopt;
    std::optional<std::int64_t> mebibytes = variable("SLURM_MEM_PER_NODE");
    const auto per_processor = variable("SLURM_MEM_PER_CPU"), processors = slurm_processors();
    if (!mebibytes && per_processor && processors && *per_processor < most / *processors)
        mebibytes = *per_processor * *processors;
    return mebibytes && *mebibytes < most ? std::optional(*mebibytes * mebibyte) : std::nullopt;
}

}  // namespace

std::optional<int> allowed_processors(const LimitFiles& files) {
    std::optional<int> limit = group_processors(files);
    if (const auto given = slurm_processors())
        lower(limit, std::optional(static_cast<int>(std::min<std::int64_t>(*given, 1 << 16))));
    return limit;
}

std::optional<std::int64_t> allowed_memory_bytes(int ranks, const LimitFiles& files) {
    std::optional<std::int64_t> left = group_memory(files);
    if (const auto given = slurm_memory()) {
        // The memory of the other ranks is not known here: assume that each holds as much as this one. Pages of mapped
        // files do not count.
        const auto held = [&](const char* name) {
            return number_after(files.process / "status", name).value_or(0) * 1024;
        };
        const std::int64_t mine = held("RssAnon:") + held("RssShmem:");
        lower(left, std::optional(std::max<std::int64_t>(0, *given - mine * ranks)));
    }
    return left;
}

int tasks_on_node(std::string_view tasks_per_node, int node) {
    while (!tasks_per_node.empty()) {
        const std::size_t end = std::min(tasks_per_node.find(','), tasks_per_node.size());
        const std::string_view part = tasks_per_node.substr(0, end);  // "2", "2(x3)"
        tasks_per_node.remove_prefix(std::min(end + 1, tasks_per_node.size()));
        const std::size_t times_at = std::min(part.find("(x"), part.size());
        const auto tasks = number_of(part.substr(0, times_at));
        std::optional<std::int64_t> times = 1;
        if (times_at < part.size())
            times =
                part.ends_with(')') ? number_of(part.substr(times_at + 2, part.size() - times_at - 3)) : std::nullopt;
        if (!tasks || !times || *tasks < 1 || *tasks > (1 << 16)) return 1;
        if (node < *times) return static_cast<int>(*tasks);
        node -= static_cast<int>(*times);
    }
    return 1;
}

}  // namespace longhaul::runner
