// Sizes, layout of shared memory and small records of attention on tensor cores (attention_tensor.cuh,
// attention_warpgroup.cuh).
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace longhaul::kernels::cuda {

constexpr int tensor_chunk_pages = 2;
constexpr int tensor_chunk_tokens = tensor_chunk_pages * tile_tokens;
constexpr int tensor_span_chunks = 8;
constexpr int tensor_unit_pages = tensor_chunk_pages * tensor_span_chunks;  ///< most pages of a unit

/// Sizes of a kernel for heads of up to DIM dimensions, with keys and values of type KV, bf16 or int8.
template <int DIM, int ROW_WARPS, DType KV>
struct TensorTile {
    static constexpr DType kv = KV;
    static constexpr int threads = attention_threads;
    static constexpr int warps = threads / 32;
    static constexpr int column_warps = warps / ROW_WARPS;
    static constexpr bool is_narrow = column_warps > 1;
    /// int8 becomes bf16 in the registers of the warp that needs it or, if all warps do, once in shared memory.
    static constexpr bool converts_in_registers = KV == DType::int8 && is_narrow;
    static constexpr bool converts_in_shared = KV == DType::int8 && !is_narrow;
    static constexpr int queries = ROW_WARPS * 16;
    static constexpr int steps = DIM / 16;                       ///< mma steps per score
    static constexpr int groups = 4 / column_warps;              ///< groups of 16 positions per warp
    static constexpr int score_tiles = 2 * groups;               ///< tiles of 8 positions per warp
    static constexpr int output_tiles = DIM / 8 / column_warps;  ///< tiles of 8 dimensions per warp
    static constexpr int row_bytes = DIM * (KV == DType::int8 ? 1 : 2);
    static constexpr int pieces = row_bytes / 16;           ///< pieces of 16 bytes per row
    static constexpr int stride = row_bytes + 16;           ///< odd multiple of 16: no bank conflicts
    static constexpr int scales_at = tile_tokens * stride;  ///< in a matrix; int8 only
    static constexpr int matrix_bytes = scales_at + (KV == DType::int8 ? tile_tokens * 4 : 0);  ///< keys, or values
    static constexpr int stage_bytes = 2 * matrix_bytes;
    static constexpr int converted_at = 2 * stage_bytes;                                      ///< keys, then values
    static constexpr int converted_stride = DIM * 2 + 16;                                     ///< bytes per row
    static constexpr int converted_bytes = tile_tokens * converted_stride + tile_tokens * 4;  ///< with scales
    static constexpr bool span_in_registers = is_narrow;
    static constexpr bool registers_are_full = false;
    static constexpr bool span_begins_at_0 = false;
    static constexpr int span_at = converted_at + (converts_in_shared ? 2 * converted_bytes : 0);
    static constexpr int p_stride = tile_tokens * 2 + 16;  ///< bytes per row of exchanged p
    // Shared memory: two stages; if need be, a page in bf16; exchanged p, maxima and sums, or the merged output; the
    // queries; the pages; what find_nonfinite() found.
    static constexpr int maxima_at = span_at + queries * p_stride;
    static constexpr int sums_at = maxima_at + queries * 4 * 4;
    static constexpr int queries_at = is_narrow ? sums_at + queries * 4 * 16 : span_at + queries * DIM * 4;
    static constexpr int pages_at = queries_at + queries * 32;
    static constexpr int found_at = pages_at + tensor_unit_pages * 8;
    static constexpr int shared_bytes = found_at + 16;
    static constexpr int blocks = DIM > 128 ? 1 : is_narrow ? 3 : 2;  ///< min blocks per multiprocessor
    static_assert(column_warps == 1 || column_warps == 4);
    static_assert(KV == DType::bf16 || output_tiles % 2 == 0);  // bytes come in pairs of tiles
    static constexpr int places = 1;  ///< rows after which places repeat, `stride` bytes per row further
    /// Byte offset of 16 bytes of a row in a matrix.
    static __device__ int place(int row, int piece) { return row * stride + piece * 16; }
};

/// The same of attention_warpgroup.cuh.
template <int DIM>
struct WarpgroupTile {
    static constexpr DType kv = DType::bf16;
    static constexpr bool converts_in_registers = false;
    static constexpr int warpgroups = 2;
    static constexpr int threads = warpgroups * 128;
    static constexpr int warps = threads / 32;
    static constexpr int column_warps = 1;
    static constexpr bool is_narrow = false;
    static constexpr int queries = warps * 16;
    static constexpr int steps = DIM / 16;
    static constexpr int groups = 4;
    static constexpr int score_tiles = 8;
    static constexpr int output_tiles = DIM / 8;
    static constexpr int pieces = DIM / 8;
    static constexpr int stride = panel_row_bytes;
    static constexpr int panel_bytes = tile_tokens * panel_row_bytes;
    static constexpr int matrix_bytes = DIM / panel_inputs * panel_bytes;  ///< a panel for each 64 dimensions
    static constexpr int stages = 4;
    static constexpr int stage_bytes = 2 * matrix_bytes;
    static constexpr bool span_in_registers = true;
    static constexpr bool registers_are_full = true;  ///< what is easily found again does not occupy one
    static constexpr bool span_begins_at_0 = true;    ///< that takes fewer registers than a branch
    static constexpr int span_at = 0;
    // Shared memory: the stages; the queries; the pages; what find_nonfinite() found.
    static constexpr int queries_at = stages * stage_bytes;
    static constexpr int pages_at = queries_at + queries * 32;
    static constexpr int found_at = pages_at + tensor_unit_pages * 8;
    static constexpr int shared_bytes = found_at + warps * 4;
    static constexpr int places = 8;
    static __device__ int place(int row, int piece) { return piece / 8 * panel_bytes + place_in_panel(row, piece % 8); }
    static_assert(DIM % panel_inputs == 0);
};

/// A query of a tile. In shared memory: registers are scarce, and a page needs it once or twice.
struct TileQuery {
    std::int64_t entry;     ///< index of its partial result in AttentionArgs::softmax
    std::int32_t query;     ///< index among the queries of the pass
    std::int32_t plan_row;  ///< -1: none
    std::int32_t seen;      ///< number of the unit's positions that it sees, counted from their start
    std::int32_t hidden;    ///< of these, positions before its window
    std::int64_t padding;
};
static_assert(sizeof(TileQuery) == 32);

/// Merged output of the unit's chunks so far, for the 16 queries of a warp: in registers, or in shared memory, where
/// each thread has its own column.
template <int TILES, bool in_registers>
struct SpanOutput {
    float kept[TILES][4];
    __device__ explicit SpanOutput(std::byte* /*shared*/) {}
    __device__ float4 get(int n) const { return make_float4(kept[n][0], kept[n][1], kept[n][2], kept[n][3]); }
    __device__ void put(int n, const float (&values)[4]) {
        for (int i = 0; i < 4; ++i) kept[n][i] = values[i];
    }
};
template <int TILES>
struct SpanOutput<TILES, false> {
    float4* shared;
    __device__ explicit SpanOutput(std::byte* bytes) : shared(reinterpret_cast<float4*>(bytes) + threadIdx.x) {}
    __device__ float4 get(int n) const { return shared[n * attention_threads]; }
    __device__ void put(int n, const float (&values)[4]) {
        shared[n * attention_threads] = make_float4(values[0], values[1], values[2], values[3]);
    }
};

}  // namespace longhaul::kernels::cuda
