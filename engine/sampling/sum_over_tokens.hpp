// Sums over the tokens of a vocabulary, in the order that kernels/numerics.hpp defines. Used by the logits pipeline and
// the sampling rules of engine/verify.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/numerics.hpp"

namespace longhaul::engine {

/// Sum of the first `num_lanes` lanes (a power of two) as a balanced tree.
inline double sum_of_lanes(std::array<double, kernels::vocabulary_lanes>& lanes, std::size_t num_lanes) {
    for (std::size_t half = num_lanes / 2; half > 0; half /= 2) {
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

/// Number of lanes used by tokens up to `last`, a power of two. The remaining lanes of a small vocabulary would only
/// add zeros.
inline std::size_t num_lanes_to(std::int32_t last) {
    return std::min(std::bit_ceil(static_cast<std::size_t>(last) + 1), std::size_t{kernels::vocabulary_lanes});
}

/// Sum of term(i) over the indices i of `ids` (tokens in ascending order).
template <typename Term>
double sum_over_tokens(std::span<const std::int32_t> ids, Term term) {
    if (ids.empty()) return 0;
    const auto tokens = static_cast<std::size_t>(ids.back()) + 1;
    const std::size_t num_lanes = num_lanes_to(ids.back());
    std::array<double, kernels::vocabulary_lanes> lanes;
    std::fill_n(lanes.begin(), num_lanes, 0.0);
    if (ids.size() == tokens) {  // all tokens survive: lanes stay in registers
        for (std::size_t first = 0; first < tokens; first += num_lanes) {
            const std::size_t end = std::min(num_lanes, tokens - first);
            for (std::size_t lane = 0; lane < end; ++lane) lanes[lane] += term(first + lane);
        }
    } else {
        for (std::size_t i = 0; i < ids.size(); ++i)
            lanes[static_cast<std::size_t>(ids[i]) & (num_lanes - 1)] += term(i);
    }
    return sum_of_lanes(lanes, num_lanes);
}

}  // namespace longhaul::engine
