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
#include "engine/model/feed_forward.hpp"
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

/// What a run through layers has besides its rows.
struct LayerPass {
    TapCollector* taps = nullptr;
    LayerInput input{};                       ///< of the first layer
    const float* layer_embeddings = nullptr;  ///< Embedding::of_layers; unused if the model has none
    std::function<void(const LayerQueries&)> before_attention = {};  ///< Pass::before_attention
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

    /// Starts a pass: `run` and `attend` work on these rows until the next `begin`. The rows must stay valid until
    /// then. The device has one pass at a time, so call `begin` again after other layers have used the device.
    void begin(std::span<const ForwardRow> rows, std::span<const KvView> sequences);

    /// Runs the rows x, f32 [rows, hidden], through layers [first, end). Collective.
    void run(std::int64_t first, std::int64_t end, float* x, const LayerPass& pass = {});
    /// For measurements: runs only the attention of one layer, on the current contents of the query buffer.
    const std::byte* attend(std::int64_t layer);

    /// That of the first group.
    [[nodiscard]] const kernels::KvLayout& layout() const { return first_layout_; }
    [[nodiscard]] std::int64_t num_layers() const { return std::ssize(weights_); }

  private:
    void find_prompt_rows(std::span<const ForwardRow> rows);
    void leave_block(const LayerConfig& kind, const BlockNorms& norms, const kernels::Buffer& bias, float* sum,
                     Residual& rows);
    void attention(std::int64_t layer, kernels::DType act, std::byte* heads, std::int64_t width);
    const std::byte* attend_gated(std::int64_t layer, const std::byte* input);
    const std::byte* mix(std::int64_t layer, const std::byte* input, const LayerPass& pass);
    void norm_heads(std::int64_t layer, float* qkv);
    void project_qkv(std::int64_t layer, const std::byte* input, std::byte* q);
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
    void attention_block(std::int64_t layer, Residual& rows, const LayerInput& input, const LayerPass& pass);
    void parallel_block(std::int64_t layer, Residual& rows, const LayerPass& pass);
    void mlp_block(std::int64_t layer, Residual& rows, const LayerPass& pass);
    void embedding_block(std::int64_t layer, Residual& rows, const float* embeddings);

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    LatentAttention latent_;
    LinearAttention linear_;
    FeedForward feed_forward_;
    std::span<const LayerWeights> weights_;
    std::vector<RememberedAngles> ropes_;            ///< by ModelConfig::ropes_of_layers
    kernels::KvLayout first_layout_;                 ///< of the first group
    std::vector<kernels::KvLayout> layouts_;         ///< by layer
    std::vector<LayerPlace> places_;                 ///< likewise
    std::vector<std::vector<float>> output_scales_;  ///< on the host, by layer; empty if it has none
    kernels::Buffer value_gain_;                     ///< ones, of LayerConfig::value_norm
    std::function<void()> hook_;

    // State of the current pass.
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
