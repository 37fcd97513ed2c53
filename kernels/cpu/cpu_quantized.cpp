// int8 and int4 weights of the vector devices: packing, embedding, and the work of products dealt out to threads.
#include <algorithm>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/share.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/quantized.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Where things lie in a packed matrix: for each 16 outputs [slice][group] of 64 bytes, then scales [slice][block][16].
struct Packed {
    explicit Packed(const Matrix& matrix)
        : int8(matrix.dtype == DType::int8),
          block_length(quantized_block(matrix.dtype)),
          groups_per_slice((matrix.slice_length + inputs_of_group() - 1) / inputs_of_group()),
          blocks_per_slice(quantized_blocks(matrix.dtype, matrix.slice_length)),
          num_groups(matrix.num_slices * groups_per_slice),
          num_blocks(matrix.num_slices * blocks_per_slice),
          block_bytes((num_groups * group_bytes + num_blocks * lanes * 2 + 63) / 64 * 64) {}

    [[nodiscard]] std::int64_t inputs_of_group() const { return int8 ? 4 : 8; }
    [[nodiscard]] int offset() const { return int8 ? 128 : 8; }
    /// The byte of one input, from the start of its outputs' block; int4: half of it.
    [[nodiscard]] std::int64_t byte_of(std::int64_t lane, std::int64_t slice, std::int64_t in_slice) const {
        const std::int64_t group = slice * groups_per_slice + in_slice / inputs_of_group();
        return group * group_bytes + lane * 4 + in_slice % 4;
    }
    [[nodiscard]] bool in_high_half(std::int64_t in_slice) const { return !int8 && in_slice % 8 >= 4; }
    [[nodiscard]] std::int64_t scale_of(std::int64_t lane, std::int64_t slice, std::int64_t block) const {
        return num_groups * group_bytes + ((slice * blocks_per_slice + block) * lanes + lane) * 2;
    }

    bool int8;
    std::int64_t block_length;
    std::int64_t groups_per_slice, blocks_per_slice;
    std::int64_t num_groups, num_blocks;
    std::int64_t block_bytes;
};

void pack_row(const Packed& packed, const Matrix& matrix, const SourceRow& source, std::byte* block,
              std::int64_t lane) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(block);
    quantize_row(
        matrix.dtype, *source.part, source.row, matrix.num_slices, matrix.slice_length,
        [&](std::int64_t slice, std::int64_t b, std::int64_t i, std::int8_t q) {
            const std::int64_t in_slice = b * packed.block_length + i;
            const auto stored = static_cast<std::uint8_t>(q + packed.offset());
            bytes[packed.byte_of(lane, slice, in_slice)] |=
                static_cast<std::uint8_t>(packed.in_high_half(in_slice) ? stored << 4 : stored);
        },
        [&](std::int64_t slice, std::int64_t b, std::uint16_t scale) {
            *reinterpret_cast<std::uint16_t*>(block + packed.scale_of(lane, slice, b)) = scale;
        });
}

}  // namespace

Matrix CpuDevice::pack_quantized(DType dtype, std::span<const WeightRows> parts, Matrix matrix) {
    const std::vector<SourceRow> sources = rows_of(parts);
    matrix.dtype = dtype;
    matrix.num_outputs = static_cast<std::int64_t>(sources.size());
    const Packed packed(matrix);
    const std::int64_t num_blocks = blocks_of(matrix.num_outputs);
    matrix.data = Buffer(*this, static_cast<std::size_t>(num_blocks * packed.block_bytes));
    std::byte* data = matrix.data.data();
#pragma omp parallel num_threads(threads_for(num_blocks* packed.block_bytes, 1 << 16))
    {
        const Share blocks = Share::of(num_blocks);  // as in matmul: a thread's weights lie near it
        for (std::int64_t n = blocks.first * lanes; n < std::min(blocks.end * lanes, matrix.num_outputs); ++n) {
            const SourceRow& source = sources[static_cast<std::size_t>(n)];
            if (source.part->data == nullptr) continue;  // scales of zero
            pack_row(packed, matrix, source, data + n / lanes * packed.block_bytes, n % lanes);
        }
    }
    return matrix;
}

void CpuDevice::embed_quantized(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    const Packed packed(table);
    for (const std::int32_t row : rows) {
        const std::byte* block = row < 0 ? nullptr : table.data.data() + row / lanes * packed.block_bytes;
        for (std::int64_t k = 0; k < dim; ++k, ++out) {
            *out = 0.0F;
            if (block == nullptr) continue;
            const std::int64_t slice = k / table.slice_length, in_slice = k % table.slice_length;
            const auto byte = static_cast<int>(block[packed.byte_of(row % lanes, slice, in_slice)]);
            const int stored = packed.int8 ? byte : packed.in_high_half(in_slice) ? byte >> 4 : byte & 15;
            const auto* scale = reinterpret_cast<const std::uint16_t*>(
                block + packed.scale_of(row % lanes, slice, in_slice / packed.block_length));
            *out = static_cast<float>(stored - packed.offset()) * bf16_to_f32(*scale);
        }
    }
}

void CpuDevice::matmul_quantized(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                                 float* y) {
    const Packed packed(w);
    const QuantizedKernels& kernels = packed.int8 ? table_.int8 : table_.int4;
    const std::int64_t num_words = num_rows * packed.num_groups * kernels.steps;
    auto* words = words_.get<std::uint32_t>(num_words);
    auto* scales = scales_.get<float>(2 * num_rows * packed.num_blocks);
    auto* corrections = reinterpret_cast<std::int32_t*>(scales + num_rows * packed.num_blocks);
    const QuantizeJob quantize{.rows = x,
                               .row_stride = x_stride,
                               .num_rows = num_rows,
                               .slice_length = w.slice_length,
                               .num_groups = packed.num_groups,
                               .num_blocks = packed.num_blocks,
                               .words = words,
                               .scales = scales,
                               .corrections = corrections};
    const QuantizedJob job{.weights = w.data.data(),
                           .block_bytes = packed.block_bytes,
                           .num_outputs = w.num_outputs,
                           .num_slices = w.num_slices,
                           .groups_per_slice = packed.groups_per_slice,
                           .blocks_per_slice = packed.blocks_per_slice,
                           .words = words,
                           .scales = scales,
                           .corrections = corrections,
                           .num_rows = num_rows,
                           .y = y};
    const bool alone = num_words <= words_packed_alone / 4;
    if (alone) {
        const FlushDenormals flush;
        kernels.quantize(quantize, 0, packed.num_blocks);
    }
    const std::int64_t num_blocks = blocks_of(w.num_outputs);
    const std::int64_t work = num_blocks * packed.block_bytes * (num_rows + 1) / 2;
    const int team = threads_for(work, matmul_bytes_per_thread);
    queue_.fill(num_blocks, team, blocks_a_piece);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        if (!alone) {
            const Share blocks = Share::of(packed.num_blocks);
            kernels.quantize(quantize, blocks.first, blocks.end);
#pragma omp barrier
        }
        queue_.work(omp_get_thread_num(),
                    [&](std::int64_t first, std::int64_t end) { kernels.matmul(job, first, end); });
    }
}

}  // namespace longhaul::kernels::cpu
