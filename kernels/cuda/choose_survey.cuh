// Kernels that read whole rows (choose.cu), many blocks per row: the greatest logit, sums, histograms of distances to
// it, the tokens that may survive filters, and the logits that survive comparisons.
#pragma once

#include "kernels/cuda/choose_part.hpp"
#include "kernels/cuda/choose_rows.cuh"

namespace longhaul::kernels::cuda {

constexpr std::int64_t part_tokens = 4096;  ///< tokens per block, in kernels without sums in lanes
constexpr int num_bins = 1024;
constexpr double bins_per_nat = 32;
constexpr double mass_unit = 4294967296.0;  ///< mass of a weight of 1

struct Histogram {
    Word mass[num_bins];            ///< sum of weights, each rounded down; zeros if top-k needs counts
    std::uint32_t count[num_bins];  ///< tokens; zeros if top-p needs masses
};

static_assert(sizeof(ChosenRow) + 2048 * (sizeof(std::int32_t) + sizeof(float)) + (1 + max_draws) * sizeof(Drawn) +
                      sizeof(RowState) + sizeof(Histogram) + vocabulary_lanes * sizeof(double) +
                      max_candidates * sizeof(std::int32_t) + max_draws * 256 * sizeof(Draw) <=
                  ChoosePart::row_bytes,
              "with 2048 penalised tokens, and draws of 256 parts, a million tokens");

/// Arguments of all kernels. Arrays have one element per row; draws have one per part.
struct ChooseCall {
    const ChosenRow* rows;
    RowState* states;
    Histogram* histograms;
    double* lanes;        ///< [rows, vocabulary_lanes]
    std::int32_t* lists;  ///< [rows, max_candidates]
    Draw* draws;          ///< [rows, searches, num_parts]
    std::int32_t* tokens;
    Drawn* drawn;  ///< [rows, 1 + num_draws], instead of tokens
    std::int64_t vocab_size;
    int num_parts, num_draws;

    [[nodiscard]] __host__ __device__ int num_searches() const { return num_draws > 0 ? num_draws : 1; }
    [[nodiscard]] __device__ Draw* draws_of(int search) const {
        return draws + (std::int64_t{blockIdx.x} * num_searches() + search) * num_parts;
    }
    [[nodiscard]] __device__ double* lanes_of_row() const {
        return lanes + std::int64_t{blockIdx.x} * vocabulary_lanes;
    }
};

__global__ void __launch_bounds__(choose_threads) penalise_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.num_penalised; i += choose_threads) {
        float& logit = row.logits[row.penalised[i]];
        row.saved[i] = logit;
        const float x = taken(logit);
        logit = x > 0.0F ? x / row.penalty : x * row.penalty;  // an overflow is capped by `taken` when it is read
    }
}

/// The tokens of a row that a block processes.
struct Range {
    std::int64_t first, end;
};
__device__ __forceinline__ Range part_of(const ChooseCall& call) {
    const std::int64_t first = std::int64_t{blockIdx.y} * part_tokens, end = first + part_tokens;
    return {first, end < call.vocab_size ? end : call.vocab_size};
}

__global__ void __launch_bounds__(choose_threads) scan_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way == Way::none) return;
    const Range part = part_of(call);
    Word best = 0;
    std::uint32_t num_possible = 0;
#pragma unroll 8
    for (std::int64_t v = part.first + threadIdx.x; v < part.end; v += choose_threads) {
        const float logit = taken(row.logits[v]);
        if (!possible(logit)) continue;
        const Word one = Word{order_of(logit)} << 32 | ~static_cast<std::uint32_t>(v);
        best = one > best ? one : best;
        ++num_possible;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const Word other = __shfl_xor_sync(full_warp, best, lanes);
        best = other > best ? other : best;
        num_possible += __shfl_xor_sync(full_warp, num_possible, lanes);
    }
    if (threadIdx.x % warpSize != 0) return;
    atomicMax(&call.states[blockIdx.x].best, best);
    atomicAdd(&call.states[blockIdx.x].num_possible, num_possible);
}

/// Histogram bin, by distance to the greatest logit; monotone.
__device__ __forceinline__ int bin_of(const ChosenRow& row, float greatest, float logit) {
    const float distance = (greatest - logit) * static_cast<float>(bins_per_nat / row.temperature);
    return distance < static_cast<float>(num_bins - 1) ? static_cast<int>(distance) : num_bins - 1;
}

/// A block's part of a histogram: of masses if the row needs its sum, of counts otherwise. A mass is in two words:
/// there are no additions of 64-bit integers in shared memory, and an exchange loop is slow where tokens meet.
struct BlockHistogram {
    unsigned low[num_bins], high[num_bins];

    __device__ void clear() {
        for (unsigned bin = threadIdx.x; bin < num_bins; bin += blockDim.x) low[bin] = high[bin] = 0;
    }
    __device__ void add(int bin, Word amount) {
        const auto part = static_cast<unsigned>(amount);
        const unsigned before = atomicAdd(&low[bin], part);
        const auto carried = static_cast<unsigned>(amount >> 32) + (before + part < before ? 1U : 0U);
        if (carried != 0) atomicAdd(&high[bin], carried);
    }
    __device__ void merge_into(Histogram& all, bool masses) const {
        for (unsigned bin = threadIdx.x; bin < num_bins; bin += blockDim.x) {
            const Word amount = Word{high[bin]} << 32 | low[bin];
            if (amount == 0) continue;
            if (masses) {
                atomicAdd(&all.mass[bin], amount);
            } else {
                atomicAdd(&all.count[bin], low[bin]);
            }
        }
    }
};

/// Blocks per row that compute lanes. Each merges a histogram into the row's, so there are few if rows are many.
inline unsigned survey_blocks(std::int64_t num_rows) {
    return num_rows <= 16 ? num_lane_groups : num_lane_groups / 4;
}

/// Lanes of the weights, and the histogram.
__global__ void __launch_bounds__(max_lane_threads) survey_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (!row.counts_bins && !row.adds_up) return;
    auto* const terms = shared_memory<double>();
    auto& here = *reinterpret_cast<BlockHistogram*>(terms + lane_tile_bytes(1) / sizeof(double));
    if (row.counts_bins) here.clear();
    __syncthreads();
    const float greatest = greatest_logit(call.states[blockIdx.x]);
    const double greatest_weight = log_weight(row, greatest);
    const auto weight_at = [&](std::int64_t token) {
        const float logit = taken(row.logits[token]);
        if (!possible(logit)) return 0.0;
        const double weight = weight_of(row, logit, greatest_weight);
        if (row.counts_bins) here.add(bin_of(row, greatest, logit), static_cast<Word>(weight * mass_unit));
        return weight;
    };
    if (row.adds_up) {
        for (unsigned group = blockIdx.y; group < num_lane_groups; group += gridDim.y)
            sum_lanes(call.vocab_size, group, terms, call.lanes_of_row(), weight_at);
    } else {
        const std::int64_t step = std::int64_t{gridDim.y} * blockDim.x;
#pragma unroll 4
        for (std::int64_t v = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x; v < call.vocab_size; v += step) {
            const float logit = taken(row.logits[v]);
            if (possible(logit)) atomicAdd(&here.low[bin_of(row, greatest, logit)], 1U);
        }
    }
    if (!row.counts_bins) return;
    __syncthreads();
    here.merge_into(call.histograms[blockIdx.x], row.adds_up);
}

/// Returns the sum of the row's lanes to all threads. shared: [vocabulary_lanes].
__device__ inline double sum_of_row(const ChooseCall& call, double* shared) {
    return sum_of_lanes(call.lanes_of_row(), shared);
}

/// The sum of the values of this lane of a warp and those below it.
__device__ inline Word running_total(Word value) {
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const Word below = __shfl_up_sync(full_warp, value, lanes);
        if (threadIdx.x % 32 >= static_cast<unsigned>(lanes)) value += below;
    }
    return value;
}

/// The first bin at which the running total reaches `wanted`; the last bin if none does. Called by one whole warp.
template <class Amount>
__device__ int cut_of(Word wanted, Amount amount_of) {
    constexpr int group = num_bins / 32;
    const auto lane = static_cast<int>(threadIdx.x);
    Word mine = 0;
#pragma unroll 8
    for (int bin = 0; bin < group; ++bin) mine += amount_of(lane * group + bin);
    const Word up_to = running_total(mine);
    const unsigned groups = __ballot_sync(full_warp, up_to >= wanted ? 1 : 0);
    const int reached = groups != 0 ? __ffs(static_cast<int>(groups)) - 1 : 31;
    const Word before = __shfl_sync(full_warp, up_to - mine, reached);
    static_assert(group == 32);  // one bin per lane
    const Word total = before + running_total(amount_of(reached * group + lane));
    const unsigned bins = __ballot_sync(full_warp, total >= wanted ? 1 : 0);
    return reached * group + (bins != 0 ? __ffs(static_cast<int>(bins)) - 1 : group - 1);
}

__global__ void __launch_bounds__(choose_threads) settle_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    RowState& state = call.states[blockIdx.x];
    const Histogram& histogram = call.histograms[blockIdx.x];
    const double sum = row.adds_up ? sum_of_row(call, shared_memory<double>()) : 0.0;
    if (threadIdx.x == 0 && row.adds_up) state.sum = sum;
    if (threadIdx.x >= 32 || !row.counts_bins) return;
    int cut;
    if (row.adds_up) {
        // Slightly more than top_p: masses are rounded down, and the exact sum of q is not 1.
        const double wanted = row.top_p * (1.0 + 1e-6) * sum * mass_unit + 1.0;
        cut = cut_of(static_cast<Word>(wanted), [&](int bin) { return histogram.mass[bin]; });
    } else {
        cut = cut_of(static_cast<Word>(row.top_k), [&](int bin) { return Word{histogram.count[bin]}; });
    }
    if (threadIdx.x == 0) state.cut = cut;
}

/// Lanes of the negative entropy, for rows with eta alone.
__global__ void __launch_bounds__(max_lane_threads) entropy_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state)), all = state.sum;
    sum_lanes(call.vocab_size, blockIdx.y, shared_memory<double>(), call.lanes_of_row(), [&](std::int64_t token) {
        const float logit = taken(row.logits[token]);
        return possible(logit) ? entropy_term(flushed(weight_of(row, logit, greatest) / all)) : 0.0;
    });
}

__global__ void __launch_bounds__(choose_threads) settle_eta_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta) return;
    RowState& state = call.states[blockIdx.x];
    const double entropy = -sum_of_row(call, shared_memory<double>());
    if (threadIdx.x != 0) return;
    state.least = eta_of(row, entropy);
    // The greatest probability is that of a weight of 1.
    if (flushed(1.0 / state.sum) < state.least) state.undecided = 1;
}

/// Lanes of the sum of weights that survive eta alone.
__global__ void __launch_bounds__(max_lane_threads) survivors_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta || !row.weighs) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state));
    sum_lanes(call.vocab_size, blockIdx.y, shared_memory<double>(), call.lanes_of_row(), [&](std::int64_t token) {
        const float logit = taken(row.logits[token]);
        if (!possible(logit)) return 0.0;
        const double weight = weight_of(row, logit, greatest);
        return reaches_eta(state, weight) ? weight : 0.0;
    });
}

__global__ void __launch_bounds__(choose_threads) settle_survivors_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta || !row.weighs) return;
    const double sum = sum_of_row(call, shared_memory<double>());
    if (threadIdx.x == 0) call.states[blockIdx.x].survivors = sum;
}

/// Sum of the weights of all survivors, for rows whose survivors are not gathered.
__device__ __forceinline__ double sum_of_survivors(const ChosenRow& row, const RowState& state) {
    return row.way == Way::eta ? state.survivors : state.sum;
}

/// Writes the logits of a kept distribution: those of survivors that are found by comparison. All others become -inf
/// for now.
__global__ void __launch_bounds__(choose_threads) keep_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.keep == nullptr) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state));
    float* const to = logits_of(row.keep);
    const Range part = part_of(call);
#pragma unroll 4
    for (std::int64_t v = part.first + threadIdx.x; v < part.end; v += choose_threads) {
        const float logit = taken(row.logits[v]);
        const bool stays =
            possible(logit) &&
            (row.way == Way::all || (row.way == Way::eta && reaches_eta(state, weight_of(row, logit, greatest))));
        to[v] = stays ? logit : minus_infinity();
    }
}

/// If min-p is the first filter: no smaller logit can pass.
__device__ __forceinline__ float min_logit(const ChosenRow& row, float greatest) {
    const double cut = static_cast<double>(greatest) + row.temperature * row.log_min_p;
    const auto rounded = static_cast<float>(cut);
    return static_cast<double>(rounded) > cut ? value_of(order_of(rounded) - 1) : rounded;
}

__global__ void __launch_bounds__(choose_threads) gather_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::few) return;
    RowState& state = call.states[blockIdx.x];
    std::int32_t* const list = call.lists + std::int64_t{blockIdx.x} * max_candidates;
    const Range part = part_of(call);
    const float greatest = greatest_logit(state);
    const float least = row.counts_bins ? minus_infinity() : min_logit(row, greatest);
    const int cut = row.counts_bins ? state.cut : num_bins;
#pragma unroll 8
    for (std::int64_t v = part.first + threadIdx.x; v < part.end; v += choose_threads) {
        const float logit = taken(row.logits[v]);
        if (!possible(logit) || logit < least) continue;
        if (row.counts_bins && bin_of(row, greatest, logit) > cut) continue;
        const std::uint32_t place = atomicAdd(&state.num_candidates, 1U);
        if (place < max_candidates) list[place] = static_cast<std::int32_t>(v);
    }
}

}  // namespace longhaul::kernels::cuda
