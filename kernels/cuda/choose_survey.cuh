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
    Word mass[num_bins];            ///< sum of weights, each rounded down
    std::uint32_t count[num_bins];  ///< tokens
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

/// Each thread computes one lane of the sum.
__global__ void __launch_bounds__(lane_threads) survey_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (!row.counts_bins && !row.adds_up) return;
    Histogram& here = *shared_memory<Histogram>();
    for (int bin = static_cast<int>(threadIdx.x); bin < num_bins; bin += lane_threads) {
        here.mass[bin] = 0;
        here.count[bin] = 0;
    }
    __syncthreads();
    const float greatest = greatest_logit(call.states[blockIdx.x]);
    const double greatest_weight = log_weight(row, greatest);
    const unsigned lane = blockIdx.y * lane_threads + threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const float logit = taken(row.logits[v]);
        if (!possible(logit)) continue;
        const double weight = row.adds_up ? weight_of(row, logit, greatest_weight) : 0.0;
        sum += weight;
        if (!row.counts_bins) continue;
        const int bin = bin_of(row, greatest, logit);
        atomicAdd(&here.count[bin], 1U);
        if (row.adds_up) atomicAdd(&here.mass[bin], static_cast<Word>(weight * mass_unit));
    }
    call.lanes[std::int64_t{blockIdx.x} * vocabulary_lanes + lane] = sum;
    __syncthreads();
    Histogram& all = call.histograms[blockIdx.x];
    for (int bin = static_cast<int>(threadIdx.x); bin < num_bins && row.counts_bins; bin += lane_threads) {
        if (here.count[bin] == 0) continue;
        atomicAdd(&all.count[bin], here.count[bin]);
        atomicAdd(&all.mass[bin], here.mass[bin]);
    }
}

/// Returns the sum of the row's lanes to all threads. shared: [vocabulary_lanes].
__device__ inline double sum_of_row(const ChooseCall& call, double* shared) {
    return sum_of_lanes(call.lanes + std::int64_t{blockIdx.x} * vocabulary_lanes, shared);
}

/// The first bin at which the running total reaches `wanted`; the last bin if none does. room: [32].
template <class Amount>
__device__ int cut_of(Word wanted, Word* room, Amount amount_of) {
    constexpr int group = num_bins / 32;
    if (threadIdx.x < 32) {
        Word sum = 0;
        for (int bin = 0; bin < group; ++bin) sum += amount_of(static_cast<int>(threadIdx.x) * group + bin);
        room[threadIdx.x] = sum;
    }
    __syncthreads();
    Word sum = 0;
    int bin = 0;
    while (bin < num_bins - group && sum + room[bin / group] < wanted) {
        sum += room[bin / group];
        bin += group;
    }
    while (bin < num_bins - 1 && (sum += amount_of(bin)) < wanted) ++bin;
    return bin;
}

__global__ void __launch_bounds__(choose_threads) settle_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    RowState& state = call.states[blockIdx.x];
    auto* const lanes = shared_memory<double>();
    auto* const room = reinterpret_cast<Word*>(lanes + vocabulary_lanes);
    const Histogram& histogram = call.histograms[blockIdx.x];
    if (row.adds_up) {
        const double sum = sum_of_row(call, lanes);
        if (threadIdx.x == 0) state.sum = sum;
        if (!row.counts_bins) return;
        // Slightly more than top_p: masses are rounded down, and the exact sum of q is not 1.
        const double wanted = row.top_p * (1.0 + 1e-6) * sum * mass_unit + 1.0;
        const int cut = cut_of(static_cast<Word>(wanted), room, [&](int bin) { return histogram.mass[bin]; });
        if (threadIdx.x == 0) state.cut = cut;
    } else if (row.counts_bins) {
        const auto wanted = static_cast<Word>(row.top_k);
        const int cut = cut_of(wanted, room, [&](int bin) { return Word{histogram.count[bin]}; });
        if (threadIdx.x == 0) state.cut = cut;
    }
}

/// Lanes of the negative entropy, for rows with eta alone.
__global__ void __launch_bounds__(lane_threads) entropy_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state)), all = state.sum;
    const unsigned lane = blockIdx.y * lane_threads + threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const float logit = taken(row.logits[v]);
        if (possible(logit)) sum += entropy_term(flushed(weight_of(row, logit, greatest) / all));
    }
    call.lanes[std::int64_t{blockIdx.x} * vocabulary_lanes + lane] = sum;
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
__global__ void __launch_bounds__(lane_threads) survivors_kernel(ChooseCall call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta || !row.weighs) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state));
    const unsigned lane = blockIdx.y * lane_threads + threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const float logit = taken(row.logits[v]);
        if (!possible(logit)) continue;
        const double weight = weight_of(row, logit, greatest);
        if (reaches_eta(state, weight)) sum += weight;
    }
    call.lanes[std::int64_t{blockIdx.x} * vocabulary_lanes + lane] = sum;
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
