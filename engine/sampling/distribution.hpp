// Next-token distribution of the target or a draft model, after the whole logits pipeline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace longhaul::engine {

/// The tokens that survived the filters, in ascending order of id. `q` sums to 1 (up to rounding).
struct Distribution {
    std::vector<std::int32_t> ids;
    std::vector<double> log_weights;  ///< log q, up to one constant per distribution
    std::vector<double> q;            ///< probabilities; empty if not requested and not needed by any filter
    /// Device memory that holds the complete distribution (kernels::KeptDistribution). If set, the vectors above hold
    /// only part of it.
    const std::byte* kept = nullptr;

    /// Index of `token` in `ids`; -1 if it was filtered out.
    [[nodiscard]] std::int64_t place_of(std::int32_t token) const {
        const auto at = std::lower_bound(ids.begin(), ids.end(), token);
        return at != ids.end() && *at == token ? at - ids.begin() : -1;
    }
    [[nodiscard]] double probability(std::int32_t token) const {
        const std::int64_t place = place_of(token);
        return place < 0 ? 0.0 : q[place];
    }
};

}  // namespace longhaul::engine
