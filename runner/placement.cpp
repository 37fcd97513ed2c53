#include "runner/placement.hpp"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "runner/files.hpp"

namespace longhaul::runner {
namespace {

constexpr const char* placed_mark = "LONGHAUL_PLACED";
constexpr int most_processors = 1 << 14;

/// A set of processors as the kernel has it, large enough for any machine.
class Affinity {
  public:
    Affinity() : set_(CPU_ALLOC(most_processors)) { CPU_ZERO_S(bytes(), set_); }
    ~Affinity() { CPU_FREE(set_); }
    Affinity(const Affinity&) = delete;
    Affinity& operator=(const Affinity&) = delete;

    static std::size_t bytes() { return CPU_ALLOC_SIZE(most_processors); }
    bool read(pid_t pid) { return ::sched_getaffinity(pid, bytes(), set_) == 0; }
    void add(int processor) { CPU_SET_S(static_cast<std::size_t>(processor), bytes(), set_); }
    [[nodiscard]] bool has(int processor) const {
        return CPU_ISSET_S(static_cast<std::size_t>(processor), bytes(), set_);
    }
    [[nodiscard]] bool same_as(const Affinity& other) const { return CPU_EQUAL_S(bytes(), set_, other.set_); }
    [[nodiscard]] bool apply() const { return ::sched_setaffinity(0, bytes(), set_) == 0; }

  private:
    cpu_set_t* set_;
};

int number_in(const char* variable, int otherwise) {
    const char* text = std::getenv(variable);
    if (text == nullptr) return otherwise;
    int number = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
    return error == std::errc() && end != text ? number : otherwise;
}

/// Parent of a process and its name; 0 at the end of the line.
pid_t parent_of(pid_t pid, std::string& name) {
    const std::string stat = read_if_there("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size()) return 0;
    name = stat.substr(open + 1, close - open - 1);
    return static_cast<pid_t>(std::atol(stat.c_str() + close + 4));
}

/// The set that the node gives us. A launcher of Open MPI binds its ranks, not itself: what it may use is what the
/// user or the batch system allowed. Elsewhere (srun, alone) our own set is what was allowed.
void allowed_set(Affinity& allowed) {
    const std::array<std::string_view, 5> launchers{"mpirun", "mpiexec", "orterun", "orted", "prterun"};
    std::string name;
    pid_t pid = ::getpid();
    const bool under_launcher = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
    for (int depth = 0; under_launcher && depth < 8 && pid > 1; ++depth) {
        pid_t parent = parent_of(pid, name);
        const bool launcher = std::find(launchers.begin(), launchers.end(), name) != launchers.end();
        if (launcher && allowed.read(pid)) return;
        pid = parent;
    }
    allowed.read(0);
}

/// Processors that a container's quota is worth.
int quota_cores(int otherwise) {
    const std::string text = read_if_there("/sys/fs/cgroup/cpu.max");
    long long quota = 0, period = 0;
    if (std::sscanf(text.c_str(), "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return otherwise;
    return static_cast<int>(std::clamp<long long>((quota + period - 1) / period, 1, otherwise));
}

/// Starts this program again, with the environment and the affinity as they are now.
void execute_again() {
    std::string text = read_if_there("/proc/self/cmdline");
    std::vector<char*> arguments;
    for (std::size_t at = 0; at < text.size(); at += std::strlen(text.data() + at) + 1) {
        arguments.push_back(text.data() + at);
    }
    arguments.push_back(nullptr);
    ::setenv(placed_mark, "1", 1);
    ::execv("/proc/self/exe", arguments.data());
    // Not possible here: slower perhaps, but right.
}

}  // namespace

std::string Placement::describe() const {
    std::string cores;
    for (std::size_t i = 0; i < processors.size(); ++i) {
        std::size_t last = i;
        while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
        cores += (cores.empty() ? "" : ",") + std::to_string(processors[i]);
        if (last > i) cores += "-" + std::to_string(processors[last]);
        i = last;
    }
    return "processors " + cores + " (" + std::to_string(processors.size()) + " of " + std::to_string(node_cores) +
           " cores), " + std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") +
           std::to_string(node_ranks) + (node_ranks == 1 ? " rank" : " ranks") + " on the node" +
           (oversubscribed ? ", more threads than cores: waiting ranks give way" : "");
}

NodeRank node_rank_from_environment() {
    if (std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != nullptr) {
        return {number_in("OMPI_COMM_WORLD_LOCAL_RANK", 0), number_in("OMPI_COMM_WORLD_LOCAL_SIZE", 1)};
    }
    // SLURM_STEP_TASKS_PER_NODE is "4(x2)" or "4,3": the nodes of one step are filled alike but for the last.
    if (std::getenv("SLURM_LOCALID") != nullptr && std::getenv("PMIX_RANK") != nullptr) {
        return {number_in("SLURM_LOCALID", 0), number_in("SLURM_STEP_TASKS_PER_NODE", 1)};
    }
    return {};
}

Placement divide(const std::vector<int>& cores, NodeRank node, int threads) {
    const auto count = static_cast<int>(cores.size());
    Placement placement;
    placement.node_cores = count;
    placement.node_ranks = node.size;
    int first = node.rank * count / node.size;
    int last = (node.rank + 1) * count / node.size;
    if (count < node.size) {  // several ranks a core
        first = node.rank % count;
        last = first + 1;
    }
    const int share = last - first;
    placement.threads = threads > 0 ? threads : share;
    placement.oversubscribed = placement.threads > share || count < node.size;
    if (placement.threads > share) {  // asked for more than the share: let the system place them
        first = 0;
        last = count;
    }
    placement.processors.assign(cores.begin() + first, cores.begin() + last);
    return placement;
}

std::vector<int> usable_cores() {
    Affinity allowed;
    allowed_set(allowed);
    std::vector<int> cores;
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0) {
        const hwloc_const_cpuset_t given = hwloc_topology_get_allowed_cpuset(topology);
        hwloc_obj_t core = nullptr;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
            int processor = -1;  // the first sibling we may use: two threads of one core only fight
            while ((processor = hwloc_bitmap_next(core->cpuset, processor)) >= 0) {
                if (!hwloc_bitmap_isset(given, static_cast<unsigned>(processor)) || !allowed.has(processor)) continue;
                cores.push_back(processor);
                break;
            }
        }
    }
    if (topology != nullptr) hwloc_topology_destroy(topology);
    for (int processor = 0; cores.empty() && processor < most_processors; ++processor) {
        if (allowed.has(processor)) cores.push_back(processor);  // a machine hwloc knows no cores of
    }
    if (cores.empty()) cores.push_back(0);
    return cores;
}

Placement place_this_rank(int threads) {
    std::vector<int> cores = usable_cores();
    const NodeRank node = node_rank_from_environment();
    const int quota = quota_cores(static_cast<int>(cores.size()));
    Placement placement = divide(cores, node, threads);
    if (quota < static_cast<int>(cores.size())) {  // a quota names no processors: no binding, fewer threads
        cores.resize(static_cast<std::size_t>(quota));
        placement = divide(cores, node, threads);
        placement.processors = usable_cores();
    }
    Affinity before, wanted;
    before.read(0);
    for (const int processor : placement.processors) wanted.add(processor);
    const bool bound = wanted.apply();
    if (std::getenv(placed_mark) != nullptr) return placement;
    if (placement.oversubscribed) {
        ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
        ::setenv("OMP_WAIT_POLICY", "passive", 0);
    }
    // The OpenMP library counted the processors and read its environment when the program was loaded.
    if ((bound && !before.same_as(wanted)) || placement.oversubscribed) execute_again();
    return placement;
}

}  // namespace longhaul::runner
