// All 32 combinations of the sampling pipeline's filters, by number, for tests that go through each.
#pragma once

#include "engine/sampling/params.hpp"

namespace longhaul::engine::testing {

inline SamplingParams filters_of(int set) {
    SamplingParams params;
    if (set & 1) params.top_k = 20;
    if (set & 2) params.top_p = 0.9;
    if (set & 4) params.min_p = 0.05;
    if (set & 8) params.eta = 2e-2;
    if (set & 16) params.repetition_penalty = 1.3;
    params.penalty_window = 24;
    return params;
}

}  // namespace longhaul::engine::testing
