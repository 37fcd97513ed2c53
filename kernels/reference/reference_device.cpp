#include "kernels/reference/reference_device.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/gelu_constants.hpp"
#include "kernels/quantized.hpp"
#include "kernels/reference/reference_math.hpp"
#include "kernels/reference/reference_quantized.hpp"
#include "kernels/source_rows.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels {

std::unique_ptr<Device> make_reference_device(int threads, Bf16Order order) {
    return std::make_unique<reference::ReferenceDevice>(threads, order);
}

namespace reference {
namespace {

/// One slice of a dot product: fused multiply-adds from +0. bf16: ascending pairs, odd element first; f32: ascending.
float slice_sum(DType dtype, const std::byte* w, const std::byte* x, std::int64_t first, std::int64_t length) {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t k = first + (dtype == DType::bf16 ? (i ^ 1) : i);
        sum = std::fma(load_as_f32(w, dtype, k), load_as_f32(x, dtype, k), sum);
    }
    return sum;
}

/// One output: its slices, added as a balanced tree.
float output_of(const Matrix& matrix, Bf16Order order, const std::byte* w_row, const std::byte* x_row) {
    std::array<float, 8> sums{};
    for (int s = 0; s < matrix.num_slices; ++s) {
        const std::int64_t first = s * matrix.slice_length, length = matrix.slice_length;
        if (matrix.dtype == DType::bf16 && order == Bf16Order::blocks) {
            sums[s] = sum_in_blocks(
                length, [&](std::int64_t i) { return load_as_f32(w_row, DType::bf16, first + i); },
                [&](std::int64_t i) { return load_as_f32(x_row, DType::bf16, first + i); });
        } else {
            sums[s] = slice_sum(matrix.dtype, w_row, x_row, first, length);
        }
    }
    return tree_of_slices(sums, matrix.num_slices);
}

void pack_row(const SourceRow& source, std::int64_t output, Matrix& matrix) {
    if (is_quantized(matrix.dtype)) return pack_quantized_row(source, output, matrix);
    const WeightRows& part = *source.part;
    for (std::int64_t k = 0; k < part.num_columns; ++k) {
        const float value = load_as_f32(part.data, part.dtype, source.row * part.row_stride + part.first_column + k);
        store_rounded(matrix.data.data(), matrix.dtype, output * matrix.num_inputs + k, value);
    }
}

void zero_columns(std::byte* row, DType dtype, std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) store_rounded(row, dtype, i, 0.0F);
}

}  // namespace

std::size_t ReferenceDevice::packed_bytes(const Matrix& geometry) const {
    if (is_quantized(geometry.dtype)) return quantized_bytes(geometry);
    return static_cast<std::size_t>(geometry.num_outputs * geometry.num_inputs) * bytes_of(geometry.dtype);
}

Matrix ReferenceDevice::pack(DType dtype, std::span<const WeightRows> parts, int num_slices,
                             std::int64_t slice_length) {
    check_pack(dtype, parts, num_slices, slice_length);
    const std::vector<SourceRow> sources = rows_of(parts);
    Matrix matrix{.dtype = dtype,
                  .num_outputs = static_cast<std::int64_t>(sources.size()),
                  .num_inputs = num_slices * slice_length,
                  .num_slices = num_slices,
                  .slice_length = slice_length,
                  .data = {}};
    matrix.data = Buffer(*this, packed_bytes(matrix));  // zero-filled
    SourceStream stream(sources, 0);
    for (std::int64_t output = 0; output < matrix.num_outputs; ++output) {
        const SourceRow& source = sources[output];
        if (!source.is_zeros()) pack_row(source, output, matrix);
        stream.packed(output + 1);
    }
    return matrix;
}

void ReferenceDevice::embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    check_embed(table, rows, dim);
    for (const std::int32_t row : rows) {
        for (std::int64_t i = 0; i < dim; ++i) {
            if (row < 0) {
                *out++ = 0.0F;
            } else if (is_quantized(table.dtype)) {
                *out++ = quantized_value(table, row, i);
            } else {
                *out++ = load_as_f32(table.data.data(), table.dtype, row * table.num_inputs + i);
            }
        }
    }
}

void ReferenceDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                             float* y) {
    check_matmul(w, x_stride, num_rows);
    if (is_quantized(w.dtype)) return matmul_quantized(w, x, x_stride, num_rows, y, threads_);
    const std::int64_t element = bytes_of(w.dtype);
    const bool worth_threads = num_rows * w.num_outputs * w.num_inputs > 1'000'000;  // about 3 ms
    Team::mine().run(worth_threads ? threads_ : 1, [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(w.num_outputs);
        for (std::int64_t n = first; n < end; ++n) {
            for (std::int64_t r = 0; r < num_rows; ++r) {
                y[r * w.num_outputs + n] =
                    output_of(w, order_, w.data.data() + n * w.num_inputs * element, x + r * x_stride * element);
            }
        }
    });
}

void ReferenceDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    for (const std::int32_t row : rows) out = std::copy_n(x + row * dim, dim, out);
}

void ReferenceDevice::weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row,
                                    std::int64_t dim, float* out) {
    check_weighted_sums(terms, per_row);
    const FlushDenormals flush;
    for (; !terms.empty(); terms = terms.subspan(per_row), out += dim) {
        for (std::int64_t d = 0; d < dim; ++d) {
            out[d] = terms[0].weight * x[terms[0].row * dim + d];
            for (std::int64_t i = 1; i < per_row; ++i) out[d] += terms[i].weight * x[terms[i].row * dim + d];
        }
    }
}

void ReferenceDevice::add(float* x, const float* y, std::int64_t count) {
    const FlushDenormals flush;
    for (std::int64_t i = 0; i < count; ++i) x[i] += y[i];
}

void ReferenceDevice::scale(float* x, float factor, std::int64_t count) {
    const FlushDenormals flush;
    for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void ReferenceDevice::soft_cap(float* x, float cap, std::int64_t count) {
    const FlushDenormals flush;
    for (std::int64_t i = 0; i < count; ++i) x[i] = soft_capped(x[i], cap);
}

void ReferenceDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t i = 0; i < dim; ++i) x[r * dim + i] += bias[i];
    }
}

void ReferenceDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                               DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("rms_norm", act, num_rows, dim, out_stride);
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const float* row = x + r * dim;
        std::byte* out_row = out + r * out_stride * bytes_of(act);
        LaneSum squares;
        for (std::int64_t i = 0; i < dim; ++i) squares.add_square(i, row[i]);
        const float scale = 1.0F / std::sqrt(squares.total() / static_cast<float>(dim) + eps);
        for (std::int64_t i = 0; i < dim; ++i) store_rounded(out_row, act, i, (row[i] * scale) * gain[i]);
        zero_columns(out_row, act, dim, out_stride);
    }
}

void ReferenceDevice::layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                                 std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("layer_norm", act, num_rows, dim, out_stride);
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const float* row = x + r * dim;
        std::byte* out_row = out + r * out_stride * bytes_of(act);
        LaneSum sum;
        for (std::int64_t i = 0; i < dim; ++i) sum.add(i, row[i]);
        const float mean = sum.total() / static_cast<float>(dim);
        LaneSum squares;
        for (std::int64_t i = 0; i < dim; ++i) squares.add_square(i, row[i] - mean);
        const float scale = 1.0F / std::sqrt(squares.total() / static_cast<float>(dim) + eps);
        for (std::int64_t i = 0; i < dim; ++i) {
            store_rounded(out_row, act, i, std::fma((row[i] - mean) * scale, gain[i], bias[i]));
        }
        zero_columns(out_row, act, dim, out_stride);
    }
}

namespace {

float gated(Gate gate, float x, float up);

float gelu_exact(float x) {
    namespace c = gelu_constants;
    const float a = std::fabs(x), t = 1.0F / std::fma(c::slope, a, 1.0F);
    float p = c::coefficient(c::degree);
    for (int i = c::degree - 1; i >= 0; --i) p = std::fma(t, p, c::coefficient(i));
    const float tail = t * p * exp_of(-0.5F * (x * x));
    return std::fma(-a, tail, 0.0F > x ? 0.0F : x);
}

float activated(Activation f, float x) {
    const float positive = 0.0F > x ? 0.0F : x;
    switch (f) {
        case Activation::relu:
            return positive;
        case Activation::relu_squared:
            return positive * positive;
        case Activation::gelu:
            return gated(Gate::gelu, x, 1.0F);
        case Activation::gelu_exact:
            break;
    }
    return gelu_exact(x);
}

}  // namespace

void ReferenceDevice::activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                               std::byte* out, std::int64_t out_stride) {
    check_act_rows("activate", act, num_rows, width, out_stride);
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        std::byte* out_row = out + r * out_stride * bytes_of(act);
        for (std::int64_t i = 0; i < width; ++i) {
            store_rounded(out_row, act, i, activated(f, x[r * width + i]));
        }
        zero_columns(out_row, act, width, out_stride);
    }
}

void ReferenceDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                                 std::int64_t out_stride) {
    check_act_rows("round_rows", act, num_rows, width, out_stride);
    for (std::int64_t r = 0; r < num_rows; ++r) {
        std::byte* out_row = out + r * out_stride * bytes_of(act);
        for (std::int64_t i = 0; i < width; ++i) store_rounded(out_row, act, i, x[r * width + i]);
        zero_columns(out_row, act, width, out_stride);
    }
}

void ReferenceDevice::head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                                const HeadGains& gains, float eps) {
    const std::int64_t dim = layout.head_dim;
    const std::int64_t width = (q_heads + 2 * layout.num_kv_heads) * dim;
    const auto norm = [&](float* heads, std::int64_t count, const float* gain) {
        rms_norm(heads, gain, eps, count, dim, DType::f32, reinterpret_cast<std::byte*>(heads), dim);
    };
    for (std::int64_t r = 0; r < num_rows; ++r) {
        float* const keys = qkv + r * width + q_heads * dim;
        norm(qkv + r * width, q_heads, gains.q);
        norm(keys, layout.num_kv_heads, gains.k);
        if (gains.v != nullptr) norm(keys + layout.num_kv_heads * dim, layout.num_kv_heads, gains.v);
    }
}

void ReferenceDevice::head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows,
                                   std::int64_t q_heads, const WholeHeads& of, float* squares) {
    check_whole_heads(layout, q_heads, of);
    const FlushDenormals flush;
    const std::int64_t dim = layout.head_dim, kv_heads = layout.num_kv_heads;
    std::fill_n(squares, num_rows * (of.num_q + of.num_kv), 0.0F);
    for (std::int64_t r = 0; r < num_rows; ++r, squares += of.num_q + of.num_kv) {
        for (std::int64_t h = 0; h < q_heads + (of.counts_kv ? kv_heads : 0); ++h) {
            const float* head = qkv + (r * (q_heads + 2 * kv_heads) + h) * dim;
            LaneSum sum;
            for (std::int64_t i = 0; i < dim; ++i) sum.add_square(i, head[i]);
            squares[h < q_heads ? of.first_q + h : of.num_q + of.first_kv + h - q_heads] = sum.total();
        }
    }
}

void ReferenceDevice::whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                                 const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                                 float eps) {
    check_whole_heads(layout, q_heads, of);
    const FlushDenormals flush;
    const std::int64_t dim = layout.head_dim, q_per_norm = of.q_per_norm > 0 ? of.q_per_norm : of.num_q;
    const auto norm = [&](float* head, const float* sums, std::int64_t count, const float* gain) {
        LaneSum sum;
        for (std::int64_t h = 0; h < count; ++h) sum.add(h, sums[h]);
        const float scale = 1.0F / std::sqrt(sum.total() / static_cast<float>(count * dim) + eps);
        for (std::int64_t i = 0; i < dim; ++i) head[i] = (head[i] * scale) * gain[i];
    };
    for (std::int64_t r = 0; r < num_rows; ++r, squares += of.num_q + of.num_kv) {
        float* row = qkv + r * (q_heads + 2 * layout.num_kv_heads) * dim;
        for (std::int64_t h = 0; h < q_heads; ++h) {
            const std::int64_t first_of_norm = (of.first_q + h) / q_per_norm * q_per_norm;
            norm(row + h * dim, squares + first_of_norm, q_per_norm, q_gain + h * dim);
        }
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h)
            norm(row + (q_heads + h) * dim, squares + of.num_q, of.num_kv, k_gain + h * dim);
    }
}

namespace {

/// `value`, or the limit beyond which it lies; NaN stays NaN.
float limited(float value, float low, float high) {
    return value > high ? high : value < low ? low : value;
}

float gated(Gate gate, float x, float up) {
    switch (gate) {
        case Gate::silu:
            return (x / (1.0F + exp_of(-x))) * up;
        case Gate::gelu: {
            const float cubic = std::fma(x * x, exp_constants::gelu_cubic, 1.0F);
            return (x / (1.0F + exp_of(exp_constants::gelu_slope * (x * cubic)))) * up;
        }
        case Gate::swiglu_oai:
            break;
    }
    const float low = limited(x, -std::numeric_limits<float>::infinity(), swiglu_oai_limit);
    return (low / (1.0F + exp_of(-swiglu_oai_alpha * low))) * (limited(up, -swiglu_oai_limit, swiglu_oai_limit) + 1.0F);
}

}  // namespace

void ReferenceDevice::gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                               std::byte* out, std::int64_t out_stride) {
    check_act_rows("gate_mul", act, num_rows, width, out_stride);
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        std::byte* out_row = out + r * out_stride * bytes_of(act);
        for (std::int64_t i = 0; i < width; ++i) {
            store_rounded(out_row, act, i, gated(gate, x[r * 2 * width + i], x[r * 2 * width + width + i]));
        }
        zero_columns(out_row, act, width, out_stride);
    }
}

}  // namespace reference
}  // namespace longhaul::kernels
