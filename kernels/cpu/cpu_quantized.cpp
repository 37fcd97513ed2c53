// int8 and int4 weights of CpuDevice: packing, embedding, and the distribution of matmuls over threads.
#include <algorithm>
#include <cstring>

#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/quantized.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Offsets in a packed matrix: for each 16 outputs [slice][group] of 64 bytes, then scales [slice][block][16].
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
    /// Byte of one input, from the start of its block of outputs; int4: a half of this byte.
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

/// Loads inputs first..first + count of 16 source rows (nullptr: zeros) into `to`, [count, 16].
void load_block(const SourceRow* const* rows, std::int64_t first, std::int64_t count, float* to) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const SourceRow* source = rows[lane];
        std::int64_t there = 0;
        if (source != nullptr) {
            const WeightRows& part = *source->part;
            there = std::clamp<std::int64_t>(part.num_columns - first, 0, count);
            const std::int64_t from = source->row * part.row_stride + part.first_column + first;
            if (part.dtype == DType::bf16) {  // the most common type: no type test in the loop
                const std::byte* data = part.data + from * 2;
                for (std::int64_t i = 0; i < there; ++i) {
                    to[i * lanes + lane] = load_as_f32(data, DType::bf16, i);
                }
            } else {
                for (std::int64_t i = 0; i < there; ++i) {
                    to[i * lanes + lane] = load_as_f32(part.data, part.dtype, from + i);
                }
            }
        }
        for (std::int64_t i = there; i < count; ++i) to[i * lanes + lane] = 0.0F;
    }
}

/// Stores the 16 words of one group, from integers [input, 16]. The group has `count` inputs, the rest are zero bytes.
/// `present`: all ones in the lanes that have a row.
template <bool Int8>
void store_group(const std::int32_t* q, std::int64_t count, const std::uint32_t* present, std::byte* to) {
    constexpr std::uint32_t offset = Int8 ? 128 : 8;
    std::uint32_t words[lanes] = {};
    for (std::int64_t i = 0; i < count; ++i) {
        const auto shift = static_cast<int>(Int8 ? 8 * i : i % 4 * 8 + i / 4 * 4);
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            words[lane] |= (static_cast<std::uint32_t>(q[i * lanes + lane]) + offset) << shift;
        }
    }
    for (std::int64_t lane = 0; lane < lanes; ++lane) words[lane] &= present[lane];
    std::memcpy(to, words, sizeof words);
}

/// Packs 16 source rows as one block of outputs.
void pack_rows(const KernelTable& table, const Packed& packed, const Matrix& matrix, const SourceRow* const* rows,
               std::byte* block) {
    alignas(64) float values[64 * lanes];
    alignas(64) std::int32_t q[64 * lanes];
    std::uint32_t present[lanes];
    for (std::int64_t lane = 0; lane < lanes; ++lane) present[lane] = rows[lane] == nullptr ? 0U : ~0U;
    const std::int64_t per_group = packed.inputs_of_group();
    for (std::int64_t slice = 0; slice < matrix.num_slices; ++slice) {
        for (std::int64_t b = 0; b < packed.blocks_per_slice; ++b) {
            const std::int64_t first = b * packed.block_length;
            const std::int64_t count = std::min(packed.block_length, matrix.slice_length - first);
            load_block(rows, slice * matrix.slice_length + first, count, values);
            auto* scales = reinterpret_cast<std::uint16_t*>(block + packed.scale_of(0, slice, b));
            table.quantize_weights({.int8 = packed.int8, .values = values, .count = count, .q = q, .scales = scales});
            std::byte* to = block + packed.byte_of(0, slice, first);
            for (std::int64_t i = 0; i < count; i += per_group, to += group_bytes) {
                const std::int64_t inputs = std::min(per_group, count - i);
                (packed.int8 ? store_group<true> : store_group<false>)(q + i * lanes, inputs, present, to);
            }
        }
    }
}

}  // namespace

std::int64_t CpuDevice::quantized_block_bytes(const Matrix& geometry) {
    return Packed(geometry).block_bytes;
}

std::int64_t CpuDevice::block_rows_of(const Matrix& w) const {
    if (!is_quantized(w.dtype)) return w.dtype == DType::bf16 ? table_.bf16_block_rows : block_rows;
    const Packed packed(w);
    const bool whole =
        fills_blocks(packed.num_groups * packed.inputs_of_group(), packed.num_blocks * packed.block_length);
    return whole ? table_.quantized_block_rows : block_rows;
}

void CpuDevice::pack_quantized(std::span<const SourceRow> sources, Matrix& matrix) {
    const Packed packed(matrix);
    const std::int64_t num_blocks = blocks_of(matrix.num_outputs);
    std::byte* data = matrix.data.data();
    Team::mine().run(threads_for(num_blocks * packed.block_bytes, 1 << 16), [&](Member& member) {
        // As in matmul: a thread's weights are in its node's memory.
        const auto [first, last] = member.share_of(num_blocks);
        SourceStream stream(sources, first * lanes);
        for (std::int64_t b = first; b < last; ++b) {
            const SourceRow* rows[lanes] = {};
            const std::int64_t end = std::min((b + 1) * lanes, matrix.num_outputs);
            for (std::int64_t n = b * lanes; n < end; ++n) {
                const SourceRow& source = sources[n];
                if (!source.is_zeros()) rows[n % lanes] = &source;
            }
            pack_rows(table_, packed, matrix, rows, data + b * packed.block_bytes);
            stream.packed(end);
        }
    });
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

void CpuDevice::multiply_quantized(std::span<const MatmulPart> parts) {
    const Matrix& w = *parts.front().w;
    const Packed packed(w);
    const QuantizedKernels& kernels = packed.int8 ? table_.int8 : table_.int4;
    const std::int64_t num_rows = rows_of(parts);
    // Tiles have whole blocks, and may read a row of a block more than there is (amx_matmul.hpp).
    const std::int64_t words_of_row = packed.num_blocks * packed.block_length / 4;
    const std::int64_t num_blocks = blocks_of(w.num_outputs);
    auto* words = words_.get<std::uint32_t>(num_rows * words_of_row + packed.block_length / 4);
    auto* scales = scales_.get<float>(2 * num_rows * packed.num_blocks);
    auto* corrections = reinterpret_cast<std::int32_t*>(scales + num_rows * packed.num_blocks);
    std::int64_t work = 0;
    for (const MatmulPart& part : parts) work += num_blocks * packed.block_bytes * (part.rows.count + 1) / 2;
    const std::int64_t unit = parts.front().out->unit;
    share_matmul(
        queue_,
        {.team = threads_for(work, matmul_bytes_per_thread),
         .packed_alone = num_rows * words_of_row <= words_packed_alone,
         .num_parts = std::ssize(parts),
         .num_blocks = num_blocks,
         .unit = unit,
         .min_units = table_.blocks_per_piece},
        [&](std::int64_t share, std::int64_t num_shares) {
            for (const MatmulPart& part : parts)
                kernels.quantize({.rows = part.rows.x,
                                  .row_stride = part.rows.stride,
                                  .num_rows = part.rows.count,
                                  .slice_length = w.slice_length,
                                  .num_groups = packed.num_groups,
                                  .num_blocks = packed.num_blocks,
                                  .words = words + part.first_packed * words_of_row,
                                  .scales = scales + part.first_packed * packed.num_blocks,
                                  .corrections = corrections + part.first_packed * packed.num_blocks},
                                 share, num_shares);
        },
        [&](std::int64_t index, BlockRange range) {
            const MatmulPart& part = parts[index];
            const QuantizedJob job{.weights = part.w->data.data(),
                                   .block_bytes = packed.block_bytes,
                                   .num_outputs = w.num_outputs,
                                   .num_slices = w.num_slices,
                                   .groups_per_slice = packed.groups_per_slice,
                                   .blocks_per_slice = packed.blocks_per_slice,
                                   .words = words + part.first_packed * words_of_row,
                                   .scales = scales + part.first_packed * packed.num_blocks,
                                   .corrections = corrections + part.first_packed * packed.num_blocks,
                                   .num_rows = part.rows.count,
                                   .sums = {}};
            multiply_into(*part.out, w.num_outputs, part.rows.first, part.rows.count,
                          blocks_finished_at_once(table_, unit), range, [&](BlockRange blocks, const Sums& sums) {
                              QuantizedJob to = job;
                              to.sums = sums;
                              kernels.matmul(to, blocks);
                          });
        });
}

}  // namespace longhaul::kernels::cpu
