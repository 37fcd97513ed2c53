// The discount of K-SEQ (ALGORITHMS.md section 3), computed by the host (engine/verify/k_seq.cpp) and by GPU kernels
// (cuda/decide_k_seq.cuh) with the same bits.
#pragma once

#include <cstdint>
#include <limits>

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

/// How far gamma beta exceeds the chance of any draft, beta = mass_at(gamma). The discount is where it becomes 0.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <typename MassAt>
LONGHAUL_HOST_DEVICE double excess_at(double gamma, int num_drafts, const MassAt& mass_at) {
    const double beta = mass_at(gamma);
    return gamma * beta - chance_of_any(beta, num_drafts);
}

/// Discounts that are known to be too small, and large enough.
struct GammaBracket {
    double too_small = 0;
    double enough = std::numeric_limits<double>::infinity();
};

/// More than rounding can change in the difference of two values of excess_at, for sums over `vocab_size` tokens in
/// lanes: each rounding changes a result in [0, K] by at most K 2^-53, and there are fewer than steps + 32 in a row.
inline LONGHAUL_HOST_DEVICE double excess_margin(std::int64_t vocab_size, int num_drafts) {
    const std::int64_t steps = vocab_size / vocabulary_lanes + 1;
    return 8.0 * num_drafts * static_cast<double>(steps + 32) * 0x1p-53;
}

/// Finds a narrow bracket with few sums: false position, and then a probe on both sides of the root. Exact results grow
/// with gamma, so where a computed one is beyond `margin` (excess_margin), the sign of all computed ones further out is
/// known.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <typename MassAt>
LONGHAUL_HOST_DEVICE GammaBracket bracket_gamma(int num_drafts, double margin, const MassAt& mass_at) {
    if (num_drafts == 1) return {.too_small = 0, .enough = 1};  // the only gamma
    double low = 1, high = num_drafts;
    double below = excess_at(low, num_drafts, mass_at);
    if (!(below < -margin)) return {};
    double above = excess_at(high, num_drafts, mass_at);
    if (!(above > margin)) return {};
    double left_weight = 1, right_weight = 1;  // halved at an end when the other one moves again (Illinois)
    int moved = 0;                             // the end that moved last
    constexpr int max_steps = 12;
    for (int step = 0; step < max_steps; ++step) {
        const double left = below * left_weight, right = above * right_weight;
        const double gamma = low + (high - low) * (left / (left - right));
        const double slope = (above - below) / (high - low);
        if (!(gamma > low && gamma < high)) break;
        const double excess = excess_at(gamma, num_drafts, mass_at);
        if (excess < -margin) {
            right_weight = moved < 0 ? 0.5 * right_weight : 1;
            left_weight = 1;
            moved = -1;
            low = gamma;
            below = excess;
        } else if (excess > margin) {
            left_weight = moved > 0 ? 0.5 * left_weight : 1;
            right_weight = 1;
            moved = 1;
            high = gamma;
            above = excess;
        } else {
            const double before = gamma - (excess + 2 * margin) / slope, after = gamma + (2 * margin - excess) / slope;
            if (before > low && excess_at(before, num_drafts, mass_at) < -margin) low = before;
            if (after < high && excess_at(after, num_drafts, mass_at) > margin) high = after;
            break;
        }
    }
    return {.too_small = low, .enough = high};
}

/// The smallest gamma in [1, K] with 1 - (1 - beta)^K <= gamma beta, beta = mass_at(gamma): the upper end of a
/// bisection. `known` (bracket_gamma) spares sums and changes no result.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <typename MassAt>
LONGHAUL_HOST_DEVICE double min_gamma(int num_drafts, const MassAt& mass_at, const GammaBracket& known = {}) {
    double low = 1, high = num_drafts;
    for (int step = 0; step <= gamma_steps; ++step) {
        const double gamma = step == 0 ? low : 0.5 * (low + high);
        bool holds = gamma >= known.enough;
        if (!holds && gamma > known.too_small) {
            const double beta = mass_at(gamma);
            holds = chance_of_any(beta, num_drafts) <= gamma * beta;
        }
        if (holds && step == 0) return low;
        if (step > 0) (holds ? high : low) = gamma;
    }
    return high;
}

}  // namespace longhaul::kernels
