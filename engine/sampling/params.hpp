// Options of the logits pipeline (algorithms.md section 1), as set by the user.
#pragma once

#include <cstdint>

namespace longhaul::engine {

struct SamplingParams {
    double temperature = 1.0;            ///< 0: greedy
    std::int64_t top_k = 0;              ///< 0: off
    double top_p = 1.0;                  ///< 1: off
    double min_p = 0.0;                  ///< 0: off
    double eta = 0.0;                    ///< 0: off
    double repetition_penalty = 1.0;     ///< θ; 1: off
    std::int64_t penalty_window = 1024;  ///< W: the penalty sees the last W tokens of a node's context
    std::int64_t min_keep = 1;           ///< each filter keeps at least this many tokens
};

}  // namespace longhaul::engine
