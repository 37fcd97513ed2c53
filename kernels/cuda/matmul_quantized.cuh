// Matmul with int8 and int4 weights: a separate kernel quantizes the inputs of each row and block to int8, then tensor
// cores compute the dot products of a block in integers. Integer sums are exact, so the result is bit-identical to the
// CPU.
//
// The kernel is that of matmul_stream.cuh with two differences: int4 weights are expanded to bytes in registers, and
// the scales of a step also go through the queue. A lane reads scales that other lanes fetched, so the lanes of a warp
// synchronize.
#pragma once

#include "kernels/convert.hpp"
#include "kernels/cuda/matmul_stream.cuh"

namespace longhaul::kernels::cuda {

/// Quantized inputs of a matmul: int8 [rows, slice, step, 64], within a step [t][16], the part of lane t of a group;
/// scales f32 [slice, step, block, rows], 0 for blocks beyond the slice.
struct QuantizeJob {
    WeightLayout layout;
    const std::byte* x = nullptr;  ///< bf16 [num_rows, x_stride]
    std::int64_t x_stride = 0;
    std::int64_t num_rows = 0;
    std::int8_t* whole = nullptr;
    float* scales = nullptr;
    std::int64_t scale_rows = 0;  ///< num_rows, rounded up to a multiple of 8; the added rows are zeros
};

/// Loads inputs first..first + 7 of a slice as f32, 0 beyond its end; the number of valid inputs is even.
__device__ inline void load_inputs(const QuantizeJob& job, std::int64_t row, std::int64_t slice, std::int64_t first,
                                   float (&values)[8]) {
    const auto* x = reinterpret_cast<const std::uint32_t*>(
        job.x + (row * job.x_stride + slice * job.layout.slice_length + first) * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const bool there = row < job.num_rows && first + 2 * i < job.layout.slice_length;
        const std::uint32_t pair = there ? x[i] : 0;
        values[2 * i] = low_of(pair);
        values[2 * i + 1] = high_of(pair);
    }
}

/// Grid: rows; steps of all slices. A thread quantizes 8 inputs, so 8 adjacent threads share a step. Launched early();
/// the matmul fetches its first weights meanwhile.
template <DType type>
__global__ void __launch_bounds__(max_row_threads) quantize_inputs(QuantizeJob job) {
    // Before the wait: the matmul fetches weights while even the call before this one runs, and no call of a pass
    // writes weights.
    let_next_start();
    wait_for_previous();
    constexpr int lanes = static_cast<int>(quantized_block(type)) / 8;  // that share a scale
    const int lane = static_cast<int>(threadIdx.x) % 8;
    const std::int64_t num_steps = job.layout.num_slices * job.layout.steps;
    const std::int64_t step = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) / 8;
    const std::int64_t row = blockIdx.x, slice = step / job.layout.steps;
    const std::int64_t first = step % job.layout.steps * 64 + lane * 8;
    float values[8] = {};
    if (step < num_steps) load_inputs(job, row, slice, first, values);
    unsigned largest_bits = 0;  // the bits of non-negative floats have the order of their values, and NaN comes last
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned bits = __float_as_uint(values[i]) & 0x7fffffffU;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
#pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2) {
        const unsigned other = __shfl_xor_sync(full_warp, largest_bits, distance);
        largest_bits = other > largest_bits ? other : largest_bits;
    }
    if (step >= num_steps) return;
    constexpr unsigned infinity = 0x7f800000U, smallest = (127U - 100U) << 23;
    const float largest = __uint_as_float(largest_bits);
    const bool usable = largest_bits < infinity && largest_bits >= smallest;
    const float inverse = __fdiv_rn(127.0F, usable ? largest : 1.0F);
    constexpr float to_nearest = 12582912.0F;
    unsigned words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float whole = __fsub_rn(__fmaf_rn(values[i], inverse, to_nearest), to_nearest);
        words[i / 4] |= (static_cast<unsigned>(__float2int_rn(usable ? whole : 0.0F)) & 0xffU) << (i % 4 * 8);
    }
    const int place = type == DType::int8 ? lane * 8 : lane % 4 * 16 + lane / 4 * 8;
    auto* const to = reinterpret_cast<uint2*>(job.whole + (row * num_steps + step) * 64 + place);
    *to = make_uint2(words[0], words[1]);
    if (lane % lanes != 0) return;
    const float scale = usable                    ? __fdiv_rn(largest, 127.0F)
                        : largest_bits < infinity ? 0.0F
                                                  : __uint_as_float(0x7fc00000U);
    job.scales[(step * step_blocks(type) + lane / lanes) * job.scale_rows + row] = scale;
}

template <DType type, int MT, int NT, int stages>
struct QuantizedShape {
    using Sums = StreamShape<MT, NT, stages>;
    static constexpr int blocks = step_blocks(type);
    static constexpr int halves = step_bytes(type) / 512;
    static constexpr int pieces = halves * MT + NT;
    static constexpr int weight_scales = pieces * 512;                              ///< [MT][blocks][8][2] bf16
    static constexpr int input_scales = weight_scales + MT * blocks * scale_bytes;  ///< [blocks][NT * 8] f32
    static constexpr int stage_bytes = input_scales + blocks * NT * 32;
    static constexpr int queue_bytes = stages * stage_bytes;
    static constexpr std::size_t shared_bytes(int warps) {
        return static_cast<std::size_t>(warps) * (queue_bytes > Sums::sums_bytes ? queue_bytes : Sums::sums_bytes);
    }
};

/// A lane's view of its warp's slice.
template <DType type, int MT, int NT, int stages>
struct QuantizedQueue {
    using Shape = QuantizedShape<type, MT, NT, stages>;
    static constexpr float float_start = 12582912.0F;
    static constexpr std::int32_t float_bits = 0x4b400000;
    static constexpr int lane_scales = Shape::blocks * 2;  ///< 16-byte pieces of a tile's scales per step

    std::byte* queue;                ///< of the warp
    const std::byte* weights;        ///< this lane's piece of step 0 of the first tile
    const std::byte* x;              ///< this lane's piece of step 0 of the first 8 rows
    const std::byte* weight_scales;  ///< this lane's piece; for lanes below MT * lane_scales
    const std::byte* input_scales;   ///< this lane's piece; for lanes below NT * lane_scales
    int weights_at[MT];              ///< byte offset from there to each tile
    int rows, row_bytes;             ///< number of rows from this lane's first one on, and stride between rows
    int input_scale_step;            ///< stride in bytes between steps

    __device__ QuantizedQueue(const MatmulJob& job, std::byte* queue, std::int64_t first_tile, std::int64_t first_row,
                              int slice)
        : queue(queue) {
        const WeightLayout& layout = job.layout;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const std::int64_t first_step = (first_tile * layout.num_slices + slice) * layout.steps;
        const int tile_steps = static_cast<int>(layout.num_slices * layout.steps);
        const std::int64_t tiles = layout.num_tiles - first_tile;
        weights = job.weights + first_step * step_bytes(type) + lane * 16;
        x = job.x + (first_row + lane / 4) * job.x_stride + slice * job.x_slice + lane % 4 * 16;
#pragma unroll
        for (int m = 0; m < MT; ++m) weights_at[m] = no_further(m, tiles) * tile_steps * step_bytes(type);
        const std::int64_t rows_left = job.num_rows - first_row - lane / 4;
        rows = static_cast<int>(rows_left < Shape::Sums::rows ? rows_left : Shape::Sums::rows);
        row_bytes = static_cast<int>(job.x_stride);
        const std::int64_t scale_step = first_step + no_further(lane / lane_scales, tiles) * tile_steps;
        weight_scales =
            job.weights + layout.scales_offset() + scale_step * Shape::blocks * scale_bytes + lane % lane_scales * 16;
        // Rows come in groups of 8 with 32 bytes of scales; groups beyond the last one are clamped to it.
        const int block = lane / (2 * NT);
        const std::int64_t wanted = first_row + lane % (2 * NT) * 4, last = job.scale_rows - 8 + lane % 2 * 4;
        const std::int64_t row = wanted < job.scale_rows ? wanted : last;
        input_scale_step = static_cast<int>(job.scale_rows * Shape::blocks * 4);
        input_scales = reinterpret_cast<const std::byte*>(
            job.x_scales + (slice * layout.steps * Shape::blocks + block) * job.scale_rows + row);
    }

    /// Weights and their scales.
    __device__ void fetch_weights(int step, int place) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        std::byte* const to = queue + place;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int half = 0; half < Shape::halves; ++half) {
                copy_async_16(to + (m * Shape::halves + half) * 512 + lane * 16,
                              weights + (weights_at[m] + step * step_bytes(type) + half * 512));
            }
        }
        if (lane < MT * lane_scales) {
            copy_async_16(to + Shape::weight_scales + lane * 16, weight_scales + step * (Shape::blocks * scale_bytes));
        }
    }
    /// Inputs and their scales. Rows that are not there are not read: lanes that read the same line of L2 wait for it.
    __device__ void fetch_inputs(int step, int place) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        std::byte* const to = queue + place;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            copy_async_16(to + (MT * Shape::halves + n) * 512 + lane * 16, x + (n * 8 * row_bytes + step * 64),
                          n * 8 < rows);
        }
        if (lane < NT * lane_scales) {
            copy_async_16(to + Shape::input_scales + lane * 16, input_scales + step * input_scale_step);
        }
    }

    /// This lane's 16 bytes of a piece.
    __device__ const std::byte* piece(int place, int index) const {
        return queue + place + index * 512 + threadIdx.x % 32 * 16;
    }

    /// Adds block `block` of the step: sum = fma(f32(integer sum), weight scale * input scale, sum). `multiply(m, b,
    /// whole)` adds `times` the integer sums of one tile with 8 rows, for which `b` are this lane's 16 bytes. Integer
    /// sums start from the bits of 1.5 * 2^23: adding integers below 2^22 to these bits gives the f32 value without a
    /// conversion.
    template <int times, class Multiply>
    __device__ __forceinline__ void add_block(int place, int block, float (&sum)[MT][NT][4], Multiply multiply) const {
        const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
        const std::byte* const from = queue + place;
        std::uint32_t w[MT];  // scales of outputs g and g + 8
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const int at = Shape::weight_scales + (m * Shape::blocks + block) * scale_bytes + g * 4;
            w[m] = *reinterpret_cast<const std::uint32_t*>(from + at);
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const std::byte* const b = piece(place, MT * Shape::halves + n);
            const int at = Shape::input_scales + ((block * NT + n) * 8 + 2 * t) * 4;
            const auto x_scales = *reinterpret_cast<const float2*>(from + at);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                std::int32_t whole[4] = {float_bits, float_bits, float_bits, float_bits};
                multiply(m, b, whole);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float scale =
                        __fmul_rn(i < 2 ? low_of(w[m]) : high_of(w[m]), i % 2 == 0 ? x_scales.x : x_scales.y);
                    constexpr float quotient = 1.0F / times;
                    const float product = __fmaf_rn(__int_as_float(whole[i]), quotient, -float_start * quotient);
                    sum[m][n][i] = __fmaf_rn(product, scale, sum[m][n][i]);
                }
            }
        }
    }

    __device__ void multiply_add_int8(int place, float (&sum)[MT][NT][4]) const {
        uint4 a[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            a[m][0] = load_16(piece(place, 2 * m));
            a[m][1] = load_16(piece(place, 2 * m + 1));
        }
        add_block<1>(place, 0, sum, [&](int m, const std::byte* inputs, std::int32_t(&whole)[4]) {
            const uint4 b = load_16(inputs);
            mma_int8(whole, {a[m][0].x, a[m][0].y, a[m][0].z, a[m][0].w}, {b.x, b.y});
            mma_int8(whole, {a[m][1].x, a[m][1].y, a[m][1].z, a[m][1].w}, {b.z, b.w});
        });
    }

    /// Nibbles stay in the upper halves of their bytes, so values and sums are exactly 16 times too large.
    __device__ void multiply_add_int4(int place, int num_blocks, float (&sum)[MT][NT][4]) const {
        constexpr unsigned upper = 0xf0f0f0f0U;
#pragma unroll 1  // unrolled, both blocks together need too many registers
        for (int block = 0; block < 2 && block < num_blocks; ++block) {
            uint2 a[MT];  // for outputs g and g + 8
#pragma unroll
            for (int m = 0; m < MT; ++m) a[m] = *reinterpret_cast<const uint2*>(piece(place, m) + block * 8);
            add_block<16>(place, block, sum, [&](int m, const std::byte* inputs, std::int32_t(&whole)[4]) {
                const auto b = *reinterpret_cast<const uint2*>(inputs + block * 8);
                mma_int8(whole, {a[m].x << 4 & upper, a[m].y << 4 & upper, a[m].x & upper, a[m].y & upper}, {b.x, b.y});
            });
        }
    }
};

/// Grid and block as in stream_matmul. Launched early().
template <DType type, int MT, int NT, int stages, int max_warps>
__global__ void __launch_bounds__(max_warps * 32, 1) quantized_matmul(MatmulJob job) {
    using Shape = QuantizedShape<type, MT, NT, stages>;
    using Sums = typename Shape::Sums;
    std::byte* const shared = shared_memory<std::byte>();
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.y) * MT;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * Sums::rows;
    const QuantizedQueue<type, MT, NT, stages> queue(job, shared + warp * Shape::queue_bytes, first_tile, first_row,
                                                     static_cast<int>(blockIdx.z) * warps + warp);
    const int steps = static_cast<int>(job.layout.steps);
    const int num_blocks = static_cast<int>(quantized_blocks(type, job.layout.slice_length));
    float sum[MT][NT][4] = {};
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) queue.fetch_weights(step, step * Shape::stage_bytes);
    }
    wait_for_previous();
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) queue.fetch_inputs(step, step * Shape::stage_bytes);
        commit_copies();
    }
    int place = 0, free = (stages - 1) * Shape::stage_bytes;
    for (int step = 0; step < steps; ++step) {
        wait_copies<stages - 2>();
        __syncwarp();  // the other lanes' copies are complete, and they no longer read the slot that is filled next
        if (step + stages - 1 < steps) {
            queue.fetch_weights(step + stages - 1, free);
            queue.fetch_inputs(step + stages - 1, free);
        }
        commit_copies();
        if constexpr (type == DType::int8) {
            queue.multiply_add_int8(place, sum);
        } else {
            queue.multiply_add_int4(place, num_blocks - 2 * step, sum);
        }
        free = place;
        place = place_after<Shape>(place);
    }
    let_next_start();
    wait_copies<0>();
    __syncthreads();
    auto* const sums = reinterpret_cast<float*>(shared);
    put_sums(sum, sums + warp * (Sums::rows * Sums::row_floats), Sums::row_floats);
    __syncthreads();
    const BlockTile tile{first_tile * tile_outputs, first_row, Sums::outputs, Sums::rows,
                         static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)};
    add_slices(job, tile, sums, warps, Sums::row_floats);
}

}  // namespace longhaul::kernels::cuda
