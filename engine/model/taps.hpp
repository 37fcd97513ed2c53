// Keeps what the caller of a pass asked for (Tap).
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
    /// Throws std::logic_error where a tap names rows or a layer that are not there. `taps` outlive it.
    TapCollector(ComputeContext& context, const PooledBuffer::Pool& pool, std::span<const Tap> taps,
                 std::int64_t num_rows, std::int64_t width, std::int64_t num_layers);

    void before_layer(std::int64_t layer, const Residual& rows);
    /// `x`: f32 [rows, width], complete.
    void after_layers(const float* x, const Norm& final_norm);
    [[nodiscard]] std::vector<HiddenStates> take() { return std::move(kept_); }

  private:
    ComputeContext& context_;
    std::span<const Tap> taps_;
    std::vector<HiddenStates> kept_;  ///< one a tap
};

}  // namespace longhaul::engine
