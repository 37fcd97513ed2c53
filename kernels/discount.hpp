// The discount of K-SEQ (algorithms.md section 3), computed by the host (engine/verify/k_seq.cpp) and by GPU kernels
// (cuda/decide_k_seq.cuh) with the same bits.
#pragma once

#include "kernels/host_device.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels {

/// 1 - (1 - beta)^num_drafts: the probability that at least one of num_drafts drafts is accepted, if each is with
/// probability `beta`.
inline LONGHAUL_HOST_DEVICE double chance_of_any(double beta, int num_drafts) {
    double none = 1;
    for (int i = 0; i < num_drafts; ++i) none *= 1.0 - beta;
    return 1.0 - none;
}

/// The smallest gamma in [1, K] with 1 - (1 - beta)^K <= gamma beta, beta = mass_at(gamma): the upper end of a
/// bisection.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <typename MassAt>
LONGHAUL_HOST_DEVICE double min_gamma(int num_drafts, const MassAt& mass_at) {
    double low = 1, high = num_drafts;
    for (int step = 0; step <= gamma_steps; ++step) {
        const double gamma = step == 0 ? low : 0.5 * (low + high);
        const double beta = mass_at(gamma);
        const bool holds = chance_of_any(beta, num_drafts) <= gamma * beta;
        if (holds && step == 0) return low;
        if (step > 0) (holds ? high : low) = gamma;
    }
    return high;
}

}  // namespace longhaul::kernels
