#include "engine/model/taps.hpp"

#include <algorithm>
#include <stdexcept>

namespace longhaul::engine {

TapCollector::TapCollector(ComputeContext& context, const PooledBuffer::Pool& pool, std::span<const Tap> taps,
                           std::int64_t num_rows, std::int64_t width, std::int64_t num_layers)
    : context_(context), taps_(taps) {
    for (const Tap& tap : taps) {
        const bool layer = tap.at != Tap::At::layer_input || (tap.layer >= 0 && tap.layer < num_layers);
        const bool rows =
            std::all_of(tap.rows.begin(), tap.rows.end(), [&](std::int32_t row) { return row >= 0 && row < num_rows; });
        if (!layer || !rows) throw std::logic_error("a tap names a row or a layer that the pass has not");
        kept_.emplace_back(pool, std::ssize(tap.rows), width);
    }
}

void TapCollector::before_layer(std::int64_t layer, const Residual& rows) {
    for (std::size_t i = 0; i < taps_.size(); ++i) {
        const Tap& tap = taps_[i];
        if (tap.at != Tap::At::layer_input || tap.layer != layer || tap.rows.empty()) continue;
        context_.device.gather(rows.x, tap.rows, rows.width, kept_[i].data());
        if (rows.to_add == nullptr) continue;
        const std::int64_t count = std::ssize(tap.rows) * rows.width;
        float* added = context_.projected.floats(count);
        context_.device.gather(rows.to_add, tap.rows, rows.width, added);
        context_.device.add(kept_[i].data(), added, count);
    }
}

void TapCollector::after_layers(const float* x, const Norm& final_norm) {
    for (std::size_t i = 0; i < taps_.size(); ++i) {
        const Tap& tap = taps_[i];
        if (tap.at == Tap::At::layer_input || tap.rows.empty()) continue;
        const bool norm = tap.at == Tap::At::normed_hidden && final_norm.gain;
        const std::int64_t num_rows = kept_[i].num_rows(), width = kept_[i].width();
        float* rows = norm ? context_.projected.floats(num_rows * width) : kept_[i].data();
        context_.device.gather(x, tap.rows, width, rows);
        if (!norm) continue;
        apply_norm(context_.device, final_norm, rows, num_rows, width, kernels::DType::f32,
                   reinterpret_cast<std::byte*>(kept_[i].data()), width);
    }
}

}  // namespace longhaul::engine
