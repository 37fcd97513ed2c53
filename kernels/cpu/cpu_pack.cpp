// Packs weights for CpuDevice: from rows as stored in checkpoints to blocks of 16 outputs, interleaved (BlockPlaces).
#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/quantized.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {
namespace {

std::int64_t first_element(const SourceRow& source) {
    return source.row * source.part->row_stride + source.part->first_column;
}

/// Packs inputs from..num_columns of one source row into lane `lane` of a block of 16 outputs, whose groups are
/// `group_stride` bytes apart.
void pack_row(const SourceRow& source, DType dtype, std::int64_t from, std::byte* block, std::int64_t group_stride,
              std::int64_t lane) {
    const WeightRows& part = *source.part;
    const std::int64_t first = first_element(source);
    const std::int64_t group_inputs = dtype == DType::bf16 ? 2 : 1;
    for (std::int64_t k = from; k < part.num_columns; ++k) {
        store_rounded(block + k / group_inputs * group_stride, dtype, lane * group_inputs + k % group_inputs,
                      load_as_f32(part.data, part.dtype, first + k));
    }
}

/// bf16 to bf16: pairs of inputs are words that are only transposed, 4 x 4 at a time. Returns the number of inputs
/// done, a multiple of 8. SSE2 is in every x86-64, and memory is the bottleneck.
std::int64_t pack_pairs(const SourceRow* sources, std::int64_t num_columns, std::byte* block,
                        std::int64_t group_stride) {
    const std::int64_t done = num_columns / 8 * 8;
    const std::byte* rows[lanes];
    for (std::int64_t lane = 0; lane < lanes; ++lane)
        rows[lane] = sources[lane].part->data + first_element(sources[lane]) * 2;
    const auto load = [](const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
    const auto store = [](std::byte* to, __m128i words) { _mm_store_si128(reinterpret_cast<__m128i*>(to), words); };
    for (std::int64_t k = 0; k < done; k += 8) {
        std::byte* to = block + k / 2 * group_stride;
        for (std::int64_t lane = 0; lane < lanes; lane += 4, to += 16) {
            const __m128i a = load(rows[lane] + k * 2), b = load(rows[lane + 1] + k * 2);
            const __m128i c = load(rows[lane + 2] + k * 2), d = load(rows[lane + 3] + k * 2);
            const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
            const __m128i ab_high = _mm_unpackhi_epi32(a, b), cd_high = _mm_unpackhi_epi32(c, d);
            store(to, _mm_unpacklo_epi64(ab, cd));
            store(to + group_stride, _mm_unpackhi_epi64(ab, cd));
            store(to + 2 * group_stride, _mm_unpacklo_epi64(ab_high, cd_high));
            store(to + 3 * group_stride, _mm_unpackhi_epi64(ab_high, cd_high));
        }
    }
    return done;
}

/// Packs up to 16 source rows as one block of outputs (zero-filled).
void pack_block(std::span<const SourceRow> sources, DType dtype, std::byte* block, std::int64_t group_stride) {
    const std::int64_t num_columns = sources.front().part->num_columns;
    const bool pairs =
        dtype == DType::bf16 && sources.size() == static_cast<std::size_t>(lanes) &&
        std::all_of(sources.begin(), sources.end(), [&](const SourceRow& source) {
            return !source.is_zeros() && source.part->dtype == DType::bf16 && source.part->num_columns == num_columns;
        });
    const std::int64_t done = pairs ? pack_pairs(sources.data(), num_columns, block, group_stride) : 0;
    for (std::size_t lane = 0; lane < sources.size(); ++lane) {
        if (!sources[lane].is_zeros())
            pack_row(sources[lane], dtype, done, block, group_stride, static_cast<std::int64_t>(lane));
    }
}

Matrix geometry_of(DType dtype, std::span<const SourceRow> sources, int num_slices, std::int64_t slice_length) {
    return {.dtype = dtype,
            .num_outputs = static_cast<std::int64_t>(sources.size()),
            .num_inputs = num_slices * slice_length,
            .num_slices = num_slices,
            .slice_length = slice_length,
            .data = {}};
}

/// Reorders rows of gates followed by ups, so that blocks of each alternate.
std::vector<SourceRow> interleaved_blocks(std::span<const SourceRow> sources) {
    const std::size_t width = sources.size() / 2, block = lanes;
    std::vector<SourceRow> rows;
    for (std::size_t first = 0; first < width; first += block) {
        for (const std::size_t half : {std::size_t{0}, width}) {
            const auto some = sources.subspan(half + first, block);
            rows.insert(rows.end(), some.begin(), some.end());
        }
    }
    return rows;
}

}  // namespace

std::string_view CpuDevice::packed_layout() const {
    return table_.blocks_together == 2 ? "blocks32-2" : "blocks16-2";  // increment the number with any change
}

std::size_t CpuDevice::packed_bytes(const Matrix& geometry) const {
    const std::int64_t block_bytes =
        is_quantized(geometry.dtype)
            ? quantized_block_bytes(geometry)
            : geometry.num_inputs * lanes * static_cast<std::int64_t>(bytes_of(geometry.dtype));
    return blocks_of(geometry.num_outputs) * block_bytes;
}

Matrix CpuDevice::pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) {
    check_pack(dtype, parts, num_slices, slice_length);
    const std::vector<SourceRow> sources = rows_of(parts);
    Matrix matrix = geometry_of(dtype, sources, num_slices, slice_length);
    pack_sources(sources, matrix);
    return matrix;
}

Matrix CpuDevice::pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                             std::int64_t slice_length) {
    check_pack(dtype, parts, num_slices, slice_length);
    const std::vector<SourceRow> sources = rows_of(parts);
    Matrix matrix = geometry_of(dtype, sources, num_slices, slice_length);
    matrix.gated = true;
    pack_sources(is_interleaved(matrix) ? interleaved_blocks(sources) : sources, matrix);
    return matrix;
}

void CpuDevice::pack_sources(std::span<const SourceRow> sources, Matrix& matrix) {
    matrix.data = Buffer(*this, packed_bytes(matrix));
    if (is_quantized(matrix.dtype)) return pack_quantized(sources, matrix);
    const BlockPlaces places = places_of(matrix);
    std::byte* data = matrix.data.data();
    const int team = threads_for(packed_bytes(matrix), 1 << 20);
    Team::mine().run(team, [&](Member& member) {
        // The same split as in matmul: on a NUMA machine, a thread's weights are in its node's memory.
        const auto bundles = member.share_of(places.num_bundles());
        const std::int64_t first_block = places.first_block(bundles.first);
        SourceStream stream(sources, first_block * lanes);
        for (std::int64_t b = first_block; b < places.first_block(bundles.end); ++b) {
            const std::int64_t end = std::min((b + 1) * lanes, matrix.num_outputs);
            const auto rows = sources.subspan(b * lanes, end - b * lanes);
            pack_block(rows, matrix.dtype, data + places.offset(b), places.group_stride(b));
            stream.packed(end);
        }
    });
}

}  // namespace longhaul::kernels::cpu
