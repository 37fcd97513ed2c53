// Probabilities of a next token, of target or draft, after the whole logits pipeline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace longhaul::engine {

/// The tokens that survived the filters, ids ascending. `q` sums to 1 (up to rounding).
struct Distribution {
    std::vector<std::int32_t> ids;
    std::vector<double> log_weights;  ///< log q up to one constant a distribution
    std::vector<double> q;            ///< empty where it was not asked for and no filter needed it
    /// Device memory that holds all of it (kernels::KeptDistribution); what stands here is then but a part.
    const std::byte* kept = nullptr;

    /// Place of `token` in `ids`; -1 where it was filtered.
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
