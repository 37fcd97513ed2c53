// Decides which processor cores a rank uses; called at program start, before MPI. The node's cores are divided among
// its ranks here because launchers often give a rank a single core (`mpirun -n 1`), and `threads = 2` would silently
// run at half speed.
#pragma once

#include <string>
#include <vector>

namespace longhaul::runner {

/// Usable cores, as one processor number per core, grouped by memory domain (NUMA node), in machine order. Sibling
/// hardware threads stay unused, since two threads of one core compete. No domain is empty.
using CoreDomains = std::vector<std::vector<int>>;

/// The cores of one rank.
struct Placement {
    std::vector<int> processors;  ///< processor numbers of the operating system, one per core
    int threads = 1;
    int domains = 1;     ///< number of memory domains that the processors belong to
    int node_cores = 1;  ///< cores that all ranks of the node may use together
    int node_ranks = 1;
    bool oversubscribed = false;  ///< more threads than cores: waiting threads must not spin

    /// "processors 0-3 (4 of 8 cores), 4 threads, 2 ranks on the node"
    [[nodiscard]] std::string describe() const;
};

/// Rank and number of ranks on this node according to the launcher's environment (Open MPI, Slurm, PMI), before MPI
/// starts; {0, 1} without a launcher.
struct NodeRank {
    int rank = 0, size = 1;
};
NodeRank node_rank_from_environment();

/// Whether mpirun or srun started this process as an MPI rank.
bool started_by_launcher();

/// Whether that launch has several ranks, as far as its environment tells. (A script that is the only rank may start
/// the program more than once, which MPI does not allow.)
bool started_in_ranks();

/// The ranks of the node that share this process's affinity mask of `processors` processors: all ranks, or this one
/// alone if srun gave each task its own processors.
NodeRank ranks_sharing(NodeRank node, int processors);

/// Divides the cores among the ranks of the node; neighbouring ranks get neighbouring cores. `threads` = 0 uses the
/// whole share. A rank gets cores of two memory domains only if the smallest share would be smaller otherwise.
Placement divide(const CoreDomains& domains, NodeRank node, int threads);

/// The cores that this node allows all our ranks together. `synthetic`: an hwloc synthetic topology, for tests ("numa:2
/// core:8 pu:2").
CoreDomains usable_cores(const char* synthetic = nullptr);

/// Places this process before MPI and its threads start. Binds the process to its share of the cores; if the share
/// spans several memory domains, binds each thread of a team to one core, so that it stays near the weights that it
/// touched first. Also sets how threads wait (spin or yield).
Placement place_this_rank(int threads);

}  // namespace longhaul::runner
