// Kernels and launches that no GPU has measured yet. They give the same bits as those in use, and replace them where
// the environment variable LONGHAUL_CUDA_TRIALS names them: names separated by commas, or "all". tests/gpu.sh tests and
// measures each; then it replaces what it competes with, or is deleted.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

namespace longhaul::kernels::cuda {

enum class Trial {
    clusters,    ///< matmuls of prompts: clusters of 2 x 2 blocks share what they fetch
    pairs,       ///< the same, with pairs of blocks
    slices,      ///< matmuls of 17 to 64 rows: the blocks of a cluster compute a slice each
    warpgroups,  ///< attention of many queries: wgmma
    early,       ///< matmuls of 17 to 64 rows start before the call before has ended
    merges       ///< the last kernel of attention over few chunks: a warp merges a head
};

inline bool names_trial(const char* names, Trial trial) {
    static constexpr const char* const name_of[] = {"clusters", "pairs", "slices", "warpgroups", "early", "merges"};
    std::istringstream all(names == nullptr ? "" : names);
    for (std::string name; std::getline(all, name, ',');)
        if (name == "all" || name == name_of[static_cast<int>(trial)]) return true;
    return false;
}

/// Whether the process runs this trial. The environment is read once; a test that compares both may set it.
template <Trial trial>
bool& is_tried() {
    static bool tried = names_trial(std::getenv("LONGHAUL_CUDA_TRIALS"), trial);
    return tried;
}

}  // namespace longhaul::kernels::cuda
