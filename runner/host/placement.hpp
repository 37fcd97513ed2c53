// Which processor cores a rank uses. What the node gives us is divided among its ranks here, because launchers often
// give a rank a single core (`mpirun -n 1`), and `threads = 2` would silently run at half speed.
#pragma once

#include <string>
#include <vector>

namespace longhaul::runner {

/// Cores that may be used, a processor number each (siblings are left free: two threads of one core only fight), by
/// memory domain (NUMA node), in the order of the machine. No domain is empty.
using CoreDomains = std::vector<std::vector<int>>;

/// The cores of one rank.
struct Placement {
    std::vector<int> processors;  ///< numbers of the operating system, one a core
    int threads = 1;
    int domains = 1;     ///< memory domains that its processors belong to
    int node_cores = 1;  ///< cores that all ranks of the node may use together
    int node_ranks = 1;
    bool oversubscribed = false;  ///< more threads than cores: waiting must not spin

    /// "cores 0-3 of 8, 4 threads, 2 ranks on the node"
    [[nodiscard]] std::string describe() const;
};

/// Ranks of this node as the launcher's environment says (Open MPI, Slurm, PMI), before MPI starts; {0, 1} when alone.
struct NodeRank {
    int rank = 0, size = 1;
};
NodeRank node_rank_from_environment();

/// Whether mpirun or srun started this process as a rank of MPI.
bool started_by_launcher();

/// Of the ranks of a node those that share this process's affinity, `processors` of them: all, or this one alone where
/// srun gave each task processors of its own.
NodeRank ranks_sharing(NodeRank node, int processors);

/// Divides the cores among the ranks of the node, neighbours side by side; `threads` = 0 takes the whole share. No rank
/// gets cores of two memory domains where that leaves the smallest share as large as it can be.
Placement divide(const CoreDomains& domains, NodeRank node, int threads);

/// The cores that the node gives to all our ranks here. `synthetic`: those of a machine that hwloc describes so, for
/// tests ("numa:2 core:8 pu:2").
CoreDomains usable_cores(const char* synthetic = nullptr);

/// Places this process before MPI and its threads start: binds it to its share (where that has several memory domains,
/// each thread of a team to a core, so that it stays near the weights that it was first to touch) and says how they
/// wait.
Placement place_this_rank(int threads);

}  // namespace longhaul::runner
