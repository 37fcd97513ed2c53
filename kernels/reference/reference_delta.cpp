// Linear attention of the reference device: the arithmetic that delta_rule.hpp states, value by value.
#include <cmath>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/delta_rule.hpp"
#include "kernels/exp_constants.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/reference/reference_device.hpp"
#include "kernels/reference/reference_math.hpp"

namespace longhaul::kernels::reference {
namespace {

float convolved(const ConvolveJob& job, std::int64_t column) {
    const std::int64_t channels = 2 * job.key_dim + job.values_width;
    float sum = job.bias == nullptr ? 0.0F : job.bias[column];
    for (std::int64_t t = 0; t < job.taps; ++t)
        sum = std::fma(job.filter[t * channels + column], job.rows[t][column], sum);
    return sum / (1.0F + exp_of(-sum));
}

void scale_to_length(float* x, std::int64_t dim, float factor) {
    LaneSum squares;
    for (std::int64_t i = 0; i < dim; ++i) squares.add_square(i, x[i]);
    const float scale = factor / std::sqrt(squares.total() + delta_eps);
    for (std::int64_t i = 0; i < dim; ++i) x[i] *= scale;
}

void convolve(const ConvolveJob& job) {
    for (std::int64_t c = 0; c < job.key_dim; ++c) job.query[c] = convolved(job, c);
    for (std::int64_t c = 0; c < job.key_dim + job.values_width; ++c) job.update[c] = convolved(job, job.key_dim + c);
    if (job.rule == StateRule::sum) return;
    scale_to_length(job.query, job.key_dim, 1.0F / std::sqrt(static_cast<float>(job.key_dim)));
    scale_to_length(job.update, job.key_dim, 1.0F);
}

void fold(const FoldJob& job) {
    for (std::int64_t j = 0; j < job.value_dim; ++j) {
        float known = 0.0F;
        for (std::int64_t i = 0; i < job.key_dim; ++i)
            known = std::fma(job.from[i * job.value_dim + j], job.key[i], known);
        const float value = job.value[j];
        const float delta = job.step * (job.rule == StateRule::sum ? value : value - job.decay * known);
        float out = 0.0F;
        for (std::int64_t i = 0; i < job.key_dim; ++i) {
            const std::int64_t at = i * job.value_dim + j;
            job.to[at] = std::fma(job.key[i], delta, job.decay * job.from[at]);
            if (job.query != nullptr) out = std::fma(job.to[at], job.query[i], out);
        }
        if (job.query != nullptr) job.out[j] = job.rule == StateRule::sum ? std::fma(job.skip, value, out) : out;
    }
}

constexpr DeltaKernels kernels{.convolve = convolve, .fold = fold};

}  // namespace

void ReferenceDevice::output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                                  std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                                  std::int64_t out_stride) {
    check_act_rows("output_gate", act, num_rows, width, out_stride);
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t i = 0; i < out_stride; ++i) {
            float gated = 0.0F;
            if (i < width) {
                const float g = gate[r * gate_stride + i], factor = x[r * width + i];
                const float cubic = std::fma(g * g, exp_constants::gelu_cubic, 1.0F);
                const float exponent = f == OutputGate::gelu ? exp_constants::gelu_slope * (g * cubic) : -g;
                const float below = 1.0F + exp_of(exponent);
                gated = f == OutputGate::sigmoid ? factor / below : g / below * factor;
            }
            store_rounded(out, act, r * out_stride + i, gated);
        }
    }
}

void ReferenceDevice::mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
                          std::int64_t inputs_stride, const float* gates, float* out) {
    const GroupRows rows = pass().group(layout.group);
    check_delta(layout, layer, rows, inputs_stride);
    const FlushDenormals flush;
    DeltaScratch scratch;
    for (const DeltaSequence& sequence : delta_sequences(rows)) {
        for (std::int64_t head = 0; head < layout.delta.num_key_heads; ++head)
            mix_head(kernels, {layout, layer, weights, inputs, inputs_stride, gates, out}, rows, sequence, head,
                     scratch);
    }
}

void ReferenceDevice::accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                             std::span<const std::int32_t> slots) {
    const FlushDenormals flush;
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t head = 0; head < layout.delta.num_key_heads; ++head)
            accept_head(kernels, layout, layer, head, state, scratch_pages, slots);
    }
}

}  // namespace longhaul::kernels::reference
