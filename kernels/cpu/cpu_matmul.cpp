// Matmul of CpuDevice with f32 and bf16 weights, and fused operations for all weights. The loops are in cpu/matmul.hpp.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

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

/// As many calls together as have block_rows_of rows: the threads meet once for all of them.
void CpuDevice::matmuls(std::span<const MatmulCall> calls, std::int64_t x_stride) {
    std::vector<MatmulOutput> outputs;
    std::vector<MatmulPart> parts;
    outputs.reserve(calls.size());
    const auto multiply_collected = [&] {
        if (!parts.empty()) multiply(parts);
        parts.clear();
    };
    const std::int64_t max_rows = calls.empty() ? 0 : block_rows_of(*calls.front().w);
    for (const MatmulCall& call : calls) {
        if (call.num_rows > max_rows) {
            matmul(*call.w, call.x, x_stride, call.num_rows, call.y);
            continue;
        }
        if (call.num_rows == 0) continue;
        if (is_interleaved(*call.w)) throw std::logic_error("matmuls: a gated matrix needs gated_matmul");
        check_matmul(*call.w, x_stride, call.num_rows);
        const Matrix& first = *calls.front().w;
        if (call.w->dtype != first.dtype || call.w->num_outputs != first.num_outputs ||
            call.w->num_slices != first.num_slices || call.w->slice_length != first.slice_length)
            throw std::logic_error("matmuls: matrices of several types or shapes");
        if (!parts.empty() && rows_of(parts) + call.num_rows > max_rows) multiply_collected();
        outputs.push_back({.sums = call.y});
        parts.push_back({.w = call.w,
                         .rows = {call.x, x_stride, 0, call.num_rows},
                         .out = &outputs.back(),
                         .first_packed = parts.empty() ? 0 : rows_of(parts)});
    }
    multiply_collected();
}

/// In equal passes of at most block_rows_of rows: 50 rows are processed as 25 + 25, not 48 + 2.
void CpuDevice::multiply_rows(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              const MatmulOutput& out) {
    check_matmul(w, x_stride, num_rows);
    const std::int64_t row_bytes = x_stride * bytes_of(w.dtype);
    const std::int64_t max_rows = block_rows_of(w);
    const std::int64_t passes = (num_rows + max_rows - 1) / max_rows;
    for (std::int64_t p = 0; p < passes; ++p) {
        const std::int64_t first = p * num_rows / passes;
        const std::int64_t end = (p + 1) * num_rows / passes;
        const MatmulPart part{&w, {x + first * row_bytes, x_stride, first, end - first}, &out, 0};
        multiply({&part, 1});
    }
}

void CpuDevice::multiply(std::span<const MatmulPart> parts) {
    const Matrix& w = *parts.front().w;
    if (is_quantized(w.dtype)) return multiply_quantized(parts);
    const bool bf16 = w.dtype == DType::bf16;
    const std::int64_t per_group = bf16 ? 2 : 1;
    const std::int64_t num_groups = w.num_inputs / per_group;
    const std::int64_t num_rows = rows_of(parts);
    const std::int64_t groups_per_slice = w.slice_length / per_group;
    const std::int64_t unit_of_slice = bf16 ? table_.bf16_slice_unit : 1;
    const std::int64_t packed_groups = (groups_per_slice + unit_of_slice - 1) / unit_of_slice * unit_of_slice;
    const std::int64_t words_of_row = w.num_slices * packed_groups * (bf16 ? table_.bf16_steps : 1);
    const BlockPlaces places = places_of(w);
    auto* words = words_.get<std::uint32_t>(num_rows * words_of_row);
    const auto words_of = [&](const MatmulPart& part) { return words + part.first_packed * words_of_row; };
    const auto pack_words = bf16 ? table_.pack_bf16 : table_.pack_f32;
    const auto kernel = bf16 ? table_.matmul_bf16 : table_.matmul_f32;
    // With 4 rows and more, arithmetic costs more than reading.
    std::int64_t work = 0;
    for (const MatmulPart& part : parts)
        work += places.num_blocks * num_groups * group_bytes * (part.rows.count + 3) / 4;
    const std::int64_t unit = std::max(parts.front().out->unit, places.together);
    share_matmul(
        queue_,
        {.team = threads_for(work, matmul_bytes_per_thread),
         .packed_alone = num_rows * words_of_row <= words_packed_alone,
         .num_parts = std::ssize(parts),
         .num_blocks = places.num_blocks,
         .unit = unit,
         .min_units = table_.blocks_per_piece},
        [&](std::int64_t share, std::int64_t num_shares) {
            for (const MatmulPart& part : parts)
                pack_words({.rows = part.rows.x,
                            .row_stride = part.rows.stride,
                            .num_rows = part.rows.count,
                            .num_groups = num_groups,
                            .groups_per_slice = groups_per_slice,
                            .words = words_of(part)},
                           share, num_shares);
        },
        [&](std::int64_t index, BlockRange range) {
            const MatmulPart& part = parts[index];
            const MatmulJob job{.weights = part.w->data.data(),
                                .num_outputs = w.num_outputs,
                                .num_slices = w.num_slices,
                                .groups_per_slice = groups_per_slice,
                                .words = words_of(part),
                                .num_rows = part.rows.count,
                                .sums = {}};
            multiply_into(*part.out, w.num_outputs, part.rows.first, part.rows.count,
                          blocks_finished_at_once(table_, unit), range, [&](BlockRange blocks, const Sums& sums) {
                              MatmulJob to = job;
                              to.sums = sums;
                              kernel(to, blocks);
                          });
        });
}

}  // namespace longhaul::kernels::cpu
