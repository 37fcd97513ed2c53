// Which processor cores a rank uses. What the node gives us is divided among its ranks here, because launchers often
// give a rank a single core (`mpirun -n 1`), and `threads = 2` would silently run at half speed.
#pragma once

#include <string>
#include <vector>

namespace longhaul::runner {

/// The cores of one rank.
struct Placement {
    std::vector<int> processors;  ///< numbers of the operating system, one a core (and its siblings are left free)
    int threads = 1;
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

/// Divides `cores` (one processor number each) among `ranks`; `threads` = 0 takes the whole share.
Placement divide(const std::vector<int>& cores, NodeRank node, int threads);

/// The cores that the node gives to all our ranks here: one processor for each, in the order of the machine.
std::vector<int> usable_cores();

/// Places this process before MPI and OpenMP start: binds it to its share and sets the environment that both read only
/// at their start. When that needs a fresh start the program executes itself once more and this does not return.
Placement place_this_rank(int threads);

}  // namespace longhaul::runner
