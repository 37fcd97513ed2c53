// Decoder layers on one rank: transforms rows of the residual stream in place and writes their keys and values to the
// KV pages. Used for all layers of a model (model.cpp) and for the layers of a draft head (engine/draft/heads.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/config.hpp"
#include "engine/model/expert_routing.hpp"
#include "engine/model/latent_attention.hpp"
#include "engine/model/linear_attention.hpp"
#include "engine/model/pass.hpp"
#include "engine/model/rope.hpp"
#include "engine/model/split.hpp"
#include "engine/model/taps.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// Explicit input of a layer's QKV matmul: f32 [rows, width], with as many columns as the matrix has inputs.
struct LayerInput {
    const float* rows = nullptr;  ///< nullptr: use the residual rows, normed
    std::int64_t width = 0;
};

/// The norms of one block of a layer.
struct BlockNorms {
    const Norm& in;
    const Norm& out;
};

class DecoderLayers {
  public:
    /// `weights`: one entry per layer. `layouts`: one per group of the layers that `config` describes. The caller keeps
    /// all arguments alive except `layouts`.
    DecoderLayers(ComputeContext& context, const ModelConfig& config, const Split& split,
                  std::span<const LayerWeights> weights, std::span<const kernels::KvLayout> layouts);

    /// Sets a function called after each layer on every rank: a pass over many rows of a large model takes seconds, and
    /// MPI and the watchdog need regular calls.
    void set_hook(std::function<void()> hook) { hook_ = std::move(hook); }

    /// Sets Pass::before_attention for the next `run`.
    void set_before_attention(std::function<void(const LayerQueries&)> call) { before_attention_ = std::move(call); }

    /// Sets the embeddings per layer of the rows of the next `run`: Embedding::of_layers.
    void set_layer_embeddings(const float* embeddings) { layer_embeddings_ = embeddings; }

    /// Starts a pass: `run` and `attend` work on these rows until the next `begin`. The rows must stay valid until
    /// then. The device has one pass at a time, so call `begin` again after other layers have used the device.
    void begin(std::span<const ForwardRow> rows, std::span<const KvView> sequences);

    /// Runs the rows x, f32 [rows, hidden], through layers [first, end). `input` is the input of layer `first`.
    /// Collective.
    void run(std::int64_t first, std::int64_t end, float* x, TapCollector* taps = nullptr, LayerInput input = {});
    /// For measurements: runs only the attention of one layer, on the current contents of the query buffer.
    const std::byte* attend(std::int64_t layer);

    /// That of the first group.
    [[nodiscard]] const kernels::KvLayout& layout() const { return first_layout_; }
    [[nodiscard]] std::int64_t num_layers() const { return std::ssize(weights_); }

  private:
    void find_prompt_rows(std::span<const ForwardRow> rows);
    const std::byte* enter_block(NormPlace place, const Norm& norm, Residual& rows);
    void leave_block(const LayerConfig& kind, const BlockNorms& norms, const kernels::Buffer& bias, float* sum,
                     Residual& rows);
    void attention(std::int64_t layer, kernels::DType act, std::byte* heads, std::int64_t width);
    const std::byte* attend_gated(std::int64_t layer, const std::byte* input);
    const std::byte* mix(std::int64_t layer, const std::byte* input);
    void norm_heads(std::int64_t layer, float* qkv);
    void project_qkv(std::int64_t layer, const std::byte* input, std::byte* q);
    void activate(std::int64_t layer, const std::byte* input, std::byte* active);
    [[nodiscard]] const kernels::KvLayout& layout_of(std::int64_t layer) const {
        return layouts_[static_cast<std::size_t>(layer)];
    }
    /// Of what a layer projects: without KV heads if it shares those of another layer.
    [[nodiscard]] kernels::KvLayout projected_layout(std::int64_t layer) const {
        kernels::KvLayout layout = layout_of(layer);
        if (config_.layer(layer).shares_kv) layout.num_kv_heads = 0;
        return layout;
    }
    void begin_group(std::size_t group, std::span<const ForwardRow> rows, std::span<const KvView> sequences);
    void find_angles(std::size_t rope, std::span<const ForwardRow> rows);
    std::byte* queries();
    void norm_in_place(const Norm& norm, float* x);
    ExpertRouting choose_experts(std::int64_t layer, const std::byte* input);
    void multiply_copies(std::span<const Expert> experts, kernels::Matrix Expert::*matrix, const ExpertRouting& routing,
                         const std::byte* x, std::int64_t x_stride, float* y);
    void add_expert_bias(const kernels::Buffer& bias, const ExpertRouting& routing, std::int64_t width, float* y);
    void compute_experts(std::int64_t layer, const ExpertRouting& routing, const std::byte* input, float* out);
    float* compute_mlps(std::int64_t layer, Residual& rows);
    float* compute_normed_mlps(std::int64_t layer, Residual& rows);
    void compute_mlp(std::int64_t layer, const std::byte* input, float* out);
    void attention_block(std::int64_t layer, Residual& rows, const LayerInput& input);
    void mlp_block(std::int64_t layer, Residual& rows);
    void embedding_block(std::int64_t layer, Residual& rows);

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    LatentAttention latent_;
    LinearAttention linear_;
    std::span<const LayerWeights> weights_;
    std::vector<RememberedAngles> ropes_;     ///< by ModelConfig::ropes_of_layers
    kernels::KvLayout first_layout_;          ///< of the first group
    std::vector<kernels::KvLayout> layouts_;  ///< by layer
    std::vector<LayerPlace> places_;          ///< likewise
    /// On the host, by layer; empty if it has none.
    std::vector<std::vector<float>> score_corrections_, expert_scales_, output_scales_;
    kernels::Buffer value_gain_;  ///< ones, of LayerConfig::value_norm
    std::function<void()> hook_;
    std::function<void(const LayerQueries&)> before_attention_;

    // State of the current pass.
    const float* layer_embeddings_ = nullptr;
    std::int64_t num_rows_ = 0;
    struct GroupState {
        std::vector<kernels::KvSlot> slots;
        std::vector<kernels::AttentionRow> rows;
        std::vector<kernels::AttentionSequence> sequences;
    };
    std::vector<GroupState> groups_;
    std::vector<kernels::GroupRows> group_rows_;
    struct Angles {
        std::vector<float> cos, sin, query_cos, query_sin;
    };
    std::vector<Angles> angles_;  ///< as ropes_
    std::vector<kernels::PassAngles> pass_angles_;
    std::int64_t first_prompt_row_ = 0, num_prompt_rows_ = 0;
};

}  // namespace longhaul::engine
