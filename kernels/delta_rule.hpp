// Linear attention by the gated delta rule (delta_shape.hpp) on devices that compute on the host: which rows of a pass
// change which state, and the order in which that happens. The arithmetic of one head is that of the device
// (DeltaKernels).
//
// For value head h with key head h / values_per_key, state S [key_dim, value_dim], and row t:
//   c     = silu(convolution of the row's inputs and those of the taps - 1 rows before it)
//   q, k  = query and key of c, each divided by sqrt(sum of squares + delta_eps), q also by sqrt(key_dim)
//   v     = values of c
//   decay = exp(-exp(log_rate[h]) * softplus(rate + step_bias[h]))
//   step  = sigmoid(step input), called beta in papers
//   delta = step * (v - decay * S^T k)
//   S     = decay * S + k delta^T
//   out   = S^T q
// With StateRule::sum instead:
//   c     = silu(bias + convolution); q, k and v are its parts as they are
//   step  = softplus(rate + step_bias[h])
//   decay = exp(-exp(log_rate[h]) * step)
//   delta = step * v
//   S     = decay * S + k delta^T
//   out   = S^T q + skip[h] * v
// Every row changes the state of the row before it in the text, one row after another, so the bits do not depend on how
// the text is divided into passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/delta_kernels.hpp"
#include "kernels/device.hpp"
#include "kernels/linear_attention.hpp"

namespace longhaul::kernels {

/// One row that is a draft node, or one whose update is not kept.
struct DeltaNode {
    std::int32_t row = 0;
    std::span<const std::int32_t> path;  ///< scratch slots, its own last
};

/// The rows of one sequence in a pass: those that change its state, in the order of the text, then draft nodes in depth
/// first order, each after the node above it.
struct DeltaSequence {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> text;
    std::vector<DeltaNode> nodes;
    std::int64_t max_depth = 0;
};
std::vector<DeltaSequence> delta_sequences(const GroupRows& rows);

/// Work memory of one thread, grown on demand.
class DeltaScratch {
  public:
    void prepare(const DeltaShape& shape, std::int64_t max_depth);
    [[nodiscard]] float* query() { return memory_.data(); }
    [[nodiscard]] float* update() { return memory_.data() + update_; }
    /// The states of a key head behind a draft node of this depth, from 1 on.
    [[nodiscard]] float* level(std::int64_t depth) { return memory_.data() + levels_ + (depth - 1) * of_level_; }

  private:
    std::vector<float> memory_;
    std::int64_t update_ = 0, levels_ = 0, of_level_ = 0;
};

/// A layer's inputs and outputs for all rows of a pass.
struct DeltaCall {
    const KvLayout& layout;
    std::int64_t layer;
    const DeltaWeights& weights;
    const float* inputs;  ///< as in DeltaRule::mix, and so are the others
    std::int64_t inputs_stride;
    const float* gates;
    float* out;
};

/// Computes key head `head` of all rows of one sequence.
void mix_head(const DeltaKernels& kernels, const DeltaCall& call, const GroupRows& rows, const DeltaSequence& sequence,
              std::int64_t head, DeltaScratch& scratch);

/// DeltaRule::accept for one layer and key head.
void accept_head(const DeltaKernels& kernels, const KvLayout& layout, std::int64_t layer, std::int64_t head,
                 std::byte* state, std::span<std::byte* const> scratch_pages, std::span<const std::int32_t> slots);

/// Throws std::logic_error if the rows of the pass are not what `mix` works on.
void check_delta(const KvLayout& layout, std::int64_t layer, const GroupRows& rows, std::int64_t inputs_stride);

}  // namespace longhaul::kernels
