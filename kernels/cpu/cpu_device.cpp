#include "kernels/cpu/cpu_device.hpp"

#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/share.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/quantized.hpp"

namespace longhaul::kernels::cpu {
namespace {

RowsJob rows_job(const float* x, std::int64_t width, DType act, std::byte* out, std::int64_t out_stride) {
    return {.x = x,
            .gain = nullptr,
            .bias = nullptr,
            .eps = 0.0F,
            .width = width,
            .bf16 = act == DType::bf16,
            .out = out,
            .out_stride = out_stride};
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
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    const bool bf16 = table.dtype == DType::bf16;
    const BlockPlaces places = places_of(table);
#pragma omp parallel for num_threads(threads_for(num_rows* dim, elements_per_thread))
    for (std::int64_t r = 0; r < num_rows; ++r) {
        const std::int64_t row = rows[static_cast<std::size_t>(r)];
        float* to = out + r * dim;
        if (row < 0) {
            std::fill_n(to, dim, 0.0F);
            continue;
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
    }
}

void CpuDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) {
    check_matmul(w, x_stride, num_rows);
    const std::int64_t row_bytes = x_stride * static_cast<std::int64_t>(bytes_of(w.dtype));
    // Equal passes of at most block_rows rows: 50 rows are 25 + 25, not 48 + 2.
    const std::int64_t passes = (num_rows + block_rows - 1) / block_rows;
    for (std::int64_t p = 0; p < passes; ++p) {
        const std::int64_t first = p * num_rows / passes;
        const std::int64_t end = (p + 1) * num_rows / passes;
        const auto rows = is_quantized(w.dtype) ? &CpuDevice::matmul_quantized : &CpuDevice::matmul_rows;
        (this->*rows)(w, x + first * row_bytes, x_stride, end - first, y + first * w.num_outputs);
    }
}

void CpuDevice::matmul_rows(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                            float* y) {
    const bool bf16 = w.dtype == DType::bf16;
    const std::int64_t per_group = bf16 ? 2 : 1;
    const std::int64_t num_groups = w.num_inputs / per_group;
    const std::int64_t num_words = num_rows * num_groups * (bf16 ? table_.bf16_steps : 1);
    const std::int64_t num_blocks = blocks_of(w.num_outputs);
    auto* words = words_.get<std::uint32_t>(num_words);
    const PackJob pack{
        .rows = x, .row_stride = x_stride, .num_rows = num_rows, .num_groups = num_groups, .words = words};
    const MatmulJob job{.weights = w.data.data(),
                        .num_outputs = w.num_outputs,
                        .num_slices = w.num_slices,
                        .groups_per_slice = w.slice_length / per_group,
                        .words = words,
                        .num_rows = num_rows,
                        .y = y};
    const auto pack_words = bf16 ? table_.pack_bf16 : table_.pack_f32;
    const auto multiply = bf16 ? table_.matmul_bf16 : table_.matmul_f32;
    const bool alone = num_words <= words_packed_alone;
    if (alone) pack_words(pack, 0, 1);
    // From 4 rows on arithmetic costs more than reading.
    const std::int64_t work = num_blocks * num_groups * group_bytes * (num_rows + 3) / 4;
    const int team = threads_for(work, matmul_bytes_per_thread);
    const BlockPlaces places = places_of(w);
    queue_.fill(places.num_bundles(), team, table_.blocks_a_piece / places.together);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        if (!alone) {
            pack_words(pack, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
        }
        queue_.work(omp_get_thread_num(), [&](std::int64_t first, std::int64_t end, std::int64_t part_end) {
            multiply(job, {places.first_block(first), places.first_block(end), places.first_block(part_end)});
        });
    }
}

void CpuDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    for (const std::int32_t row : rows) out = std::copy_n(x + row * dim, dim, out);
}

void CpuDevice::add(float* x, const float* y, std::int64_t count) {
    // Fewer elements a thread than the sums need: each thread finds its rows of x where the norms left them (16 rows on
    // two Zen 5 cores that share no third cache: 11 us instead of 19).
    const int team = threads_for(count, elements_per_thread);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        const Share share = Share::of(count);
        for (std::int64_t i = share.first; i < share.end; ++i) x[i] += y[i];
    }
}

void CpuDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    const int team = threads_for(num_rows * dim, 4 * elements_per_thread);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        const Share share = Share::of(num_rows);
        for (std::int64_t r = share.first; r < share.end; ++r) {
            for (std::int64_t i = 0; i < dim; ++i) x[r * dim + i] += bias[i];
        }
    }
}

void CpuDevice::run_rows(RowsKernel kernel, const RowsJob& job, std::int64_t num_rows, std::int64_t per_thread) const {
    const int team = threads_for(num_rows * job.width, per_thread);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        const Share share = Share::of(num_rows);
        kernel(job, share.first, share.end);
    }
}

void CpuDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                         DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("rms_norm", act, num_rows, dim, out_stride);
    RowsJob job = rows_job(x, dim, act, out, out_stride);
    job.gain = gain;
    job.eps = eps;
    run_rows(table_.rms_norm, job, num_rows, elements_per_thread);
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

void CpuDevice::relu(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                     std::int64_t out_stride) {
    check_act_rows("relu", act, num_rows, width, out_stride);
    run_rows(table_.relu, rows_job(x, width, act, out, out_stride), num_rows, 4 * elements_per_thread);
}

void CpuDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                           std::int64_t out_stride) {
    check_act_rows("round_rows", act, num_rows, width, out_stride);
    run_rows(table_.round_rows, rows_job(x, width, act, out, out_stride), num_rows, 4 * elements_per_thread);
}

void CpuDevice::silu_mul(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                         std::int64_t out_stride) {
    check_act_rows("silu_mul", act, num_rows, width, out_stride);
    run_rows(table_.silu_mul, rows_job(x, width, act, out, out_stride), num_rows, elements_per_thread / 2);
}

}  // namespace longhaul::kernels::cpu
