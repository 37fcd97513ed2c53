// Sums over the vocabulary in lanes (numerics.hpp) for the kernels that choose tokens. A lane is one chain of
// additions, but its terms do not depend on each other, and each of them takes far longer than an addition: an
// exponential in f64 is a chain of 30 operations. So a block has 32 lanes: all its warps compute terms into shared
// memory, and one warp adds them in order.
#pragma once

#include "kernels/cuda/gpu.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels::cuda {

constexpr int group_lanes = 32;  ///< lanes of a block: one warp adds them
constexpr int num_lane_groups = vocabulary_lanes / group_lanes;
constexpr int max_lane_threads = 512;
constexpr int tile_steps = 128;  ///< terms per lane in shared memory

/// Shared memory for `num_sums` sums.
constexpr std::size_t lane_tile_bytes(int num_sums) {
    return static_cast<std::size_t>(num_sums) * tile_steps * group_lanes * sizeof(double);
}

/// Block size: one warp per step of a lane, so that small vocabularies have small blocks.
inline unsigned lane_threads_for(std::int64_t vocab_size) {
    constexpr std::int64_t max_warps = max_lane_threads / 32;
    const std::int64_t steps = (vocab_size + vocabulary_lanes - 1) / vocabulary_lanes;
    return static_cast<unsigned>(32 * (steps < 1 ? 1 : steps < max_warps ? steps : max_warps));
}

constexpr int add_ahead = 8;  ///< values loaded before their additions; counts of add_in_order are multiples of it

/// sum + value(0) + value(1) + … + value(count - 1), one by one; `then(i, sum)` gets each partial sum. The next values
/// are loaded during the additions, so that an addition waits only for the one before it.
template <class Value, class Then>
__device__ __forceinline__ double add_in_order(double sum, int count, Value value, Then then) {
    double now[add_ahead], next[add_ahead] = {};
    for (int i = 0; i < add_ahead; ++i) now[i] = i < count ? value(i) : 0.0;
#pragma unroll 2
    for (int first = 0; first < count; first += add_ahead) {
        const bool more = first + add_ahead < count;
        for (int i = 0; i < add_ahead; ++i) {
            if (more) next[i] = value(first + add_ahead + i);
        }
        for (int i = 0; i < add_ahead; ++i) then(first + i, sum += now[i]);
        for (int i = 0; i < add_ahead; ++i) now[i] = next[i];
    }
    return sum;
}
template <class Value>
__device__ __forceinline__ double add_in_order(double sum, int count, Value value) {
    return add_in_order(sum, count, value, [](int, double) {});
}

/// Replaces values by their running sums, the first of them added to `before`: one chain of additions, in ascending
/// order. Called by one thread, which is all that a chain occupies. count: a multiple of add_ahead.
__device__ inline void run_sums(double* values, int count, double before) {
    add_in_order(
        before, count, [&](int i) { return values[i]; }, [&](int i, double sum) { values[i] = sum; });
}

/// The steps of a tile, of all lanes of a group. Steps beyond the row's end have terms of 0, which add nothing.
struct LaneTile {
    std::int64_t first_token;  ///< of lane 0 of the group
    int num_steps;             ///< a multiple of add_ahead

    __device__ LaneTile(std::int64_t first, std::int64_t vocab_size) : first_token(first) {
        const std::int64_t left = (vocab_size - first + vocabulary_lanes - 1) / vocabulary_lanes;
        const int steps = static_cast<int>(left < tile_steps ? left : tile_steps);
        num_steps = (steps + add_ahead - 1) / add_ahead * add_ahead;
    }
    [[nodiscard]] __device__ std::int64_t token(int step) const {
        return first_token + std::int64_t{step} * vocabulary_lanes + threadIdx.x % group_lanes;
    }
};

/// sums[n][lane] = the sum of the n-th terms over the lane's tokens, for the lanes of one group. terms(token, values)
/// is called once for each token of these lanes, in any order, and sets the values. Called by the whole block; shared:
/// lane_tile_bytes(num_sums).
template <int num_sums, class Terms>
__device__ void sum_lanes(std::int64_t vocab_size, unsigned group, double* shared, double* const (&sums)[num_sums],
                          Terms terms) {
    constexpr int tile_terms = tile_steps * group_lanes;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              num_warps = static_cast<int>(blockDim.x / 32);
    double sum[num_sums] = {};
    for (std::int64_t first = std::int64_t{group} * group_lanes; first < vocab_size;
         first += std::int64_t{tile_steps} * vocabulary_lanes) {
        const LaneTile tile(first, vocab_size);
        __syncthreads();  // the terms of the previous tile were added
        for (int step = warp; step < tile.num_steps; step += num_warps) {
            double values[num_sums] = {};
            if (tile.token(step) < vocab_size) terms(tile.token(step), values);
            for (int n = 0; n < num_sums; ++n) shared[n * tile_terms + step * group_lanes + lane] = values[n];
        }
        __syncthreads();
        for (int n = 0; n < num_sums; ++n) {
            if (warp != n % num_warps) continue;
            const double* const mine = shared + n * tile_terms + lane;
            sum[n] = add_in_order(sum[n], tile.num_steps, [&](int step) { return mine[step * group_lanes]; });
        }
    }
    for (int n = 0; n < num_sums; ++n) {
        if (warp == n % num_warps) sums[n][group * group_lanes + static_cast<unsigned>(lane)] = sum[n];
    }
}

/// The same for one sum; term(token) returns its value.
template <class Term>
__device__ void sum_lanes(std::int64_t vocab_size, unsigned group, double* shared, double* sums, Term term) {
    double* const to[1] = {sums};
    sum_lanes<1>(vocab_size, group, shared, to,
                 [&](std::int64_t token, double(&values)[1]) { values[0] = term(token); });
}

/// Adds the lanes of a sum over tokens as a balanced tree; returns the sum to all threads. lanes: [vocabulary_lanes],
/// written before by any threads; overwritten. The tree's first two levels are in registers, the last five in one warp.
__device__ inline double tree_of_lanes(double* lanes) {
    constexpr unsigned quarter = vocabulary_lanes / 4;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < quarter; i += blockDim.x)
        lanes[i] = (lanes[i] + lanes[i + 2 * quarter]) + (lanes[i + quarter] + lanes[i + 3 * quarter]);
    for (unsigned half = quarter / 2; half >= 32; half /= 2) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < half; i += blockDim.x) lanes[i] += lanes[i + half];
    }
    if (threadIdx.x < 32) {
        double sum = lanes[threadIdx.x];  // written by this thread
        for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(full_warp, sum, half);
        if (threadIdx.x == 0) lanes[0] = sum;
    }
    __syncthreads();
    return lanes[0];
}

/// The same for lanes in device memory. shared: [vocabulary_lanes].
__device__ inline double sum_of_lanes(const double* lanes, double* shared) {
    for (unsigned i = threadIdx.x; i < vocabulary_lanes; i += blockDim.x) shared[i] = lanes[i];
    return tree_of_lanes(shared);
}

}  // namespace longhaul::kernels::cuda
