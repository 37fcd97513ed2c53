// CudaDevice::pack and embed: converts weights to the GPU's layout (weight_layout.hpp) on the GPU. Rounding and
// quantization are those of all devices (convert.hpp, quantize_block.hpp); the host only copies the source values.
#include <algorithm>
#include <cstring>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/weight_layout.hpp"
#include "kernels/quantized.hpp"
#include "kernels/source_rows.hpp"

namespace longhaul::kernels::cuda {
namespace {

struct PackJob {
    const PieceRow* rows = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t first_output = 0;  ///< output of row 0
    WeightLayout layout;
    std::byte* to = nullptr;
};

/// Loads `count` inputs of a row, starting at column `first`; zeros beyond its columns.
template <int count>
__device__ void load_inputs(const PieceRow& row, std::int64_t first, float (&values)[count]) {
    for (int i = 0; i < count; ++i) {
        values[i] = first + i < row.num_columns ? load_as_f32(row.data, row.dtype, first + i) : 0.0F;
    }
}

/// Packs one step of bf16 or f32 weights.
template <DType type>
__device__ void pack_step(const PackJob& job, const PieceRow& row, std::int64_t output, std::int64_t slice,
                          std::int64_t step) {
    constexpr int inputs = step_inputs(type);
    float values[inputs];
    const std::int64_t in_slice = step * inputs;
    load_inputs(row, slice * job.layout.slice_length + in_slice, values);
    std::byte* const to = job.to + job.layout.byte_of(output, slice, in_slice);
    const int start = byte_in_step(type, static_cast<int>(output % tile_outputs), 0);
    constexpr int in_word = type == DType::f32 ? 1 : 2;  // slices contain whole pairs
    for (int i = 0; i < inputs && in_slice + i < job.layout.slice_length; i += in_word) {
        std::byte* const at = to - start + byte_in_step(type, static_cast<int>(output % tile_outputs), i);
        if constexpr (type == DType::f32) {
            *reinterpret_cast<float*>(at) = values[i];
        } else {
            *reinterpret_cast<std::uint32_t*>(at) =
                f32_to_bf16(values[i]) | static_cast<std::uint32_t>(f32_to_bf16(values[i + 1])) << 16;
        }
    }
}

/// Packs one block of int8 or int4 weights.
template <DType type>
__device__ void pack_block(const PackJob& job, const PieceRow& row, std::int64_t output, std::int64_t slice,
                           std::int64_t block) {
    constexpr int length = static_cast<int>(quantized_block(type));
    float values[length];
    std::int8_t q[length];
    const std::int64_t first = block * length, rest = job.layout.slice_length - first;
    const int count = static_cast<int>(rest < length ? rest : length);
    load_inputs(row, slice * job.layout.slice_length + first, values);
    const std::uint16_t scale = quantize_block(type, values, count, q);
    for (int i = count; i < length; ++i) q[i] = 0;
    *reinterpret_cast<std::uint16_t*>(job.to + job.layout.scale_of(output, slice, block)) = scale;
    const int place = static_cast<int>(output % tile_outputs), in_step = static_cast<int>(first % step_inputs(type));
    std::byte* const to = job.to + job.layout.byte_of(output, slice, first) - byte_in_step(type, place, in_step);
    if constexpr (type == DType::int8) {
        for (int i = 0; i < length; ++i) to[byte_in_step(type, place, in_step + i)] = static_cast<std::byte>(q[i]);
    } else {
        for (int i = 0; i < length; i += 8) {
            for (int k = i; k < i + 4; ++k) {
                to[byte_in_step(type, place, in_step + k)] = static_cast<std::byte>((q[k] & 15) | (q[k + 4] & 15) << 4);
            }
        }
    }
}

/// Grid: groups of 128 steps (or blocks) of all slices; rows.
template <DType type>
__global__ void __launch_bounds__(128) pack_rows(PackJob job) {
    const std::int64_t per_slice =
        step_blocks(type) == 0 ? job.layout.steps : quantized_blocks(type, job.layout.slice_length);
    const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
    if (unit >= job.layout.num_slices * per_slice) return;
    const PieceRow row = job.rows[blockIdx.y];
    if (row.data == nullptr) return;
    const std::int64_t output = job.first_output + blockIdx.y;
    if constexpr (step_blocks(type) == 0) {
        pack_step<type>(job, row, output, unit / per_slice, unit % per_slice);
    } else {
        pack_block<type>(job, row, output, unit / per_slice, unit % per_slice);
    }
}

void launch_pack(const Stream& stream, const PackJob& job) {
    const WeightLayout& layout = job.layout;
    const std::int64_t per_slice =
        is_quantized(layout.dtype) ? quantized_blocks(layout.dtype, layout.slice_length) : layout.steps;
    const dim3 grid(static_cast<unsigned>((layout.num_slices * per_slice + 127) / 128),
                    static_cast<unsigned>(job.num_rows));
    const auto kernel = layout.dtype == DType::bf16   ? pack_rows<DType::bf16>
                        : layout.dtype == DType::f32  ? pack_rows<DType::f32>
                        : layout.dtype == DType::int8 ? pack_rows<DType::int8>
                                                      : pack_rows<DType::int4>;
    launch(stream, kernel, grid, dim3(128), 0, job);
}

/// Grid: rows; groups of columns.
__global__ void __launch_bounds__(max_row_threads)
    embed_rows(const std::byte* table, WeightLayout layout, const std::int32_t* rows, std::int64_t dim, float* out) {
    const std::int64_t k = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
    if (k >= dim) return;
    const std::int64_t row = rows[blockIdx.x], slice = k / layout.slice_length, in_slice = k % layout.slice_length;
    float& to = out[blockIdx.x * dim + k];
    to = 0.0F;
    if (row < 0) return;
    const std::byte* const from = table + layout.byte_of(row, slice, in_slice);
    if (step_blocks(layout.dtype) == 0) {
        to = load_as_f32(from, layout.dtype, 0);
        return;
    }
    const auto byte = static_cast<std::int8_t>(*from);
    const bool upper = in_slice % 8 >= 4;
    const int q = layout.dtype == DType::int8 ? byte
                  : upper                     ? byte >> 4
                                              : static_cast<std::int8_t>(static_cast<unsigned>(byte) << 4) >> 4;
    const std::int64_t scale = layout.scale_of(row, slice, in_slice / quantized_block(layout.dtype));
    to = static_cast<float>(q) * bf16_to_f32(*reinterpret_cast<const std::uint16_t*>(table + scale));
}

Matrix geometry_of(DType dtype, std::span<const SourceRow> sources, int num_slices, std::int64_t slice_length) {
    return {.dtype = dtype,
            .num_outputs = static_cast<std::int64_t>(sources.size()),
            .num_inputs = num_slices * slice_length,
            .num_slices = num_slices,
            .slice_length = slice_length,
            .data = {}};
}

/// Reorders rows of gates followed by ups as a gated matrix holds them (gated_column), with rows of zeros where the
/// last group is not full.
std::vector<SourceRow> alternating(std::span<const SourceRow> sources) {
    static constexpr WeightRows zeros{.num_rows = 1};
    const auto width = static_cast<std::int64_t>(sources.size() / 2);
    std::vector<SourceRow> rows;
    for (std::int64_t n = 0; n < (width + 7) / 8 * tile_outputs; ++n) {
        const std::int64_t column = gated_column(n), source = is_up(n) ? width + column : column;
        rows.push_back(column < width ? sources[static_cast<std::size_t>(source)] : SourceRow{&zeros, 0});
    }
    return rows;
}

}  // namespace

void PieceBuffer::open(const Stream& stream, std::size_t row_bytes) {
    if (in_use) done.synchronize();
    const std::size_t table = padded(max_rows * sizeof(PieceRow));
    const std::size_t wanted = std::max(min_bytes, table + padded(row_bytes));
    if (host.num_bytes() < wanted) host = Pinned(wanted);
    on_device = device.get<std::byte>(stream, static_cast<std::int64_t>(host.num_bytes()));
    in_use = false;
    num_rows = 0;
    used = table;
}

void PieceBuffer::add(const std::byte* columns, std::int64_t num_columns, DType dtype) {
    PieceRow row{.data = nullptr, .num_columns = num_columns, .dtype = dtype};
    if (columns != nullptr) {
        const std::size_t num_bytes = static_cast<std::size_t>(num_columns) * bytes_of(dtype);
        std::memcpy(host.data() + used, columns, num_bytes);
        row.data = on_device + used;
        used += padded(num_bytes);
    }
    std::memcpy(host.data() + static_cast<std::size_t>(num_rows) * sizeof row, &row, sizeof row);
    ++num_rows;
}

const PieceRow* PieceBuffer::send(const Stream& stream) {
    copy(stream, on_device, host.data(), used);
    in_use = true;
    return reinterpret_cast<const PieceRow*>(on_device);
}

std::string_view CudaDevice::packed_layout() const {
    return "cuda16-3";  // increment the number with every change of weight_layout.hpp
}

std::size_t CudaDevice::packed_bytes(const Matrix& geometry) const {
    return static_cast<std::size_t>(WeightLayout::of(geometry).num_bytes());
}

Matrix CudaDevice::pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) {
    check_pack(dtype, parts, num_slices, slice_length);
    const std::vector<SourceRow> sources = rows_of(parts);
    Matrix matrix = geometry_of(dtype, sources, num_slices, slice_length);
    pack_sources(sources, matrix);
    return matrix;
}

Matrix CudaDevice::pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                              std::int64_t slice_length) {
    check_pack(dtype, parts, num_slices, slice_length);
    const std::vector<SourceRow> sources = rows_of(parts);
    Matrix matrix = geometry_of(dtype, sources, num_slices, slice_length);
    matrix.gated = true;
    pack_sources(alternating(sources), matrix);
    return matrix;
}

void CudaDevice::pack_sources(std::span<const SourceRow> sources, Matrix& matrix) {
    matrix.data = Buffer(*this, packed_bytes(matrix));  // zero-filled
    const auto bytes_of_row = [](const SourceRow& source) {
        return source.is_zeros() ? 0
                                 : static_cast<std::size_t>(source.part->num_columns) * bytes_of(source.part->dtype);
    };
    SourceStream read(sources, 0);
    std::size_t turn = 0;
    for (std::size_t next = 0; next < sources.size(); turn = 1 - turn) {
        PieceBuffer& piece = state_->pack_buffers[turn];
        piece.open(state_->stream, bytes_of_row(sources[next]));
        PackJob job{.first_output = static_cast<std::int64_t>(next),
                    .layout = WeightLayout::of(matrix),
                    .to = matrix.data.data()};
        for (; next < sources.size() && piece.has_room(bytes_of_row(sources[next])); ++next) {
            const SourceRow& source = sources[next];
            const WeightRows& part = *source.part;
            const std::int64_t first = source.row * part.row_stride + part.first_column;
            piece.add(source.is_zeros() ? nullptr : part.data + first * static_cast<std::int64_t>(bytes_of(part.dtype)),
                      part.num_columns, part.dtype);
            read.packed(static_cast<std::int64_t>(next) + 1);
        }
        job.num_rows = piece.num_rows;
        job.rows = piece.send(state_->stream);
        launch_pack(state_->stream, job);
        piece.done.record(state_->stream);
    }
}

void CudaDevice::embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    check_embed(table, rows, dim);
    if (rows.empty()) return;
    const std::int32_t* const on_device = state_->send_rows(rows);
    const unsigned threads = threads_for(dim);
    const dim3 grid(static_cast<unsigned>(rows.size()), static_cast<unsigned>((dim + threads - 1) / threads));
    launch(state_->stream, embed_rows, grid, dim3(threads), 0, table.data.data(), WeightLayout::of(table), on_device,
           dim, out);
}

}  // namespace longhaul::kernels::cuda
