#include "kernels/cpu/cpu_device.hpp"

#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/quantized.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {
namespace {

RowsJob rows_job(const float* x, std::int64_t width, DType act, std::byte* out, std::int64_t out_stride) {
    return {.x = x, .width = width, .bf16 = act == DType::bf16, .out = out, .out_stride = out_stride};
}

}  // namespace

void Workspace::grow(std::size_t num_bytes) {
    release_host(data_, num_bytes_);
    data_ = nullptr;
    num_bytes_ = 0;
    data_ = allocate_host(num_bytes);
    num_bytes_ = num_bytes;
}

int CpuDevice::threads_for(std::int64_t work, std::int64_t per_thread) const {
    return static_cast<int>(std::clamp<std::int64_t>(work / per_thread, 1, threads_));
}

void CpuDevice::embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    check_embed(table, rows, dim);
    if (is_quantized(table.dtype)) return embed_quantized(table, rows, dim, out);
    const std::int64_t num_rows = rows.size();
    const bool bf16 = table.dtype == DType::bf16;
    const BlockPlaces places = places_of(table);
    const auto embed_row = [&](std::int64_t r) {
        const std::int64_t row = rows[r];
        float* to = out + r * dim;
        if (row < 0) {
            std::fill_n(to, dim, 0.0F);
            return;
        }
        const std::byte* lane = table.data.data() + places.offset(row / lanes) + row % lanes * 4;
        const std::int64_t stride = places.group_stride(row / lanes);
        if (bf16) {
            const auto* from = reinterpret_cast<const std::uint16_t*>(lane);
            for (std::int64_t k = 0; k < dim; ++k) to[k] = bf16_to_f32(from[k / 2 * stride / 2 + k % 2]);
        } else {
            const auto* from = reinterpret_cast<const float*>(lane);
            for (std::int64_t k = 0; k < dim; ++k) to[k] = from[k * stride / 4];
        }
    };
    Team::mine().run(threads_for(num_rows * dim, elements_per_thread), [&](Member& member) {
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) embed_row(r);
    });
}

void CpuDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    Team::mine().run(threads_for(num_rows * dim, 4 * elements_per_thread), [&](Member& member) {
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) std::copy_n(x + rows[r] * dim, dim, out + r * dim);
    });
}

void CpuDevice::weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row,
                              std::int64_t dim, float* out) {
    check_weighted_sums(terms, per_row);
    const std::int64_t count = static_cast<std::int64_t>(terms.size()) / per_row * dim;
    Team::mine().run(threads_for(count * per_row, elements_per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(count);  // may begin and end within a row
        for (std::int64_t at = first; at < end;) {
            const std::int64_t row = at / dim, column = at % dim;
            const std::int64_t width = std::min(dim - column, end - at);
            float* const sums = out + at;
            for (std::int64_t i = 0; i < per_row; ++i) {
                const WeightedRow term = terms[row * per_row + i];
                const float* const from = x + term.row * dim + column;
                for (std::int64_t d = 0; d < width; ++d) {
                    const float product = term.weight * from[d];
                    sums[d] = i == 0 ? product : sums[d] + product;
                }
            }
            at += width;
        }
    });
}

void CpuDevice::add(float* x, const float* y, std::int64_t count) {
    // Fewer elements per thread than the sums alone would justify, so that each thread finds its rows of x where the
    // norms left them (16 rows on two Zen 5 cores that share no L3: 11 us instead of 19).
    Team::mine().run(threads_for(count, elements_per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(count);
        for (std::int64_t i = first; i < end; ++i) x[i] += y[i];
    });
}

void CpuDevice::scale(float* x, float factor, std::int64_t count) {
    Team::mine().run(threads_for(count, elements_per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(count);
        for (std::int64_t i = first; i < end; ++i) x[i] *= factor;
    });
}

void CpuDevice::soft_cap(float* x, float cap, std::int64_t count) {
    Team::mine().run(threads_for(count, elements_per_thread / 2), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(count);
        table_.soft_cap(x, cap, first, end);
    });
}

void CpuDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    Team::mine().run(threads_for(num_rows * dim, 4 * elements_per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) {
            for (std::int64_t i = 0; i < dim; ++i) x[r * dim + i] += bias[i];
        }
    });
}

void CpuDevice::run_rows(RowsKernel kernel, const RowsJob& job, std::int64_t num_rows, std::int64_t per_thread) const {
    Team::mine().run(threads_for(num_rows * job.width, per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        kernel(job, first, end);
    });
}

void CpuDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                         DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("rms_norm", act, num_rows, dim, out_stride);
    RowsJob job = rows_job(x, dim, act, out, out_stride);
    job.gain = gain;
    job.eps = eps;
    run_rows(table_.rms_norm, job, num_rows, elements_per_thread);
}

void CpuDevice::add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                             std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("add_rms_norm", act, num_rows, dim, out_stride);
    RowsJob job = rows_job(x, dim, act, out, out_stride);
    job.gain = gain;
    job.eps = eps;
    job.addend = y;
    job.sums = x;
    run_rows(table_.add_rms_norm, job, num_rows, elements_per_thread);
}

void CpuDevice::layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                           std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("layer_norm", act, num_rows, dim, out_stride);
    RowsJob job = rows_job(x, dim, act, out, out_stride);
    job.gain = gain;
    job.bias = bias;
    job.eps = eps;
    run_rows(table_.layer_norm, job, num_rows, elements_per_thread);
}

void CpuDevice::activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                         std::byte* out, std::int64_t out_stride) {
    check_act_rows("activate", act, num_rows, width, out_stride);
    run_rows(table_.activate[static_cast<int>(f)], rows_job(x, width, act, out, out_stride), num_rows,
             4 * elements_per_thread);
}

void CpuDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                           std::int64_t out_stride) {
    check_act_rows("round_rows", act, num_rows, width, out_stride);
    run_rows(table_.round_rows, rows_job(x, width, act, out, out_stride), num_rows, 4 * elements_per_thread);
}

void CpuDevice::gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                         std::byte* out, std::int64_t out_stride) {
    check_act_rows("gate_mul", act, num_rows, width, out_stride);
    run_rows(table_.gate_mul[static_cast<int>(gate)], rows_job(x, width, act, out, out_stride), num_rows,
             elements_per_thread / 2);
}

}  // namespace longhaul::kernels::cpu
