// The interface of linear attention on one device (Device::delta_rule), called by the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// Weights of a layer of linear attention that are no matrices, f32 in device memory.
struct DeltaWeights {
    const float* filter = nullptr;     ///< [key heads, taps, channels], the taps from the oldest position on
    const float* log_rate = nullptr;   ///< [value heads]: A_log
    const float* step_bias = nullptr;  ///< likewise: dt_bias
    // With StateRule::sum, else nullptr.
    const float* filter_bias = nullptr;  ///< [key heads, channels]
    const float* skip = nullptr;         ///< [value heads]: D
};

/// Linear attention by the gated delta rule, or as in Mamba-2 (delta_shape.hpp; delta_rule.hpp states the arithmetic).
class DeltaRule {
  public:
    virtual ~DeltaRule() = default;

    /// Computes one layer for the rows of the pass (PassRows, group layout.group). A row of the text, which is stored
    /// in the page of its sequence, changes the state there; at position 0 the state is set to zero before. A draft
    /// node starts from the state behind the text and the nodes above it, and is stored in its scratch slot.
    /// inputs: f32 [rows, inputs_stride], the convolution's of each key head first; gates: f32 [rows,
    /// DeltaShape::gates_width], the rates of all value heads, then, if there are two of each, the inputs of their
    /// steps; out: f32 [rows, value heads * value_dim].
    virtual void mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
                     std::int64_t inputs_stride, const float* gates, float* out) = 0;

    /// Changes the state of a sequence, in all layers, by the draft nodes in these scratch slots, in their order.
    virtual void accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                        std::span<const std::int32_t> slots) = 0;
};

}  // namespace longhaul::kernels
