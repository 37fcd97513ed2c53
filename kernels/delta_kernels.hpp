// The arithmetic of one head and row in linear attention (kernels/delta_rule.hpp): jobs of plain numbers, because
// variants for other processors compute them ("the wall" in kernels/cpu/kernel_table.hpp).
#pragma once

#include <cstdint>

#include "kernels/state_rule.hpp"

namespace longhaul::kernels {

/// Added to the sum of squares of a query or key.
inline constexpr float delta_eps = 1e-6F;

/// The convolution of one key head and row; with StateRule::delta, query and key are brought to their lengths.
struct ConvolveJob {
    const float* const* rows;  ///< [taps] of [channels], oldest first
    const float* filter;       ///< [taps, channels]
    const float* bias;         ///< [channels]; nullptr: none
    StateRule rule;
    std::int64_t taps;
    std::int64_t key_dim, values_width;  ///< channels = 2 key_dim + values_width
    float* query;                        ///< [key_dim]
    float* update;                       ///< key [key_dim], values [values_width]
};

/// One row's change of one value head's state.
struct FoldJob {
    const float* from;  ///< state before, [key_dim, value_dim]
    float* to;          ///< state after; may be `from`
    const float* key;
    const float* value;
    float decay, step;
    StateRule rule;
    float skip;          ///< with StateRule::sum: factor on the value, which is added to the output
    const float* query;  ///< nullptr: no output is wanted
    float* out;          ///< [value_dim]
    std::int64_t key_dim, value_dim;
};

struct DeltaKernels {
    void (*convolve)(const ConvolveJob& job);
    void (*fold)(const FoldJob& job);
};

}  // namespace longhaul::kernels
