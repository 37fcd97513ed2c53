// Rows of logits of several kinds, and sampling parameters for them, for the tests of token selection.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/engine/filters.hpp"

namespace longhaul::engine::testing {

inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float infinity = std::numeric_limits<float>::infinity();

/// Generates rows from a seed.
class Rows {
  public:
    explicit Rows(unsigned seed) : random_(seed) {}

    std::vector<float> normal(std::int64_t vocab, float spread) {
        std::normal_distribution<float> draw(0, spread);
        std::vector<float> row(static_cast<std::size_t>(vocab));
        for (float& logit : row) logit = draw(random_);
        return row;
    }
    std::vector<float> tied(std::int64_t vocab) {
        std::vector<float> row = normal(vocab, 1.0F);
        for (float& logit : row) logit = std::round(logit) * 0.5F;
        return row;
    }
    std::vector<float> with_holes(std::int64_t vocab) {
        std::vector<float> row = normal(vocab, 2.0F);
        for (float& logit : row) {
            if (random_() % 2 == 0) logit = random_() % 2 == 0 ? nan : -infinity;
        }
        return row;
    }
    std::vector<std::int32_t> context(std::int64_t vocab) {
        std::vector<std::int32_t> tokens(40);
        for (auto& token : tokens)
            token = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(vocab + 3)) - 1;
        return tokens;
    }

  private:
    std::mt19937 random_;
};

/// Every combination of filters, at temperatures 1.0, 0.3 and 1.7 in rotation, and greedy decoding.
inline std::vector<SamplingParams> all_filters() {
    std::vector<SamplingParams> cases;
    for (int filters = 0; filters < 32; ++filters) {
        SamplingParams params = filters_of(filters);
        constexpr double temperatures[] = {1.0, 0.3, 1.7};
        params.temperature = temperatures[filters % 3];
        cases.push_back(params);
    }
    SamplingParams greedy;
    greedy.temperature = 0;
    cases.push_back(greedy);
    greedy.repetition_penalty = 1.3;
    cases.push_back(greedy);
    return cases;
}

}  // namespace longhaul::engine::testing
