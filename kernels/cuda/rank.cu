// CudaDevice::rank_positions and gather_positions. Ranking: one kernel computes the scores as sortable keys, one thread
// per position; another chooses, one block per KV head: a radix selection finds the key of the last chosen position,
// then each thread writes the chosen ones of a contiguous range.
#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/math.cuh"
#include "kernels/kv_int8.hpp"
#include "kernels/rank_key.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int score_threads = 256;
constexpr int choose_threads = 512;
constexpr int radix = 256;
constexpr int copy_threads = 32;

/// Pointers to device memory.
struct RankArgs {
    KvShape shape;
    DType dtype;
    std::int64_t layer;
    int group_heads;
    const std::byte* const* pages;
    const std::byte* q;  ///< [q_heads, head_dim]
    std::int64_t first;
    std::int64_t num_positions;
    std::int64_t count;
    std::uint32_t* keys;      ///< [kv_heads, num_positions]
    std::int32_t* positions;  ///< [kv_heads, count]
};

/// The query in shared memory: f32 values, or integers in the same words.
union QueryElement {
    float value;
    std::int32_t whole;
};

/// Sum of a KV head's queries; returns the scale of int8 queries. `query` is padded with zeros to `padded` elements.
__device__ float add_queries(const RankArgs& args, int padded, QueryElement* query) {
    const int head_dim = args.shape.head_dim;
    const DType type = args.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    const std::int64_t first = std::int64_t{blockIdx.y} * args.group_heads * head_dim;
    for (int d = static_cast<int>(threadIdx.x); d < padded; d += static_cast<int>(blockDim.x)) {
        float sum = 0.0F;
        for (int g = 0; d < head_dim && g < args.group_heads; ++g)
            sum = __fadd_rn(sum, load_as_f32(args.q, type, first + std::int64_t{g} * head_dim + d));
        query[d].value = type == DType::bf16 ? bf16_to_f32(f32_to_bf16(sum)) : sum;
    }
    __syncthreads();
    if (args.dtype != DType::int8) return 1.0F;
    float largest = 0.0F;
    for (int d = 0; d < head_dim; ++d) {
        const float magnitude = __builtin_fabsf(query[d].value);
        if (!(magnitude <= largest)) largest = magnitude < __builtin_inff() ? magnitude : __builtin_inff();
    }
    __syncthreads();
    const QuantizationScale whole = QuantizationScale::of(largest, max_quantized_query);
    for (int d = static_cast<int>(threadIdx.x); d < padded; d += static_cast<int>(blockDim.x))
        query[d].whole = whole.whole(query[d].value);
    __syncthreads();
    return whole.scale;
}

__device__ float dot_bf16(const uint4* key, int pieces, const QueryElement* query) {
    float sum = 0.0F;
    for (int i = 0; i < pieces; ++i, query += 8) {
        const uint4 piece = key[i];
        const std::uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
        for (int p = 0; p < 4; ++p) {
            sum = __fmaf_rn(query[2 * p + 1].value, bf16_high(pairs[p]), sum);
            sum = __fmaf_rn(query[2 * p].value, bf16_low(pairs[p]), sum);
        }
    }
    return sum;
}

__device__ float dot_f32(const uint4* key, int pieces, const QueryElement* query) {
    float sum = 0.0F;
    for (int i = 0; i < pieces; ++i, query += 4) {
        const uint4 piece = key[i];
        const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
        for (int d = 0; d < 4; ++d) sum = __fmaf_rn(query[d].value, __uint_as_float(words[d]), sum);
    }
    return sum;
}

__device__ float dot_int8(const uint4* key, int pieces, const QueryElement* query) {
    std::int32_t sum = 0;
    for (int i = 0; i < pieces; ++i, query += 16) {
        const uint4 piece = key[i];
        const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
        for (int b = 0; b < 16; ++b)
            sum += query[b].whole * static_cast<std::int8_t>((words[b / 4] >> (b % 4 * 8)) & 0xffU);
    }
    return static_cast<float>(sum);
}

/// Grid [positions / score_threads, kv_heads].
__global__ void __launch_bounds__(score_threads) rank_scores_kernel(RankArgs args) {
    auto* query = shared_memory<QueryElement>();
    const int element = args.dtype == DType::f32 ? 4 : args.dtype == DType::bf16 ? 2 : 1;
    const float q_scale = add_queries(args, args.shape.row_bytes / element, query);
    const std::int64_t i = std::int64_t{blockIdx.x} * score_threads + threadIdx.x;
    if (i >= args.num_positions) return;
    const std::int64_t position = args.first + i;
    const auto slot = static_cast<int>(position % KvLayout::page_tokens);
    const std::byte* block =
        args.pages[position / KvLayout::page_tokens] + args.shape.block(args.layer, blockIdx.y, false);
    const auto* key = reinterpret_cast<const uint4*>(block + std::int64_t{slot} * args.shape.row_bytes);
    const int pieces = args.shape.row_bytes / 16;
    float score;
    if (args.dtype == DType::bf16) {
        score = dot_bf16(key, pieces, query);
    } else if (args.dtype == DType::f32) {
        score = dot_f32(key, pieces, query);
    } else {
        const float key_scale = reinterpret_cast<const float*>(block + args.shape.scales())[slot];
        score = __fmul_rn(__fmul_rn(dot_int8(key, pieces, query), q_scale), key_scale);
    }
    args.keys[std::int64_t{blockIdx.y} * args.num_positions + i] = rank_key(score);
}

struct ChooseMemory {
    unsigned histogram[radix];
    std::uint32_t last;  ///< leading bits of the key of the last chosen position; at the end the key
    unsigned left;       ///< positions to choose among those with these bits
    unsigned above[choose_threads];
    unsigned ties[choose_threads];
};

/// Finds the next 8 bits of the last chosen key.
__device__ void narrow(const std::uint32_t* keys, std::int64_t count, int shift, ChooseMemory& memory) {
    for (int bin = static_cast<int>(threadIdx.x); bin < radix; bin += choose_threads) memory.histogram[bin] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < count; i += choose_threads) {
        const std::uint32_t key = keys[i];
        if (shift < 24 && key >> (shift + 8) != memory.last) continue;
        atomicAdd(&memory.histogram[(key >> shift) % radix], 1U);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int bin = radix - 1;
        for (; memory.histogram[bin] < memory.left; --bin) memory.left -= memory.histogram[bin];
        memory.last = memory.last << 8 | static_cast<std::uint32_t>(bin);
    }
    __syncthreads();
}

/// counts[t] = sum of counts[0..t-1].
__device__ void sum_before(unsigned* counts) {
    unsigned sum = 0;
    for (int t = 0; t < choose_threads; ++t) {
        const unsigned count = counts[t];
        counts[t] = sum;
        sum += count;
    }
}

/// Grid [kv_heads].
__global__ void __launch_bounds__(choose_threads) rank_choose_kernel(RankArgs args) {
    ChooseMemory& memory = *shared_memory<ChooseMemory>();
    const std::uint32_t* keys = args.keys + std::int64_t{blockIdx.x} * args.num_positions;
    if (threadIdx.x == 0) {
        memory.last = 0;
        memory.left = static_cast<unsigned>(args.count);
    }
    __syncthreads();
    for (int shift = 24; shift >= 0; shift -= 8) narrow(keys, args.num_positions, shift, memory);

    const std::int64_t strip = (args.num_positions + choose_threads - 1) / choose_threads;
    const std::int64_t first = threadIdx.x * strip;
    const std::int64_t end = first + strip < args.num_positions ? first + strip : args.num_positions;
    unsigned above = 0, ties = 0;
    for (std::int64_t i = first; i < end; ++i) {
        above += keys[i] > memory.last ? 1U : 0U;
        ties += keys[i] == memory.last ? 1U : 0U;
    }
    memory.above[threadIdx.x] = above;
    memory.ties[threadIdx.x] = ties;
    __syncthreads();
    if (threadIdx.x == 0) sum_before(memory.above);
    if (threadIdx.x == warpSize) sum_before(memory.ties);
    __syncthreads();
    unsigned ties_before = memory.ties[threadIdx.x];
    unsigned place = memory.above[threadIdx.x] + (ties_before < memory.left ? ties_before : memory.left);
    std::int32_t* chosen = args.positions + std::int64_t{blockIdx.x} * args.count;
    for (std::int64_t i = first; i < end; ++i) {
        if (keys[i] < memory.last) continue;
        if (keys[i] == memory.last && ties_before++ >= memory.left) continue;
        chosen[place++] = static_cast<std::int32_t>(args.first + i);
    }
}

/// Pointers to device memory.
struct GatherArgs {
    KvShape shape;
    bool has_scales;
    std::int64_t layer;
    const std::byte* const* from;
    std::byte* const* to;
    const std::int32_t* positions;  ///< [kv_heads, count]
    std::int64_t first_slot;
};

/// Grid [count, kv_heads].
__global__ void __launch_bounds__(copy_threads) gather_positions_kernel(GatherArgs args) {
    const std::int64_t position = args.positions[std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x];
    const std::int64_t slot = args.first_slot + blockIdx.x;
    const auto from_slot = static_cast<int>(position % KvLayout::page_tokens);
    const auto to_slot = static_cast<int>(slot % KvLayout::page_tokens);
    const int pieces = args.shape.row_bytes / 16;
    for (int values = 0; values < 2; ++values) {
        const std::int64_t block = args.shape.block(args.layer, blockIdx.y, values != 0);
        const std::byte* from = args.from[position / KvLayout::page_tokens] + block;
        std::byte* to = args.to[slot / KvLayout::page_tokens] + block;
        for (int i = static_cast<int>(threadIdx.x); i < pieces; i += copy_threads) {
            reinterpret_cast<uint4*>(to)[to_slot * pieces + i] =
                reinterpret_cast<const uint4*>(from)[from_slot * pieces + i];
        }
        if (args.has_scales && threadIdx.x == 0) {
            reinterpret_cast<float*>(to + args.shape.scales())[to_slot] =
                reinterpret_cast<const float*>(from + args.shape.scales())[from_slot];
        }
    }
}

}  // namespace

void CudaDevice::rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                                const PositionRange& range, std::int32_t* positions) {
    check_layout(layout, layer, q_heads);
    check_range(range);
    state_->kv.flush_moves();
    const std::int64_t num_positions = range.end - range.first;
    RankMemory& memory = state_->ranks;
    const KvShape shape(layout);
    const RankArgs args{shape,
                        layout.dtype,
                        layer,
                        static_cast<int>(q_heads / layout.num_kv_heads),
                        memory.from.send(state_->stream, state_->ring, range.pages),
                        q,
                        range.first,
                        num_positions,
                        range.count,
                        memory.keys.get<std::uint32_t>(state_->stream, layout.num_kv_heads * num_positions),
                        positions};
    const auto heads = static_cast<unsigned>(layout.num_kv_heads);
    const std::int64_t blocks = (num_positions + score_threads - 1) / score_threads;
    launch(state_->stream, rank_scores_kernel, dim3(static_cast<unsigned>(blocks), heads), dim3(score_threads),
           static_cast<std::size_t>(shape.row_bytes) * sizeof(QueryElement), args);
    launch(state_->stream, rank_choose_kernel, dim3(heads), dim3(choose_threads), sizeof(ChooseMemory), args);
}

void CudaDevice::gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                  const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                                  std::int64_t first_slot) {
    check_layout(layout, layer, layout.num_kv_heads);
    check_gathered(count, to, first_slot);
    state_->kv.flush_moves();
    RankMemory& memory = state_->ranks;
    const GatherArgs args{KvShape(layout),
                          layout.dtype == DType::int8,
                          layer,
                          memory.from.send(state_->stream, state_->ring, from),
                          memory.to.send(state_->stream, state_->ring, to),
                          positions,
                          first_slot};
    launch(state_->stream, gather_positions_kernel,
           dim3(static_cast<unsigned>(count), static_cast<unsigned>(layout.num_kv_heads)), dim3(copy_threads), 0, args);
    state_->far.written(to, layer);
}

}  // namespace longhaul::kernels::cuda
