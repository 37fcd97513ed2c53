// Shared by the kernels that choose tokens (choose.cu): the parameters and state of a row, log weights, noise, and
// block reductions.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/lane_sums.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/exp_nonpositive.hpp"
#include "kernels/noise.hpp"
#include "kernels/numerics.hpp"
#include "kernels/scalar_math.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::kernels::cuda {

using Word = unsigned long long;  ///< operand of 64-bit atomics

constexpr int choose_threads = 256;
constexpr int max_candidates = 8192;  ///< max candidates (a superset of the survivors) that one block sorts

/// How a row is decided.
enum class Way : std::uint8_t {
    none,    ///< by the host
    greedy,  ///< the greatest logit
    all,     ///< no filter: every token is a survivor
    eta,     ///< eta alone: survivors are found by comparison, in place
    few,     ///< the most probable tokens are gathered, and one block filters them
};

/// A row, as sent by the host.
struct ChosenRow {
    float* logits;
    const std::int32_t* penalised;  ///< [num_penalised], no token twice
    float* saved;                   ///< [num_penalised]: logits before the penalty
    double temperature, top_p, min_p, eta;
    double log_min_p;        ///< slightly below log min_p
    double eta_root;         ///< sqrt(eta)
    KeptDistribution* keep;  ///< nullptr: not kept
    Word noise_key;
    std::int64_t position;
    std::uint32_t purpose, node;
    std::int64_t top_k;  ///< 0: off; at least min_keep
    std::int64_t min_keep;
    std::int32_t num_penalised;
    float penalty;
    bool silent;
    bool weighs;  ///< the survivors' probabilities are needed, not only one token
    Way way;
    bool counts_bins;  ///< candidates are found with a histogram of distances to the greatest logit
    bool adds_up;      ///< the sum over the vocabulary is needed
};

/// Results of the kernels for a row, filled one after another. Zeros at first.
struct RowState {
    Word best;  ///< order_of(logit) and ~token of the greatest logit, the lowest token at ties; 0: none is possible
    double sum;
    double least;                  ///< Way::eta: min probability of survivors
    double survivors;              ///< Way::eta: sum of the survivors' weights
    std::uint32_t num_possible;    ///< tokens above -inf
    std::uint32_t num_candidates;  ///< candidates found; those beyond max_candidates are not stored
    std::int32_t cut;              ///< last histogram bin of candidates
    std::uint32_t undecided;
};

/// A token and its log weight + noise.
struct Draw {
    double score;
    std::int32_t token;
};

__device__ __forceinline__ bool possible(float logit) {
    return logit > minus_infinity();
}

/// NaN becomes -inf, +inf the largest finite number.
__device__ __forceinline__ float taken(float logit) {
    constexpr float greatest = std::numeric_limits<float>::max();
    const float capped = logit > greatest ? greatest : logit;
    return capped >= minus_infinity() ? capped : minus_infinity();
}

/// Maps floats to integers in the same order; +0 and -0 are equal.
__device__ __forceinline__ std::uint32_t order_of(float value) {
    const std::uint32_t bits = value == 0.0F ? 0 : __float_as_uint(value);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float value_of(std::uint32_t order) {
    return __uint_as_float((order & 0x80000000U) != 0 ? order & 0x7fffffffU : ~order);
}

__device__ __forceinline__ float greatest_logit(const RowState& state) {
    return value_of(static_cast<std::uint32_t>(state.best >> 32));
}
__device__ __forceinline__ std::int32_t most_probable(const RowState& state) {
    return static_cast<std::int32_t>(~static_cast<std::uint32_t>(state.best));
}

/// Flushes denormals: the host flushes f64 too, a GPU only f32.
__device__ __forceinline__ double flushed(double value) {
    constexpr double min_normal = std::numeric_limits<double>::min();
    return value < min_normal && value > -min_normal ? 0.0 : value;
}

__device__ __forceinline__ double log_weight(const ChosenRow& row, float logit) {
    const auto exact = static_cast<double>(logit);
    return row.temperature == 1.0 ? exact : exact / row.temperature;
}
/// Relative to the greatest log weight.
__device__ __forceinline__ double weight_of(const ChosenRow& row, float logit, double greatest) {
    return scalar::exp_nonpositive(log_weight(row, logit) - greatest);
}
/// Way::eta: whether a token of this weight survives.
__device__ __forceinline__ bool reaches_eta(const RowState& state, double weight) {
    return flushed(weight / state.sum) >= state.least;
}
/// A token's term of the negative entropy.
__device__ __forceinline__ double entropy_term(double q) {
    return q > 0 ? flushed(q * scalar::det_log(q)) : 0.0;
}
__device__ __forceinline__ double eta_of(const ChosenRow& row, double entropy) {
    const double spread = row.eta_root * scalar::det_exp(-entropy);
    return spread < row.eta ? spread : row.eta;
}

/// The logits of a kept distribution.
__host__ __device__ __forceinline__ float* logits_of(KeptDistribution* kept) {
    return reinterpret_cast<float*>(kept + 1);
}
__host__ __device__ __forceinline__ const float* logits_of(const KeptDistribution* kept) {
    return reinterpret_cast<const float*>(kept + 1);
}

/// The random words of four adjacent tokens.
__device__ __forceinline__ NoiseWords words_of(const ChosenRow& row, std::int64_t token) {
    return noise_words(row.noise_key, {.position = row.position,
                                       .purpose = row.purpose,
                                       .node = row.node,
                                       .block = static_cast<std::uint32_t>(token / 4)});
}
__device__ __forceinline__ Draw draw_of(const ChosenRow& row, float logit, std::int32_t token, std::uint32_t bits) {
    return {log_weight(row, logit) + (row.silent ? 0.0 : static_cast<double>(gumbel_of_bits(bits))), token};
}
__device__ __forceinline__ Draw draw_of(const ChosenRow& row, float logit, std::int32_t token) {
    if (row.silent) return draw_of(row, logit, token, 0);
    const NoiseWords words = words_of(row, token);
    const std::uint32_t low = token % 2 == 0 ? words.word[0] : words.word[1],
                        high = token % 2 == 0 ? words.word[2] : words.word[3];  // no index: words stay in registers
    return draw_of(row, logit, token, token % 4 < 2 ? low : high);
}

__device__ __forceinline__ Draw no_draw() {
    return {-std::numeric_limits<double>::infinity(), std::numeric_limits<std::int32_t>::max()};
}
__device__ __forceinline__ bool is_draw(const Draw& draw) {
    return draw.score > -std::numeric_limits<double>::infinity();
}
/// The sentinel that all draws come after.
__device__ __forceinline__ Draw first_of_all() {
    return {std::numeric_limits<double>::infinity(), -1};
}
/// Whether `draw` comes after `before` in the order of draws.
__device__ __forceinline__ bool comes_after(const Draw& draw, const Draw& before) {
    return draw.score < before.score || (draw.score == before.score && draw.token > before.token);
}
__device__ __forceinline__ Draw better_of(const Draw& a, const Draw& b) {
    const bool second = b.score > a.score || (b.score == a.score && b.token < a.token);
    return second ? b : a;
}

/// Returns the best of a warp's draws to all its lanes.
__device__ __forceinline__ Draw warp_best(Draw best) {
    for (int lanes = 16; lanes > 0; lanes /= 2)
        best = better_of(
            best, {__shfl_xor_sync(full_warp, best.score, lanes), __shfl_xor_sync(full_warp, best.token, lanes)});
    return best;
}

/// Returns the best of all threads' draws to all threads. room: [blockDim.x / 32].
__device__ inline Draw block_best(const Draw& mine, Draw* room) {
    const Draw of_warp = warp_best(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return warp_best(threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : no_draw());
}

}  // namespace longhaul::kernels::cuda
