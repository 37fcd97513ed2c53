#include "runner/host/placement.hpp"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "kernels/team.hpp"
#include "runner/host/files.hpp"
#include "runner/host/resource_limits.hpp"

namespace longhaul::runner {
namespace {

constexpr int max_processors = 1 << 14;

/// A kernel CPU set, large enough for any machine.
class Affinity {
  public:
    Affinity() : set_(CPU_ALLOC(max_processors)) { CPU_ZERO_S(bytes(), set_); }
    ~Affinity() { CPU_FREE(set_); }
    Affinity(const Affinity&) = delete;
    Affinity& operator=(const Affinity&) = delete;

    static std::size_t bytes() { return CPU_ALLOC_SIZE(max_processors); }
    bool read(pid_t pid) { return ::sched_getaffinity(pid, bytes(), set_) == 0; }
    void add(int processor) { CPU_SET_S(static_cast<std::size_t>(processor), bytes(), set_); }
    [[nodiscard]] bool has(int processor) const {
        return CPU_ISSET_S(static_cast<std::size_t>(processor), bytes(), set_);
    }
    [[nodiscard]] int count() const { return CPU_COUNT_S(bytes(), set_); }
    void apply() const { ::sched_setaffinity(0, bytes(), set_); }

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

/// Parent of a process and the name of the process itself; 0 at the root.
pid_t parent_of(pid_t pid, std::string& name) {
    const std::string stat = read_if_there("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size()) return 0;
    name = stat.substr(open + 1, close - open - 1);
    return static_cast<pid_t>(std::atol(stat.c_str() + close + 4));
}

/// The CPU set that this node allows us. An Open MPI launcher binds its ranks but not itself, so the launcher's set is
/// what the user or the batch system allowed. Elsewhere (srun, no launcher) it is our own set.
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

/// Cores [first, end), counted over all domains.
struct Range {
    int first = 0, end = 0;
};

/// This rank's share if each rank stays inside one domain; nullopt if some rank would get fewer than `least` cores.
std::optional<Range> share_inside_domain(const CoreDomains& domains, NodeRank node, int least) {
    std::vector<int> ranks(domains.size(), 0);
    const auto share = [&](std::size_t d, int more) {
        return static_cast<int>(domains[d].size()) / static_cast<double>(ranks[d] + more);
    };
    for (int rank = 0; rank < node.size; ++rank) {  // each rank goes to the domain that leaves it the largest share
        std::size_t best = 0;
        for (std::size_t d = 1; d < domains.size(); ++d) best = share(d, 1) > share(best, 1) ? d : best;
        ++ranks[best];
    }
    std::optional<Range> mine;
    int first_core = 0, first_rank = 0;
    for (std::size_t d = 0; d < domains.size(); ++d) {
        const auto count = static_cast<int>(domains[d].size());
        if (ranks[d] == 0 || count / ranks[d] < least) return std::nullopt;  // an idle domain would be worse
        const int rank = node.rank - first_rank;
        if (rank >= 0 && rank < ranks[d]) {
            mine = {first_core + rank * count / ranks[d], first_core + (rank + 1) * count / ranks[d]};
        }
        first_core += count;
        first_rank += ranks[d];
    }
    return mine;
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
           (domains > 1 ? ", " + std::to_string(domains) + " memory domains" : "") +
           (oversubscribed ? ", more threads than cores: waiting threads yield their cores" : "");
}

NodeRank node_rank_from_environment() {
    if (std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != nullptr) {
        return {number_in("OMPI_COMM_WORLD_LOCAL_RANK", 0), number_in("OMPI_COMM_WORLD_LOCAL_SIZE", 1)};
    }
    if (std::getenv("SLURM_LOCALID") != nullptr && started_by_launcher()) {
        const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE");
        const NodeRank node{number_in("SLURM_LOCALID", 0),
                            tasks_on_node(tasks != nullptr ? tasks : "", number_in("SLURM_NODEID", 0))};
        return node.rank >= 0 && node.rank < node.size ? node : NodeRank();
    }
    return {};
}

bool started_by_launcher() {
    // Slurm's own variables do not count: they are also set in a batch script that runs the program without a launcher.
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
        if (std::getenv(variable) != nullptr) return true;
    }
    return false;
}

bool started_in_ranks() {
    if (!started_by_launcher()) return false;
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
        if (std::getenv(variable) != nullptr) return number_in(variable, 1) > 1;
    }
    return true;
}

NodeRank ranks_sharing(NodeRank node, int processors) {
    if (std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != nullptr) return node;  // allowed_set read the set of mpirun itself
    const int cpus_per_task = number_in("SLURM_CPUS_PER_TASK", 0), all = number_in("SLURM_CPUS_ON_NODE", 0);
    // If both counts exceed what the job has, we cannot tell what a task asked for from what it got.
    const bool own = all > 0 ? processors * node.size <= all : processors <= cpus_per_task;
    return own ? NodeRank() : node;
}

Placement divide(const CoreDomains& domains, NodeRank node, int threads) {
    std::vector<int> cores;
    for (const std::vector<int>& domain : domains) cores.insert(cores.end(), domain.begin(), domain.end());
    const auto count = static_cast<int>(cores.size());
    Placement placement;
    placement.node_cores = count;
    placement.node_ranks = node.size;
    Range range{node.rank * count / node.size, (node.rank + 1) * count / node.size};
    if (count < node.size) {  // several ranks per core
        range.first = node.rank % count;
        range.end = range.first + 1;
    } else if (const auto inside = share_inside_domain(domains, node, count / node.size)) {
        range = *inside;
    }
    const int share = range.end - range.first;
    placement.threads = threads > 0 ? threads : share;
    placement.oversubscribed = placement.threads > share || count < node.size;
    // more threads than the share has cores: leave placement to the system
    if (placement.threads > share) range = {0, count};
    placement.processors.assign(cores.begin() + range.first, cores.begin() + range.end);
    placement.domains = 0;
    int first = 0;
    for (const std::vector<int>& domain : domains) {
        const int end = first + static_cast<int>(domain.size());
        placement.domains += first < range.end && range.first < end ? 1 : 0;
        first = end;
    }
    return placement;
}

CoreDomains usable_cores(const char* synthetic) {
    Affinity allowed;
    allowed_set(allowed);
    std::map<int, std::vector<int>> domains;  // by the index of the memory domain
    hwloc_topology_t topology = nullptr;
    bool known = hwloc_topology_init(&topology) == 0;
    if (known && synthetic != nullptr) known = hwloc_topology_set_synthetic(topology, synthetic) == 0;
    if (known && hwloc_topology_load(topology) == 0) {
        const hwloc_const_cpuset_t given = hwloc_topology_get_allowed_cpuset(topology);
        hwloc_obj_t core = nullptr;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
            int processor = -1;  // the first hardware thread of the core that we may use
            while ((processor = hwloc_bitmap_next(core->cpuset, processor)) >= 0) {
                if (!hwloc_bitmap_isset(given, static_cast<unsigned>(processor))) continue;
                if (synthetic == nullptr && !allowed.has(processor)) continue;
                domains[hwloc_bitmap_first(core->nodeset)].push_back(processor);
                break;
            }
        }
    }
    if (topology != nullptr) hwloc_topology_destroy(topology);
    for (int processor = 0; domains.empty() && processor < max_processors; ++processor) {
        if (allowed.has(processor)) domains[0].push_back(processor);  // hwloc reports no cores on this machine
    }
    if (domains.empty()) domains[0].push_back(0);
    CoreDomains cores;
    for (auto& [number, domain] : domains) cores.push_back(std::move(domain));
    return cores;
}

Placement place_this_rank(int threads) {
    CoreDomains cores = usable_cores();
    Affinity before, wanted;
    before.read(0);
    const NodeRank all_ranks = node_rank_from_environment();
    const NodeRank node = ranks_sharing(all_ranks, before.count());
    Placement placement = divide(cores, node, threads);
    const int quota = std::min(allowed_processors().value_or(placement.node_cores), placement.node_cores);
    if (quota < placement.node_cores) {  // a CPU quota names no processors: do not bind, use fewer threads
        std::vector<int> all;
        for (const std::vector<int>& domain : cores) all.insert(all.end(), domain.begin(), domain.end());
        placement = divide({{all.begin(), all.begin() + quota}}, node, threads);
        placement.processors = all;
        placement.domains = 1;
    }
    placement.node_ranks = all_ranks.size;
    for (const int processor : placement.processors) wanted.add(processor);
    wanted.apply();  // on failure it may be slower, but still correct
    if (placement.oversubscribed) ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    const bool bind_threads = placement.domains > 1 && !placement.oversubscribed;
    kernels::set_team_rules({.processors = bind_threads ? placement.processors : std::vector<int>(),
                             .yield_cores = placement.oversubscribed});
    return placement;
}

}  // namespace longhaul::runner
