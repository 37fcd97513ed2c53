// Decoder layers on one rank: rows of the residual stream in, the same rows out, keys and values into pages. All layers
// of a model, or of a draft head that has some of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/compute_context.hpp"
#include "engine/model/config.hpp"
#include "engine/model/pass.hpp"
#include "engine/model/rope.hpp"
#include "engine/model/taps.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// What a layer's queries, keys and values are made of: f32 [rows, width], as many columns as their matrix has inputs.
struct LayerInput {
    const float* rows = nullptr;  ///< nullptr: the layer's own rows, normed
    std::int64_t width = 0;
};

class DecoderLayers {
  public:
    /// `weights`: one of each layer of `layout`. `config` says what the layers are like. All but `layout` are kept by
    /// the caller.
    DecoderLayers(ComputeContext& context, const ModelConfig& config, const Split& split,
                  std::span<const LayerWeights> weights, const kernels::KvLayout& layout);

    /// Called between layers on every rank: a pass over many rows of a large model takes seconds, and MPI and the
    /// watchdog want to hear from us.
    void set_hook(std::function<void()> hook) { hook_ = std::move(hook); }

    /// From here on `run` and `attend` are about these rows, which stay where they are until then. The device has one
    /// pass at a time: layers that took turns with others begin anew.
    void begin(std::span<const ForwardRow> rows, std::span<const KvView> sequences);

    /// The rows x, f32 [rows, hidden], through layers [first, end). `input`: of the first of these. Collective.
    void run(std::int64_t first, std::int64_t end, float* x, TapCollector* taps = nullptr, LayerInput input = {});
    /// For measurements: the attention of one layer alone, with whatever stands in the queries.
    const std::byte* attend(std::int64_t layer);

    [[nodiscard]] const kernels::KvLayout& layout() const { return layout_; }
    [[nodiscard]] std::int64_t num_layers() const { return std::ssize(weights_); }

  private:
    void find_prompt_rows(std::span<const ForwardRow> rows);
    const std::byte* enter_block(NormPlace place, const Norm& norm, Residual& rows);
    void leave_block(NormPlace place, const Norm& norm, const kernels::Buffer& bias, float* part, Residual& rows);
    std::byte* queries();
    void attention_block(std::int64_t layer, Residual& rows, const LayerInput& input);
    void mlp_block(std::int64_t layer, Residual& rows);

    ComputeContext& context_;
    const ModelConfig& config_;
    const Split& split_;
    std::span<const LayerWeights> weights_;
    kernels::KvLayout layout_;
    RopeTable rope_;
    std::function<void()> hook_;

    // Of the pass.
    std::int64_t num_rows_ = 0;
    std::vector<float> cos_, sin_;
    std::vector<kernels::KvSlot> slots_;
    std::vector<kernels::AttentionRow> attention_rows_;
    std::vector<KvView> sequences_;
    std::int64_t first_prompt_row_ = 0, num_prompt_rows_ = 0;
};

}  // namespace longhaul::engine
