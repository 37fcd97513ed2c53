// Feed-forward networks of decoder layers on one rank: an MLP, or a router with its experts and a shared one. Used by
// DecoderLayers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/config.hpp"
#include "engine/model/expert_routing.hpp"
#include "engine/model/split.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

class FeedForward {
  public:
    /// `weights`: one entry per layer. The caller keeps all arguments alive.
    FeedForward(ComputeContext& context, const ModelConfig& config, const Split& split,
                std::span<const LayerWeights> weights);

    /// What a layer's network makes of the rows, normed as the layer says: f32 [rows, hidden], which the context's
    /// `sum` holds. Collective.
    float* compute(std::int64_t layer, Residual& rows);

    /// out = the MLP, or the shared expert, of a layer, of its input, act [num_rows, hidden]: f32 [num_rows, hidden].
    /// Collective.
    void mlp(std::int64_t layer, const std::byte* input, std::int64_t num_rows, float* out);

  private:
    float* mlp_or_experts(std::int64_t layer, Residual& rows);
    float* normed_experts(std::int64_t layer, Residual& rows);
    void latent_experts(std::int64_t layer, const ExpertRouting& routing, const std::byte* input, std::int64_t num_rows,
                        float* out);
    void apply_activation(const LayerConfig& kind, const float* gate_up, std::int64_t num_rows, std::int64_t width,
                          std::byte* active);
    void activate(std::int64_t layer, const std::byte* input, std::int64_t num_rows, std::byte* active);
    ExpertRouting choose_experts(std::int64_t layer, const std::byte* input, std::int64_t num_rows);
    void experts(std::int64_t layer, const ExpertRouting& routing, const std::byte* input, std::int64_t num_rows,
                 float* out);
    void multiply_copies(std::span<const Expert> experts, kernels::Matrix Expert::*matrix, const ExpertRouting& routing,
                         const std::byte* x, std::int64_t x_stride, float* y);
    void add_expert_bias(const kernels::Buffer& bias, const ExpertRouting& routing, std::int64_t width, float* y);

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    std::span<const LayerWeights> weights_;
    /// On the host, by layer; empty if it has none.
    std::vector<std::vector<float>> score_corrections_, expert_scales_;
};

}  // namespace longhaul::engine
