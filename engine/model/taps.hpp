// Collects the hidden states that the caller of a forward pass requested (Tap in pass.hpp). Called by Model::forward
// and DecoderLayers::run.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/pass.hpp"

namespace longhaul::engine {

class TapCollector {
  public:
    /// Throws std::logic_error if a tap names rows or a layer that do not exist. `taps` must outlive this object.
    TapCollector(ComputeContext& context, const PooledBuffer::Pool& pool, std::span<const Tap> taps,
                 std::int64_t num_rows, std::int64_t width, std::int64_t num_layers);

    void before_layer(std::int64_t layer, const Residual& rows);
    /// `x`: f32 [rows, width], the residual stream with nothing left to add.
    void after_layers(const float* x, const Norm& final_norm);
    [[nodiscard]] std::vector<HiddenStates> take() { return std::move(kept_); }

  private:
    ComputeContext& context_;
    std::span<const Tap> taps_;
    std::vector<HiddenStates> kept_;  ///< one per tap
};

}  // namespace longhaul::engine
