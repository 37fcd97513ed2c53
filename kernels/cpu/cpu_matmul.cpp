// Matmul of CpuDevice with f32 and bf16 weights, and fused operations for all weights. The loops are in cpu/matmul.hpp.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/checks.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/quantized.hpp"

namespace longhaul::kernels::cpu {

void CpuDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) {
    if (is_interleaved(w)) throw std::logic_error("matmul: a gated matrix needs gated_matmul");
    multiply_rows(w, x, x_stride, num_rows, {.sums = y});
}

void CpuDevice::gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride,
                             std::int64_t num_rows, float* sums, DType act, std::byte* out, std::int64_t out_stride) {
    if (!is_interleaved(w)) return Device::gated_matmul(w, gate, x, x_stride, num_rows, sums, act, out, out_stride);
    check_gated(w, act, num_rows, out_stride);
    const std::int64_t element = bytes_of(act);
    const std::int64_t width = w.num_outputs / 2;
    const auto finish = [&](const SumsOfBlocks& some) {
        const std::int64_t column = some.first_block / 2 * lanes;
        table_.gate[static_cast<int>(gate)]({.sums = some.sums,
                                             .row_stride = some.stride,
                                             .num_rows = some.num_rows,
                                             .width = some.stride / 2,
                                             .bf16 = act == DType::bf16,
                                             .out = out + (some.first_row * out_stride + column) * element,
                                             .out_stride = out_stride});
    };
    multiply_rows(w, x, x_stride, num_rows, {.finish = finish, .unit = 2});
    if (out_stride == width) return;
    const auto rest = static_cast<std::size_t>((out_stride - width) * element);
    for (std::int64_t r = 0; r < num_rows; ++r) std::memset(out + (r * out_stride + width) * element, 0, rest);
}

/// In equal passes of at most block_rows rows: 50 rows are processed as 25 + 25, not 48 + 2.
void CpuDevice::multiply_rows(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              const MatmulOutput& out) {
    check_matmul(w, x_stride, num_rows);
    const std::int64_t row_bytes = x_stride * bytes_of(w.dtype);
    const std::int64_t passes = (num_rows + block_rows - 1) / block_rows;
    const auto multiply = is_quantized(w.dtype) ? &CpuDevice::multiply_quantized : &CpuDevice::multiply_some;
    for (std::int64_t p = 0; p < passes; ++p) {
        const std::int64_t first = p * num_rows / passes;
        const std::int64_t end = (p + 1) * num_rows / passes;
        (this->*multiply)(w, {x + first * row_bytes, x_stride, first, end - first}, out);
    }
}

void CpuDevice::multiply_some(const Matrix& w, const MatmulRows& rows, const MatmulOutput& out) {
    const bool bf16 = w.dtype == DType::bf16;
    const std::int64_t per_group = bf16 ? 2 : 1;
    const std::int64_t num_groups = w.num_inputs / per_group;
    const std::int64_t num_words = rows.count * num_groups * (bf16 ? table_.bf16_steps : 1);
    const BlockPlaces places = places_of(w);
    auto* words = words_.get<std::uint32_t>(num_words);
    const PackJob pack{
        .rows = rows.x, .row_stride = rows.stride, .num_rows = rows.count, .num_groups = num_groups, .words = words};
    const MatmulJob job{.weights = w.data.data(),
                        .num_outputs = w.num_outputs,
                        .num_slices = w.num_slices,
                        .groups_per_slice = w.slice_length / per_group,
                        .words = words,
                        .num_rows = rows.count,
                        .sums = {}};
    const auto pack_words = bf16 ? table_.pack_bf16 : table_.pack_f32;
    const auto kernel = bf16 ? table_.matmul_bf16 : table_.matmul_f32;
    // With 4 rows and more, arithmetic costs more than reading.
    const std::int64_t work = places.num_blocks * num_groups * group_bytes * (rows.count + 3) / 4;
    const std::int64_t unit = std::max(out.unit, places.together);
    share_matmul(
        queue_,
        {.team = threads_for(work, matmul_bytes_per_thread),
         .packed_alone = num_words <= words_packed_alone,
         .num_blocks = places.num_blocks,
         .unit = unit,
         .min_units = table_.blocks_per_piece},
        [&](std::int64_t part, std::int64_t num_parts) { pack_words(pack, part, num_parts); },
        [&](BlockRange range) {
            multiply_into(out, w.num_outputs, rows.first, rows.count, blocks_finished_at_once(table_, unit), range,
                          [&](BlockRange blocks, const Sums& sums) {
                              MatmulJob to = job;
                              to.sums = sums;
                              kernel(to, blocks);
                          });
        });
}

}  // namespace longhaul::kernels::cpu
