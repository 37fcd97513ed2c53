// The kernels of one processor variant (avx2.cpp, avx512.cpp, avx512_bf16.cpp) as called by CpuDevice: inner loops
// only, plain functions over plain structs. CpuDevice checks arguments, distributes the work over threads and sets
// FTZ/DAZ; it is compiled for any x86-64.
//
// "The wall" between a variant and the rest of the program: a variant is compiled with processor flags that the machine
// may not have, so it must not emit inline functions with external linkage (the linker could keep that copy for the
// whole program). Hence there are no standard containers in this header, and every template of the variants takes a
// type of an anonymous namespace, which gives all its instances internal linkage. tests/kernels/variant_wall_test.py
// checks this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/delta_kernels.hpp"
#include "kernels/gate.hpp"

namespace longhaul::kernels::cpu {

// --- matmul ---

// Weights are laid out in blocks of 16 outputs, [n/16][group][16 outputs][...]: a group is 64 bytes, one pair of bf16
// inputs or one f32 input per output. So a sum never crosses lanes, and its order is that of the groups for any
// register width. Keys (16 tokens across the lanes) and values (16 dimensions across the lanes) have the same layout.

constexpr std::int64_t lanes = 16;        ///< outputs per block
constexpr std::int64_t group_bytes = 64;  ///< 16 outputs x (2 bf16 | 1 f32)

constexpr std::int64_t block_rows = 48;       ///< maximum rows that share one pass over the weights, without AMX
constexpr std::int64_t max_block_rows = 192;  ///< likewise for any variant
constexpr std::int64_t chunk_tokens = 512;
constexpr std::int64_t page_tokens = 64;

/// The rows of a matmul are split into tiles that keep (almost) all their accumulators in registers: as few tiles as
/// possible, sizes as equal as possible. Tile t of `num_rows` rows starts at row t * num_rows / num_tiles.
struct RowTiles {
    std::int64_t num_rows;
    std::int64_t num_tiles;
    /// (always inlined: see "the wall" above)
    [[gnu::always_inline]] std::int64_t first(std::int64_t tile) const { return tile * num_rows / num_tiles; }
    [[gnu::always_inline]] std::int64_t largest() const { return (num_rows + num_tiles - 1) / num_tiles; }
};

/// Layout of the blocks of packed f32 or bf16 weights: bundles of `together` blocks that are interleaved group by
/// group; the remaining blocks follow one after another.
struct BlockPlaces {
    std::int64_t groups;  ///< per block
    std::int64_t num_blocks;
    std::int64_t together;

    /// Number of bundles, where the remaining blocks count as one.
    [[nodiscard]] constexpr std::int64_t num_bundles() const { return (num_blocks + together - 1) / together; }
    /// The first block of a bundle; num_blocks for the bundle past the end.
    [[nodiscard]] constexpr std::int64_t first_block(std::int64_t bundle) const {
        const std::int64_t block = bundle * together;
        return block < num_blocks ? block : num_blocks;
    }
    /// Byte offset of the first group of a block.
    [[nodiscard]] constexpr std::int64_t offset(std::int64_t block) const {
        const std::int64_t beside = stands_alone(block) ? 0 : block % together;
        return ((block - beside) * groups + beside) * group_bytes;
    }
    [[nodiscard]] constexpr std::int64_t group_stride(std::int64_t block) const {
        return stands_alone(block) ? group_bytes : together * group_bytes;
    }

  private:
    [[nodiscard]] constexpr bool stands_alone(std::int64_t block) const {
        return block >= num_blocks / together * together;
    }
};

/// Packs the inputs of a matmul into the 32-bit words that the inner loops read, [tile][group][step][row of tile]:
///   f32                 1 step:  the input
///   bf16, FMA           2 steps: the odd element of the pair, then the even one, both widened to f32
///   bf16, vdpbf16ps     1 step:  the pair as it is in memory
/// or for tiles of bf16 as bf16_tile_matmul.hpp states.
/// Tile t begins at word first(t) * groups * steps. Part `part` of `num_parts` packs its share of the groups of all
/// tiles.
struct PackJob {
    const std::byte* rows;    ///< [num_rows, row_stride] bf16 or f32
    std::int64_t row_stride;  ///< elements
    std::int64_t num_rows;
    std::int64_t num_groups;
    std::int64_t groups_per_slice;
    std::uint32_t* words;
};

/// Destination of the sums of a matmul, [row][output].
struct Sums {
    float* y;  ///< address of output `first`
    std::int64_t stride;
    std::int64_t first;
};

/// y[r, n] of all rows (at most block_rows, bf16: KernelTable::bf16_block_rows) for the outputs of a BlockRange.
struct MatmulJob {
    const std::byte* weights;  ///< laid out as in BlockPlaces
    std::int64_t num_outputs;
    std::int64_t num_slices;
    std::int64_t groups_per_slice;
    const std::uint32_t* words;
    std::int64_t num_rows;
    Sums sums;
};

/// Blocks of 16 outputs for a thread to compute, first..end. The thread is expected to continue with the blocks up to
/// `part_end`; used only for prefetching.
struct BlockRange {
    std::int64_t first, end, part_end;
};

/// Whether the inputs of quantized weights fill their blocks of inputs almost: `in_blocks` counts whole blocks.
[[gnu::always_inline]] inline bool fills_blocks(std::int64_t inputs, std::int64_t in_blocks) {
    return 100 * inputs >= 85 * in_blocks;
}

/// Quantizes the bf16 inputs of a matmul with quantized weights (kernels/quantized.hpp):
///   words        4 int8 each, [tile][group][step][row of tile] or as AmxInputs (amx_matmul.hpp)
///   scales       f32 [tile][block][row of tile]
///   corrections  int32, indexed as scales: added to a block's integer sum, because weights are stored with an offset
struct QuantizeJob {
    const std::byte* rows;    ///< bf16 [num_rows, row_stride]
    std::int64_t row_stride;  ///< elements
    std::int64_t num_rows;
    std::int64_t slice_length;
    std::int64_t num_groups;  ///< of all slices
    std::int64_t num_blocks;
    std::uint32_t* words;
    float* scales;
    std::int32_t* corrections;
};

/// y[r, n] for 16-output blocks of all rows (at most KernelTable::quantized_block_rows), as MatmulJob. A block of
/// outputs is [slice][group] of 64 bytes, followed by its scales, bf16 [slice][block][16].
struct QuantizedJob {
    const std::byte* weights;
    std::int64_t block_bytes;
    std::int64_t num_outputs;
    std::int64_t num_slices;
    std::int64_t groups_per_slice;
    std::int64_t blocks_per_slice;
    const std::uint32_t* words;
    const float* scales;
    const std::int32_t* corrections;
    std::int64_t num_rows;
    Sums sums;
};

/// Quantizes one block of inputs of 16 weight rows to int8 or int4, each row as quantize_block does.
struct QuantizeWeightsJob {
    bool int8;
    const float* values;  ///< [count, 16]
    std::int64_t count;
    std::int32_t* q;        ///< [count, 16]
    std::uint16_t* scales;  ///< bf16 [16]
};

struct QuantizedKernels {
    void (*quantize)(const QuantizeJob& job, std::int64_t part, std::int64_t num_parts);
    void (*matmul)(const QuantizedJob& job, BlockRange blocks);
};

struct RowsJob {
    const float* x;
    const float* gain = nullptr;    ///< norms only
    const float* bias = nullptr;    ///< layer_norm only
    float eps = 0.0F;               ///< norms only
    const float* addend = nullptr;  ///< add_rms_norm only; same shape as x
    float* sums = nullptr;  ///< add_rms_norm: destination of x + addend, same shape as x; square_sums: [num_rows]
    std::int64_t width;
    bool bf16;
    std::byte* out = nullptr;  ///< [num_rows, out_stride]; not square_sums
    std::int64_t out_stride = 0;
};

/// Device::output_gate.
struct OutputGateJob {
    const float* gate;
    std::int64_t gate_stride;
    const float* x;  ///< [num_rows, width]
    std::int64_t width;
    bool bf16;
    std::byte* out;  ///< [num_rows, out_stride]
    std::int64_t out_stride;
};

/// gate(x) * up from matmul sums [num_rows, row_stride] in which blocks of 16 gates and 16 ups alternate; the first
/// 2 * width columns count.
struct GatedJob {
    const float* sums;
    std::int64_t row_stride;
    std::int64_t num_rows;
    std::int64_t width;
    bool bf16;
    std::byte* out;  ///< [num_rows, out_stride]
    std::int64_t out_stride;
};

/// Rotates a query or key before attention: x [2 * half], cosines and sines [half]; dimension i pairs with i + half.
struct RotateJob {
    const float* x;
    const float* cos;
    const float* sin;
    std::int64_t half;
    bool bf16;
    std::byte* out;  ///< [2 * half], bf16 or f32
};

// --- attention ---

constexpr std::int64_t everything = INT64_MAX;

/// A row of an attention unit: AttentionRow with its index in the call.
struct UnitRow {
    std::int64_t index;  ///< row of q and out
    std::int64_t position;
    std::int64_t in_pages;
    const std::int32_t* path;
    std::int64_t first_visible;  ///< the row sees positions first_visible..position

    /// Whether the chunk lies wholly before the row's window.
    [[nodiscard]] [[gnu::always_inline]] bool is_past(std::int64_t chunk) const {
        return first_visible >= (chunk + 1) * chunk_tokens;
    }
};

/// Rows of one sequence and the query heads of one KV head: they share every key and value that is loaded. A pair of
/// row and head is a "tile row", row * group_heads + head.
struct AttentionUnit {
    const UnitRow* rows;
    std::int64_t num_rows;
    std::int64_t kv_head;
    std::byte* const* pages;
    std::byte* const* scratch_pages;
    std::int64_t first_visible;        ///< of the rows' positions
    std::int64_t next_prefetch_bytes;  ///< how much of the next chunk is prefetched during a chunk

    [[nodiscard]] [[gnu::always_inline]] std::int64_t first_chunk() const { return first_visible / chunk_tokens; }
    /// Pages of the chunk before all the rows' windows.
    [[nodiscard]] [[gnu::always_inline]] std::int64_t skipped_pages(std::int64_t chunk) const {
        const std::int64_t before = first_visible - chunk * chunk_tokens;
        return before > 0 ? before / page_tokens : 0;
    }
    /// Whether the unit streams its pages: reads each byte once, in the order of the prefetches, next_prefetch_bytes
    /// behind them.
    [[nodiscard]] [[gnu::always_inline]] bool streams() const { return next_prefetch_bytes < everything; }
};

struct AttentionJob {
    bool bf16;
    bool int8;  ///< keys and values are int8; q is f32 then
    std::int64_t head_dim;
    std::int64_t padded_dim;   ///< head_dim rounded up to 16
    std::int64_t group_heads;  ///< query heads per KV head
    std::int64_t q_heads;
    std::int64_t keys_offset;    ///< bytes from the start of a page to the keys of (layer, KV head 0)
    std::int64_t part_bytes;     ///< bytes of a page's values of one (layer, KV head); its keys are no larger
    std::int64_t head_stride;    ///< bytes from the keys of a KV head to those of the next
    std::int64_t values_offset;  ///< bytes from keys to values of the same head
    float scale;
    float score_cap;     ///< KvLayout::score_cap
    const std::byte* q;  ///< [rows, q_heads, head_dim]
    const float* sinks;  ///< [q_heads]; nullptr: none
    bool act_bf16;
    std::byte* out;  ///< [rows, out_stride]
    std::int64_t out_stride;
};

/// Softmax over some positions, for all tile rows of a unit.
struct Softmax {
    float* maximum;  ///< [tile rows]
    float* sum;      ///< [tile rows]
    float* output;   ///< [tile rows, padded_dim]
};

constexpr std::int64_t max_tile_rows = 16;  ///< in attention, for any variant
/// Distance between the rows of a tile's scores, in 32-bit words. Not a multiple of 1 KB, or the rows would share the
/// same few sets of the L1 cache.
constexpr std::int64_t score_stride = chunk_tokens + 16;

/// Words for a packed query.
[[gnu::always_inline]] constexpr std::int64_t padded_query(std::int64_t head_dim) {
    return (head_dim + 31) / 32 * 32;
}

/// Scratch memory of one thread for one unit.
struct AttentionScratch {
    std::uint32_t* q_words;  ///< [tile rows * padded_query(head_dim)]
    float* scores;           ///< [max_tile_rows, score_stride], of one tile; later its probabilities
    float* tree_scores;      ///< [max_tile_rows, score_stride], of one scratch page of the tree
    float* q_scales;         ///< [tile rows], int8 only: query scale / sqrt(head_dim)
    float* value_scales;     ///< [512], int8 only
    float* path_p;           ///< [max_tile_rows * 512], probabilities of the values that rows add one by one
};

/// The keys and values of one head in one chunk, to be prefetched.
struct KvPrefetch {
    std::byte* const* pages = nullptr;
    std::int64_t num_pages = 0;
    std::int64_t keys_offset = 0;  ///< bytes from the start of a page to the keys of this head
};

/// What a chunk prefetches: first the rest of its own memory, then AttentionUnit::next_prefetch_bytes of the next
/// chunk. (Not its own in a single tile that does not stream: there is not enough time, except with tiles of bf16.)
/// Bytes are counted through all keys of the chunk, then through all its values.
struct ChunkPrefetch {
    KvPrefetch own;
    std::int64_t own_prefetched;  ///< bytes that were prefetched earlier
    KvPrefetch next;              ///< the chunk that the thread takes next
};

struct KernelTable {
    const char* name;
    std::int64_t bf16_steps;       ///< words per bf16 group and row: 2 or 1
    std::int64_t bf16_slice_unit;  ///< groups: the packed inputs of a slice are padded to a multiple
    std::int64_t bf16_block_rows;  ///< maximum rows that share one pass over bf16 weights
    std::int64_t max_tile_bf16;    ///< maximum rows of a tile, except in small matmuls (max_matmul_rows)
    std::int64_t max_tile_f32;
    bool streams_kv;                ///< whether attention of few rows streams keys and values (AttentionUnit::streams)
    std::int64_t blocks_per_piece;  ///< minimum output blocks per work item, so that few tiles are partial
    std::int64_t blocks_together;   ///< see BlockPlaces
    std::int64_t quantized_block_rows;  ///< maximum rows that share one pass over quantized weights that fill blocks

    void (*pack_bf16)(const PackJob& job, std::int64_t part, std::int64_t num_parts);
    void (*pack_f32)(const PackJob& job, std::int64_t part, std::int64_t num_parts);
    void (*matmul_bf16)(const MatmulJob& job, BlockRange blocks);
    void (*matmul_f32)(const MatmulJob& job, BlockRange blocks);
    QuantizedKernels int8, int4;
    void (*quantize_weights)(const QuantizeWeightsJob& job);
    void (*rms_norm)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*add_rms_norm)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*square_sums)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*layer_norm)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*round_rows)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    /// By Activation.
    void (*activate[num_activations])(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    // By Gate.
    void (*gate_mul[num_gates])(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*gate[num_gates])(const GatedJob& job);
    /// Elements [first, end) of x.
    void (*soft_cap)(float* x, float cap, std::int64_t first, std::int64_t end);
    void (*output_gate[num_output_gates])(const OutputGateJob& job, std::int64_t first_row, std::int64_t end_row);
    void (*rotate)(const RotateJob& job);
    DeltaKernels delta;

    /// Packs the unit's queries into scratch.q_words.
    void (*attention_begin)(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch);
    /// Softmax of the positions of one chunk, for each tile row.
    void (*attention_chunk)(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                            const ChunkPrefetch& ahead, const AttentionScratch& scratch, const Softmax& result);
    /// Merges one chunk into the state of the chunks before it. The unit's first chunk initialises the state.
    void (*attention_merge)(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                            const Softmax& result, const Softmax& state);
    /// Merges the sinks and writes output / sum, rounded to act, to the unit's rows and heads of `out`.
    void (*attention_end)(const AttentionJob& job, const AttentionUnit& unit, const Softmax& state);

    /// Scores of the only tile row of `unit` with the keys in the unit's pages first_page to first_page + num_pages -
    /// 1: f32 [num_pages * 64].
    void (*rank_scores)(const AttentionJob& job, const AttentionUnit& unit, std::int64_t first_page,
                        std::int64_t num_pages, const AttentionScratch& scratch, float* scores);

    /// Peak loops: multiply-adds on registers alone, enough to saturate the execution units, with the instruction of
    /// each kind of matmul (int8: tiles or VNNI, or as bf16 without them). They return the number of operations (a
    /// multiply-add is two) and write a part of the sum to `sink`, so that the compiler keeps the loop.
    double (*peak_bf16)(std::int64_t iterations, float* sink);
    double (*peak_f32)(std::int64_t iterations, float* sink);
    double (*peak_int8)(std::int64_t iterations, float* sink);
};

const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();       ///< bf16 by fused multiply-adds
const KernelTable* avx512_bf16_kernels();  ///< bf16 by vdpbf16ps
const KernelTable* amx_kernels();          ///< as avx512_kernels, with int8 and int4 weights by matrix tiles
/// bf16 weights, keys and values by matrix tiles, in their order (numerics.hpp): by AMX, or emulated with AVX-512 or
/// AVX2.
const KernelTable* amx_bf16_kernels();
const KernelTable* amx_bf16_on_avx512_kernels();
const KernelTable* amx_bf16_on_avx2_kernels();
/// The blocking and layouts of avx512 and amx, with vdpbf16ps and tiles emulated, to test their index arithmetic on
/// machines without the instructions. Not offered as variants; they require AVX2.
const KernelTable* avx512_emulated_kernels();
const KernelTable* amx_emulated_kernels();
/// Whether vdpbf16ps gives the bits of two fused multiply-adds, odd element first. Requires AVX512_BF16.
bool avx512_bf16_self_test();
/// Whether tiles of bf16 add in the order of numerics.hpp. Requires AMX_BF16 and AVX-512.
bool amx_bf16_self_test();

}  // namespace longhaul::kernels::cpu
