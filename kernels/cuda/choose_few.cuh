// Filters a row's candidates, by one block: top-k, top-p, min-p, eta, each applied to what the previous one kept, then
// the draw. Candidates are all tokens that may survive, in any order. Sums and comparisons are the same as the host
// computes over the whole vocabulary. Called by the decide kernel (choose.cu).
#pragma once

#include "kernels/cuda/choose_rows.cuh"

namespace longhaul::kernels::cuda {

/// The candidates in shared memory. A filtered candidate has a negative weight.
struct Few {
    double* weight;             ///< [max_candidates]
    std::int32_t* token;        ///< [max_candidates]
    std::uint16_t* order;       ///< [max_candidates]: candidate indices, in the order of the last sort
    std::uint16_t* lane_order;  ///< [max_candidates]: candidate indices by lane of the sum, then token
    double* lanes;              ///< [vocabulary_lanes]
    Draw* room;                 ///< [choose_threads / 32]
    std::int32_t* counter;      ///< [1]
    int size;                   ///< number of candidates
    int left;                   ///< candidates that are not filtered
    double sum;                 ///< of the survivors' weights; set only if row.weighs
};

constexpr std::size_t few_bytes = max_candidates * (sizeof(double) + sizeof(std::int32_t) + 2 * sizeof(std::uint16_t)) +
                                  vocabulary_lanes * sizeof(double) + choose_threads / 32 * sizeof(Draw) + 16;

__device__ inline Few few_in(unsigned char* shared) {
    Few few{};
    few.weight = reinterpret_cast<double*>(shared);
    few.lanes = few.weight + max_candidates;
    few.room = reinterpret_cast<Draw*>(few.lanes + vocabulary_lanes);
    few.token = reinterpret_cast<std::int32_t*>(few.room + choose_threads / 32);
    few.counter = few.token + max_candidates;
    few.order = reinterpret_cast<std::uint16_t*>(few.counter + 4);
    few.lane_order = few.order + max_candidates;
    return few;
}

/// Up to this size, counting what comes before each index takes less time than the barriers of a sorting network.
constexpr int max_ranked = 128;

template <class Less>
__device__ void rank_places(std::uint16_t* order, int size, Less less) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
        int rank = 0;
#pragma unroll 4
        for (int other = 0; other < size; ++other)
            rank += less(static_cast<std::uint16_t>(other), static_cast<std::uint16_t>(i)) ? 1 : 0;
        order[rank] = static_cast<std::uint16_t>(i);
    }
    __syncthreads();
}

/// Sorts the indices 0..size-1 by `less`, a total order. Called by the whole block.
template <class Less>
__device__ void sort_places(std::uint16_t* order, int size, Less less) {
    if (size <= max_ranked) return rank_places(order, size, less);
    int padded = 1;
    while (padded < size) padded *= 2;
    const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < padded; i += threads) order[i] = static_cast<std::uint16_t>(i);
    const auto before = [&](std::uint16_t a, std::uint16_t b) { return a < size && (b >= size || less(a, b)); };
    for (int run = 2; run <= padded; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = thread; i < padded / 2; i += threads) {
                const int low = 2 * i - (i & (step - 1)), high = low + step;
                const std::uint16_t a = order[low], b = order[high];
                if (before(b, a) != ((low & run) == 0)) continue;
                order[low] = b;
                order[high] = a;
            }
        }
    }
    __syncthreads();
}

/// By descending weight, then ascending token.
__device__ inline void sort_by_weight(Few& few) {
    sort_places(few.order, few.size, [&](std::uint16_t a, std::uint16_t b) {
        return few.weight[a] != few.weight[b] ? few.weight[a] > few.weight[b] : few.token[a] < few.token[b];
    });
}

/// Filters all but the first `count` of the order.
__device__ inline void keep_first(Few& few, int count) {
    __syncthreads();  // other warps may still read weights that are filtered here
    for (int i = count + static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x))
        few.weight[few.order[i]] = -1.0;
    few.left = count;
    __syncthreads();
}

__device__ inline void sort_by_lane(Few& few) {
    sort_places(few.lane_order, few.size, [&](std::uint16_t a, std::uint16_t b) {
        const int lane_a = few.token[a] % vocabulary_lanes, lane_b = few.token[b] % vocabulary_lanes;
        return lane_a != lane_b ? lane_a < lane_b : few.token[a] < few.token[b];
    });
}

/// The sum of term(weight) over the remaining candidates, in the order of numerics.hpp. Call after sort_by_lane.
template <class Term>
__device__ double sum_over_tokens(const Few& few, Term term) {
    const auto lane_at = [&](int i) { return few.token[few.lane_order[i]] % vocabulary_lanes; };
    __syncthreads();
    for (int lane = static_cast<int>(threadIdx.x); lane < vocabulary_lanes; lane += static_cast<int>(blockDim.x)) {
        int first = 0;
        for (int end = few.size; first < end;) {
            const int middle = (first + end) / 2;
            if (lane_at(middle) < lane) {
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        double sum = 0;
        for (int i = first; i < few.size && lane_at(i) == lane; ++i) {
            const double weight = few.weight[few.lane_order[i]];
            if (weight >= 0) sum += term(weight);
        }
        few.lanes[lane] = sum;
    }
    const double sum = tree_of_lanes(few.lanes);
    __syncthreads();
    return sum;
}

__device__ inline double sum_of_weights(const Few& few) {
    return sum_over_tokens(few, [](double weight) { return weight; });
}

__device__ inline void divide_weights(const Few& few, double by) {
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.weight[i] >= 0) few.weight[i] = flushed(few.weight[i] / by);
    }
    __syncthreads();
}

/// Number of sorted weights that reach top_p, summed one by one; -1: the gathered candidates do not suffice to decide.
/// Called by the whole block. One thread adds, because every sum is an operand of the next; all threads compare.
__device__ inline int prefix_of(const Few& few, const ChosenRow& row, std::int64_t all) {
    const double hopeless = (1.0 - row.top_p) / static_cast<double>(all);  // the host ignores smaller weights
    double before = 0;
    for (int first = 0; first < few.left; first += choose_threads) {
        const auto weight_at = [&](int i) { return first + i < few.left ? few.weight[few.order[first + i]] : 0.0; };
        const auto thread = static_cast<int>(threadIdx.x);
        __syncthreads();  // all threads have read the sums
        few.lanes[thread] = weight_at(thread);
        __syncthreads();
        if (thread == 0) run_sums(few.lanes, choose_threads, before);
        __syncthreads();
        for (int i = thread % 32; i < choose_threads; i += 32) {
            const int place = first + i;
            const double sum = i == 0 ? before : few.lanes[i - 1];
            const bool ends = place < few.left && !(sum < row.top_p) && place >= row.min_keep;
            const bool fails = place < few.left && weight_at(i) < hopeless;
            const unsigned ending = __ballot_sync(full_warp, ends ? 1 : 0),
                           deciding = ending | __ballot_sync(full_warp, fails ? 1 : 0);
            if (deciding == 0) continue;
            const int at = __ffs(static_cast<int>(deciding)) - 1;
            return (ending >> at & 1U) != 0 ? place - thread % 32 + at : -1;
        }
        before = few.lanes[choose_threads - 1];
    }
    const bool enough = !(before < row.top_p) && few.left >= row.min_keep;
    return enough || few.left == all ? few.left : -1;
}

/// Keeps weights of at least `least`. Returns false if fewer than min_keep remain; the host decides which others stay.
__device__ inline bool keep_above(Few& few, const ChosenRow& row, double least) {
    if (threadIdx.x == 0) few.counter[0] = 0;
    __syncthreads();
    unsigned mine = 0;
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.weight[i] < 0) continue;
        if (few.weight[i] >= least) {
            ++mine;
        } else {
            few.weight[i] = -1.0;
        }
    }
    atomicAdd(reinterpret_cast<unsigned*>(few.counter), mine);
    __syncthreads();
    const int kept = few.counter[0];
    __syncthreads();
    if (kept == 0 || (kept < row.min_keep && kept < few.left)) return false;
    few.left = kept;
    return true;
}

__device__ inline double greatest_weight(const Few& few) {
    Draw mine = no_draw();
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x))
        mine = better_of(mine, {few.weight[i], few.token[i]});
    return block_best(mine, few.room).score;
}

/// Keeps the `top_k` greatest logits.
__device__ inline void keep_top_k(Few& few, const ChosenRow& row) {
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x))
        few.weight[i] = static_cast<double>(taken(row.logits[few.token[i]]));
    __syncthreads();
    sort_by_weight(few);
    keep_first(few, static_cast<int>(row.top_k));
}

/// Normalizes with `state.sum` unless top-k ran before.
__device__ inline bool keep_top_p(Few& few, const ChosenRow& row, const RowState& state) {
    divide_weights(few, row.top_k > 0 ? sum_of_weights(few) : state.sum);
    sort_by_weight(few);
    const int kept = prefix_of(few, row, row.top_k > 0 ? few.left : state.num_possible);
    if (kept < 0) return false;
    keep_first(few, kept > 1 ? kept : 1);
    if (row.min_p > 0 || row.eta > 0) divide_weights(few, sum_of_weights(few));
    return true;
}

/// Recomputes the weights of the remaining candidates; filtered ones stay -1.
__device__ inline void weigh(const Few& few, const ChosenRow& row, const RowState& state) {
    const double greatest = log_weight(row, greatest_logit(state));
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.weight[i] >= 0) few.weight[i] = weight_of(row, taken(row.logits[few.token[i]]), greatest);
    }
    __syncthreads();
}

/// Applies the filters; returns false if the host must. If row.weighs, weights end as the survivors' probabilities.
__device__ inline bool filter(Few& few, const ChosenRow& row, const RowState& state) {
    const bool drops = row.top_k > 0 && row.top_k < state.num_possible;
    if (row.top_k == 0 && row.top_p >= 1.0 && few.left < row.min_keep) return false;  // min-p kept too few
    if (drops) keep_top_k(few, row);
    // Weights of the remaining candidates. Filters that compare weights alone need no sum.
    const double greatest = log_weight(row, greatest_logit(state));
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        const bool filtered = drops && i >= few.left;
        const int place = drops ? few.order[i] : i;
        few.weight[place] = filtered ? -1.0 : weight_of(row, taken(row.logits[few.token[place]]), greatest);
    }
    __syncthreads();
    if (row.top_p < 1.0 || row.eta > 0 || row.weighs) sort_by_lane(few);
    if (row.top_p < 1.0 && !keep_top_p(few, row, state)) return false;
    if (row.min_p > 0 && !keep_above(few, row, row.min_p * greatest_weight(few))) return false;
    if (row.eta > 0) {
        divide_weights(few, sum_of_weights(few));
        const double entropy = -sum_over_tokens(few, [](double q) { return entropy_term(q); });
        if (!keep_above(few, row, eta_of(row, entropy))) return false;
    }
    if (!row.weighs) return true;
    if (row.top_p < 1.0 || row.eta > 0) weigh(few, row, state);  // top-p and eta divided them
    few.sum = sum_of_weights(few);
    divide_weights(few, few.sum);
    return true;
}

/// Loads the row's candidates, `list` [num_candidates], and filters them; returns false if the host must.
__device__ inline bool take_few(Few& few, const ChosenRow& row, const RowState& state, const std::int32_t* list) {
    if (state.num_candidates > max_candidates) return false;
    few.size = few.left = static_cast<int>(state.num_candidates);
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) few.token[i] = list[i];
    __syncthreads();
    return filter(few, row, state);
}

/// The best draw among the remaining candidates that comes after `before`.
__device__ inline Draw next_of_few(const Few& few, const ChosenRow& row, const Draw& before) {
    Draw best = no_draw();
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.weight[i] < 0) continue;
        const Draw draw = draw_of(row, taken(row.logits[few.token[i]]), few.token[i]);
        if (comes_after(draw, before)) best = better_of(best, draw);
    }
    return block_best(best, few.room);
}

/// Most probable remaining token. It need not have the greatest logit: filters compare weights, and two logits that
/// hardly differ can have equal weights.
__device__ inline std::int32_t most_probable_of(const Few& few, const ChosenRow& row) {
    Draw best = no_draw();
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.weight[i] < 0) continue;
        best = better_of(best, {log_weight(row, taken(row.logits[few.token[i]])), few.token[i]});
    }
    return block_best(best, few.room).token;
}

/// The weight of a remaining token, returned to all threads.
__device__ inline double weight_in(const Few& few, std::int32_t token) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += static_cast<int>(blockDim.x)) {
        if (few.token[i] == token) few.lanes[0] = few.weight[i];
    }
    __syncthreads();
    return few.lanes[0];
}

}  // namespace longhaul::kernels::cuda
