// Tokens chosen from rows of logits: contextual penalty, temperature, top-k, top-p, min-p, eta, Gumbel noise, argmax,
// bit for bit as the host does it. A token a row goes to the host in the place of a vocabulary of logits.
//
// One row alone must not be one multiprocessor's work, so what reads the whole row is spread over many blocks, and what
// comes out of it is independent of their order: greatest numbers, counts, whole numbers added; and sums of doubles in
// 1024 lanes (numerics.hpp), each the work of one thread. Kernels follow each other:
//   penalise  the penalised tokens' logits, in place (decide puts back what stood there)
//   scan      the greatest logit
//   survey    lanes of the sum of weights; a histogram of distances to the greatest logit: how many tokens, what mass
//   settle    the sum; the bin down to which top-k or top-p may reach
//   gather    tokens of these bins, in any order: a few hundred as a rule
//   decide    one block a row filters these in shared memory (choose_few.cuh), and draws
// Without filters, or with eta alone, survivors are many and found by comparison: `search` takes the place of gather,
// and leaves out logarithms where the noise's order of magnitude tells that a token cannot win. Of several draws each
// is a search for the best one behind the last.
//
// A row's distribution can be kept: `keep` copies the logits that survive comparisons, decide those that it filtered.
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/cuda/choose_few.cuh"
#include "kernels/cuda/cuda_state.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t part_tokens = 4096;  ///< of a row, for a block that adds nothing up
constexpr int lanes_a_block = 128;
constexpr int num_bins = 1024;
constexpr double bins_a_nat = 32;
constexpr double mass_unit = 4294967296.0;  ///< of a weight of 1

struct Histogram {
    Word mass[num_bins];            ///< of weights, rounded down
    std::uint32_t count[num_bins];  ///< tokens
};

static_assert(sizeof(ChosenRow) + 2048 * (sizeof(std::int32_t) + sizeof(float)) + (1 + most_draws) * sizeof(Drawn) +
                      sizeof(RowState) + sizeof(Histogram) + vocabulary_lanes * sizeof(double) +
                      most_candidates * sizeof(std::int32_t) + most_draws * 256 * sizeof(Draw) <=
                  ChoosePart::row_bytes,
              "with 2048 penalised tokens, and draws of 256 parts, a million tokens");

/// What all kernels are told. One of each a row; of draws, one a part.
struct Call {
    const ChosenRow* rows;
    RowState* states;
    Histogram* histograms;
    double* lanes;        ///< [rows, vocabulary_lanes]
    std::int32_t* lists;  ///< [rows, most_candidates]
    Draw* draws;          ///< [rows, searches, num_parts]
    std::int32_t* tokens;
    Drawn* drawn;  ///< [rows, 1 + num_draws], in the place of tokens
    std::int64_t vocab_size;
    int num_parts, num_draws;

    [[nodiscard]] __host__ __device__ int num_searches() const { return num_draws > 0 ? num_draws : 1; }
    [[nodiscard]] __device__ Draw* draws_of(int search) const {
        return draws + (std::int64_t{blockIdx.x} * num_searches() + search) * num_parts;
    }
};

__global__ void __launch_bounds__(choose_threads) penalise_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.num_penalised; i += choose_threads) {
        float& logit = row.logits[row.penalised[i]];
        row.saved[i] = logit;
        const float x = taken(logit);
        logit = x > 0.0F ? x / row.penalty : x * row.penalty;
        // A penalty below 1 can push a huge logit to infinity, where the host's arithmetic ends in NaN.
        if (logit > std::numeric_limits<float>::max()) call.states[blockIdx.x].undecided = 1;
    }
}

/// Tokens of a block's part of the row.
struct Range {
    std::int64_t first, end;
};
__device__ __forceinline__ Range part_of(const Call& call) {
    const std::int64_t first = std::int64_t{blockIdx.y} * part_tokens, end = first + part_tokens;
    return {first, end < call.vocab_size ? end : call.vocab_size};
}

__global__ void __launch_bounds__(choose_threads) scan_kernel(Call call) {
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

/// By the distance to the greatest logit, monotone.
__device__ __forceinline__ int bin_of(const ChosenRow& row, float greatest, float logit) {
    const float distance = (greatest - logit) * static_cast<float>(bins_a_nat / row.temperature);
    return distance < static_cast<float>(num_bins - 1) ? static_cast<int>(distance) : num_bins - 1;
}

/// A thread is a lane of the sum.
__global__ void __launch_bounds__(lanes_a_block) survey_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (!row.counts_bins && !row.adds_up) return;
    Histogram& here = *shared_memory<Histogram>();
    for (int bin = static_cast<int>(threadIdx.x); bin < num_bins; bin += lanes_a_block) {
        here.mass[bin] = 0;
        here.count[bin] = 0;
    }
    __syncthreads();
    const float greatest = greatest_logit(call.states[blockIdx.x]);
    const double greatest_weight = log_weight(row, greatest);
    const unsigned lane = blockIdx.y * lanes_a_block + threadIdx.x;
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
    for (int bin = static_cast<int>(threadIdx.x); bin < num_bins && row.counts_bins; bin += lanes_a_block) {
        if (here.count[bin] == 0) continue;
        atomicAdd(&all.count[bin], here.count[bin]);
        atomicAdd(&all.mass[bin], here.mass[bin]);
    }
}

/// The sum of the row's lanes, to all threads. shared: [vocabulary_lanes].
__device__ double sum_of_lanes(const Call& call, double* shared) {
    const double* const lanes = call.lanes + std::int64_t{blockIdx.x} * vocabulary_lanes;
    for (unsigned i = threadIdx.x; i < vocabulary_lanes; i += choose_threads) shared[i] = lanes[i];
    return tree_of_lanes(shared);
}

/// The first bin at which `wanted` is reached; the last one where it is not. room: [32].
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

__global__ void __launch_bounds__(choose_threads) settle_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    RowState& state = call.states[blockIdx.x];
    auto* const lanes = shared_memory<double>();
    auto* const room = reinterpret_cast<Word*>(lanes + vocabulary_lanes);
    const Histogram& histogram = call.histograms[blockIdx.x];
    if (row.adds_up) {
        const double sum = sum_of_lanes(call, lanes);
        if (threadIdx.x == 0) state.sum = sum;
        if (!row.counts_bins) return;
        // A little more than top_p: masses are rounded down, and the exact sum of q is not 1.
        const double wanted = row.top_p * (1.0 + 1e-6) * sum * mass_unit + 1.0;
        const int cut = cut_of(static_cast<Word>(wanted), room, [&](int bin) { return histogram.mass[bin]; });
        if (threadIdx.x == 0) state.cut = cut;
    } else if (row.counts_bins) {
        const auto wanted = static_cast<Word>(row.top_k);
        const int cut = cut_of(wanted, room, [&](int bin) { return Word{histogram.count[bin]}; });
        if (threadIdx.x == 0) state.cut = cut;
    }
}

/// Lanes of minus the entropy, for rows with eta alone.
__global__ void __launch_bounds__(lanes_a_block) entropy_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state)), all = state.sum;
    const unsigned lane = blockIdx.y * lanes_a_block + threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const float logit = taken(row.logits[v]);
        if (possible(logit)) sum += entropy_term(flushed(weight_of(row, logit, greatest) / all));
    }
    call.lanes[std::int64_t{blockIdx.x} * vocabulary_lanes + lane] = sum;
}

__global__ void __launch_bounds__(choose_threads) settle_eta_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta) return;
    RowState& state = call.states[blockIdx.x];
    const double entropy = -sum_of_lanes(call, shared_memory<double>());
    if (threadIdx.x != 0) return;
    state.least = eta_of(row, entropy);
    // The greatest probability, that of a weight of 1.
    if (flushed(1.0 / state.sum) < state.least) state.undecided = 1;
}

/// Lanes of the weights that eta alone leaves.
__global__ void __launch_bounds__(lanes_a_block) survivors_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta || !row.weighs) return;
    const RowState& state = call.states[blockIdx.x];
    const double greatest = log_weight(row, greatest_logit(state));
    const unsigned lane = blockIdx.y * lanes_a_block + threadIdx.x;
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

__global__ void __launch_bounds__(choose_threads) settle_survivors_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::eta || !row.weighs) return;
    const double sum = sum_of_lanes(call, shared_memory<double>());
    if (threadIdx.x == 0) call.states[blockIdx.x].survivors = sum;
}

/// Of all survivors, where they were not gathered.
__device__ __forceinline__ double sum_of_survivors(const ChosenRow& row, const RowState& state) {
    return row.way == Way::eta ? state.survivors : state.sum;
}

/// The logits of a distribution that is kept: of survivors as they are found by comparison, and nothing else yet.
__global__ void __launch_bounds__(choose_threads) keep_kernel(Call call) {
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

/// Where min-p is the first filter: no logit below this can pass.
__device__ __forceinline__ float least_logit(const ChosenRow& row, float greatest) {
    const double cut = static_cast<double>(greatest) + row.temperature * row.log_min_p;
    const auto rounded = static_cast<float>(cut);
    return static_cast<double>(rounded) > cut ? value_of(order_of(rounded) - 1) : rounded;
}

__global__ void __launch_bounds__(choose_threads) gather_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::few) return;
    RowState& state = call.states[blockIdx.x];
    std::int32_t* const list = call.lists + std::int64_t{blockIdx.x} * most_candidates;
    const Range part = part_of(call);
    const float greatest = greatest_logit(state);
    const float least = row.counts_bins ? minus_infinity() : least_logit(row, greatest);
    const int cut = row.counts_bins ? state.cut : num_bins;
#pragma unroll 8
    for (std::int64_t v = part.first + threadIdx.x; v < part.end; v += choose_threads) {
        const float logit = taken(row.logits[v]);
        if (!possible(logit) || logit < least) continue;
        if (row.counts_bins && bin_of(row, greatest, logit) > cut) continue;
        const std::uint32_t place = atomicAdd(&state.num_candidates, 1U);
        if (place < most_candidates) list[place] = static_cast<std::int32_t>(v);
    }
}

/// A thread's search for the best draw that comes after `before`, in steps of four neighbouring tokens, which share
/// their random words. In f32, with room for its errors, it tells what cannot win; what may, is drawn exactly.
struct Search {
    static constexpr float room = 1e-3F, relative_room = 1e-6F;

    const ChosenRow& row;
    const RowState& state;
    float greatest, per_temperature;
    double greatest_weight;
    Draw before;
    Draw best;
    float mark;  ///< the best score, against the greatest log weight

    __device__ Search(const ChosenRow& of_row, const RowState& of_state, const Draw& behind)
        : row(of_row),
          state(of_state),
          greatest(greatest_logit(of_state)),
          per_temperature(static_cast<float>(1.0 / of_row.temperature)),
          greatest_weight(log_weight(of_row, greatest)),
          before(behind),
          best(no_draw()),
          mark(minus_infinity()) {}

    __device__ void take(const Draw& draw) {
        if (!comes_after(draw, before)) return;
        best = better_of(best, draw);
        mark = static_cast<float>(best.score - greatest_weight);
        mark -= room + relative_room * fabsf(mark);
    }
    [[nodiscard]] __device__ float distance(float logit) const { return (logit - greatest) * per_temperature; }
    [[nodiscard]] __device__ bool survives(float logit) const {
        return row.way == Way::all || reaches_eta(state, weight_of(row, logit, greatest_weight));
    }

    __device__ void look_at(std::int64_t token, std::int64_t end) {
        float logits[4];
        bool any = false;
        const float most = row.silent ? 0.0F : static_cast<float>(max_gumbel);
        for (int i = 0; i < 4; ++i) {
            logits[i] = token + i < end ? taken(row.logits[token + i]) : minus_infinity();
            any = any || (possible(logits[i]) && distance(logits[i]) + most >= mark);
        }
        if (!any) return;
        const NoiseWords words = row.silent ? NoiseWords{} : words_of(row, token);
        for (int i = 0; i < 4; ++i) {
            const float bound = row.silent ? 0.0F : static_cast<float>(gumbel_bound_of_bits(words.word[i]));
            if (!possible(logits[i]) || distance(logits[i]) + bound < mark || !survives(logits[i])) continue;
            take(draw_of(row, logits[i], static_cast<std::int32_t>(token + i), words.word[i]));
        }
    }
};

/// The best that comes after `before` of what one search found in the parts of the row.
__device__ Draw best_of_parts(const Call& call, int search, const Draw& before, Draw* room) {
    const Draw* const draws = call.draws_of(search);
    Draw best = no_draw();
    for (int part = static_cast<int>(threadIdx.x); part < call.num_parts; part += choose_threads) {
        if (comes_after(draws[part], before)) best = better_of(best, draws[part]);
    }
    return block_best(best, room);
}

/// A draw that search `number` may find, so that it need not look at worse ones: the most probable token's, as long as
/// that was not drawn; the second best of what the search before it found.
__device__ Draw known_draw(const Call& call, const ChosenRow& row, const RowState& state, int number,
                           const Draw& before, Draw* room) {
    if (number > 0) return best_of_parts(call, number - 1, before, room);
    if (threadIdx.x == 0) room[0] = draw_of(row, greatest_logit(state), most_probable(state));
    __syncthreads();
    return room[0];
}

__global__ void __launch_bounds__(choose_threads) search_kernel(Call call, int number) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::all && row.way != Way::eta) return;
    const RowState& state = call.states[blockIdx.x];
    if (state.best == 0) return;
    auto* const room = shared_memory<Draw>();
    const Draw before = number == 0 ? first_of_all() : best_of_parts(call, number - 1, first_of_all(), room);
    __syncthreads();
    Search search(row, state, before);
    search.take(known_draw(call, row, state, number, before, room));
    const Range part = part_of(call);
    for (std::int64_t v = part.first + 4 * std::int64_t{threadIdx.x}; v < part.end; v += 4 * choose_threads)
        search.look_at(v, part.end);
    const Draw best = block_best(search.best, room);
    if (threadIdx.x == 0) call.draws_of(number)[blockIdx.y] = best;
}

/// The token of a row; -1: the host's to find out.
__device__ std::int32_t choose_token(const Call& call, const ChosenRow& row, const RowState& state,
                                     unsigned char* shared) {
    if (row.way == Way::none || state.undecided != 0) return -1;
    if (state.best == 0) return 0;  // nothing but NaN: the item shall end, not the program
    if (row.way == Way::greedy) return most_probable(state);
    if (row.way != Way::few) return best_of_parts(call, 0, first_of_all(), reinterpret_cast<Draw*>(shared)).token;
    Few few = few_in(shared);
    const std::int32_t* const list = call.lists + std::int64_t{blockIdx.x} * most_candidates;
    return take_few(few, row, state, list) ? next_of_few(few, row, first_of_all()).token : -1;
}

__device__ Drawn drawn_of(const ChosenRow& row, std::int32_t token, double probability) {
    return {token, log_weight(row, taken(row.logits[token])), probability};
}

/// Leaves the row's distribution where it shall be: its head, and of gathered survivors their logits.
__device__ void keep_row(const Call& call, const ChosenRow& row, const RowState& state, const Few& few) {
    if (row.keep == nullptr) return;
    const bool greedy = row.way == Way::greedy;
    if (threadIdx.x == 0) {
        const float greatest = greatest_logit(state);
        if (greedy) logits_of(row.keep)[most_probable(state)] = greatest;
        *row.keep = {.temperature = greedy ? 1.0 : row.temperature,
                     .greatest = greedy ? static_cast<double>(greatest) : log_weight(row, greatest),
                     .sum = greedy                ? 1.0
                            : row.way == Way::few ? few.sum
                                                  : sum_of_survivors(row, state),
                     .vocab_size = call.vocab_size};
    }
    if (row.way != Way::few) return;
    for (int i = static_cast<int>(threadIdx.x); i < few.size; i += choose_threads) {
        if (few.weight[i] >= 0) logits_of(row.keep)[few.token[i]] = taken(row.logits[few.token[i]]);
    }
}

/// The most probable token and the row's draws, to drawn [1 + num_draws]. After keep_row.
__device__ void draw_tokens(const Call& call, const ChosenRow& row, const RowState& state, Few& few, Drawn* drawn,
                            unsigned char* shared) {
    const bool first = threadIdx.x == 0;
    Draw draw = first_of_all();
    if (row.way == Way::few) {
        const std::int32_t greatest = most_probable_of(few, row);
        const double most = weight_in(few, greatest);
        if (first) drawn[0] = drawn_of(row, greatest, most);
        for (int i = 0; i < call.num_draws; ++i) {
            draw = next_of_few(few, row, draw);
            if (!is_draw(draw)) return;
            const double probability = weight_in(few, draw.token);
            if (first) drawn[1 + i] = drawn_of(row, draw.token, probability);
        }
        return;
    }
    const double most_weight = log_weight(row, greatest_logit(state));
    const auto probability_of = [&](std::int32_t token) {
        return flushed(weight_of(row, taken(row.logits[token]), most_weight) / sum_of_survivors(row, state));
    };
    if (first) drawn[0] = drawn_of(row, most_probable(state), probability_of(most_probable(state)));
    for (int i = 0; i < call.num_draws; ++i) {
        draw = best_of_parts(call, i, first_of_all(), reinterpret_cast<Draw*>(shared));
        if (!is_draw(draw)) return;
        if (first) drawn[1 + i] = drawn_of(row, draw.token, probability_of(draw.token));
    }
}

/// The row's distribution and draws, or nothing.
__device__ void weigh_row(const Call& call, const ChosenRow& row, const RowState& state, unsigned char* shared) {
    const bool draws = call.num_draws > 0;
    Drawn* const drawn = draws ? call.drawn + std::int64_t{blockIdx.x} * (1 + call.num_draws) : nullptr;
    for (int i = static_cast<int>(threadIdx.x); draws && i <= call.num_draws; i += choose_threads)
        drawn[i] = {-1, 0, 0};
    if (threadIdx.x == 0 && row.keep != nullptr) row.keep->sum = 0;
    __syncthreads();
    if (row.way == Way::none || state.undecided != 0 || state.best == 0) return;
    Few few{};
    if (row.way == Way::few) {
        few = few_in(shared);
        if (!take_few(few, row, state, call.lists + std::int64_t{blockIdx.x} * most_candidates)) return;
    }
    keep_row(call, row, state, few);
    __syncthreads();
    if (draws) draw_tokens(call, row, state, few, drawn, shared);
}

__global__ void __launch_bounds__(choose_threads) decide_kernel(Call call) {
    const ChosenRow row = call.rows[blockIdx.x];
    const RowState& state = call.states[blockIdx.x];
    auto* const shared = shared_memory<unsigned char>();
    if (row.weighs) {
        weigh_row(call, row, state, shared);
    } else {
        const std::int32_t token = choose_token(call, row, state, shared);
        if (threadIdx.x == 0) call.tokens[blockIdx.x] = token;
    }
    __syncthreads();
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.num_penalised; i += choose_threads)
        row.logits[row.penalised[i]] = row.saved[i];
}

/// How a row can be decided here.
Way way_of(const Choice& choice, bool draws) {
    if (choice.temperature == 0) return draws ? Way::none : Way::greedy;
    // Beyond, quotients leave the range in which f32 can tell what is hopeless.
    if (choice.temperature < 1e-6 || choice.temperature > 1e6) return Way::none;
    const bool candidates = choice.top_k > 0 || choice.top_p < 1.0 || choice.min_p > 0;
    if (candidates) return Way::few;
    if (choice.eta <= 0) return Way::all;
    return choice.min_keep > 1 ? Way::none : Way::eta;
}

ChosenRow row_of(const Choice& choice, float* logits, std::int64_t num_draws) {
    const bool from_top = choice.top_k > 0 || choice.top_p < 1.0;
    ChosenRow row{};
    row.logits = logits;
    row.temperature = choice.temperature;
    row.top_p = choice.top_p;
    row.min_p = choice.min_p;
    row.eta = choice.eta;
    row.log_min_p = choice.min_p > 0 ? scalar::det_log(choice.min_p) - 1e-6 : 0.0;
    row.eta_root = choice.eta > 0 ? std::sqrt(choice.eta) : 0.0;
    row.noise_key = choice.noise_key;
    row.position = choice.position;
    row.purpose = choice.purpose;
    row.node = choice.node;
    row.keep = reinterpret_cast<KeptDistribution*>(choice.keep);
    row.min_keep = choice.min_keep > 1 ? choice.min_keep : 1;
    row.top_k = choice.top_k <= 0 ? 0 : choice.top_k > row.min_keep ? choice.top_k : row.min_keep;
    row.weighs = num_draws > 0 || row.keep != nullptr;
    row.penalty = choice.penalty;
    row.silent = choice.silent;
    row.way = way_of(choice, num_draws > 0);
    row.counts_bins = row.way == Way::few && from_top;
    row.adds_up = row.way == Way::eta || (row.way == Way::all && row.weighs) || (row.counts_bins && row.top_k == 0);
    return row;
}

/// The rows of a call, and which kernels they need.
struct Batch {
    struct Needs {
        bool penalty = false, survey = false, eta = false, survivors = false, gather = false, keep = false,
             search = false;
    };
    std::vector<ChosenRow> rows;
    std::vector<std::int32_t> penalised;  ///< of all rows, one behind the other
    std::int64_t num_draws;               ///< of a row; 0: a token each, or none where its distribution is kept
    Needs needs;

    Batch(std::span<const Choice> choices, float* logits, std::int64_t stride, std::int64_t draws) : num_draws(draws) {
        for (const Choice& choice : choices) add(choice, logits + choice.row * stride);
    }
    [[nodiscard]] std::int64_t num_rows() const { return static_cast<std::int64_t>(rows.size()); }
    [[nodiscard]] std::int64_t num_penalised() const { return static_cast<std::int64_t>(penalised.size()); }

  private:
    void add(const Choice& choice, float* logits) {
        ChosenRow& row = rows.emplace_back(row_of(choice, logits, num_draws));
        if (choice.penalty != 1.0F && row.way != Way::none) {
            row.num_penalised = static_cast<std::int32_t>(choice.penalised.size());
            penalised.insert(penalised.end(), choice.penalised.begin(), choice.penalised.end());
        }
        needs.penalty = needs.penalty || row.num_penalised > 0;
        needs.survey = needs.survey || row.counts_bins || row.adds_up;
        needs.eta = needs.eta || row.way == Way::eta;
        needs.survivors = needs.survivors || (row.way == Way::eta && row.weighs);
        needs.gather = needs.gather || row.way == Way::few;
        needs.keep = needs.keep || row.keep != nullptr;
        const bool searched = row.way == Way::all || row.way == Way::eta;
        needs.search = needs.search || (searched && (num_draws > 0 || !row.weighs));
    }
};

/// What the kernels write to; states and histograms as zeros.
Call memory_of(ChoosePart& part, const Stream& stream, const Batch& batch, std::int64_t vocab_size) {
    const std::int64_t num_rows = batch.num_rows();
    Call call{};
    call.vocab_size = vocab_size;
    call.num_parts = static_cast<int>((vocab_size + part_tokens - 1) / part_tokens);
    const std::size_t state_bytes = batch.rows.size() * sizeof(RowState);
    const std::size_t zero_bytes = state_bytes + (batch.needs.survey ? batch.rows.size() * sizeof(Histogram) : 0);
    auto* const zeros = part.states.get<std::byte>(stream, static_cast<std::int64_t>(zero_bytes));
    fill_zero(stream, zeros, zero_bytes);
    call.states = reinterpret_cast<RowState*>(zeros);
    call.histograms = reinterpret_cast<Histogram*>(zeros + state_bytes);
    call.lanes = part.lanes.get<double>(stream, batch.needs.survey ? num_rows * vocabulary_lanes : 0);
    call.lists = part.lists.get<std::int32_t>(stream, batch.needs.gather ? num_rows * most_candidates : 0);
    call.num_draws = static_cast<int>(batch.num_draws);
    const std::int64_t num_searched = num_rows * call.num_searches() * call.num_parts;
    call.draws = part.draws.get<Draw>(stream, batch.needs.search ? num_searched : 0);
    if (batch.num_draws > 0) {
        call.drawn = part.tokens.get<Drawn>(stream, num_rows * (1 + batch.num_draws));
    } else {
        call.tokens = part.tokens.get<std::int32_t>(stream, num_rows);
    }
    return call;
}

/// Rows and the tokens they penalise, in one copy; where the rows are on the device.
const ChosenRow* send(ChoosePart& part, const Stream& stream, PinnedRing& ring, Batch& batch) {
    Parcel& parcel = part.parcel;
    parcel.clear();
    parcel.add(std::span<const ChosenRow>(batch.rows));  // room for them
    const std::size_t at_penalised = parcel.add(std::span<const std::int32_t>(batch.penalised));
    auto* const there = part.sent.get<std::byte>(stream, static_cast<std::int64_t>(parcel.bytes().size()));
    const auto* tokens = reinterpret_cast<const std::int32_t*>(there + at_penalised);
    float* saved = part.saved.get<float>(stream, batch.num_penalised());
    for (ChosenRow& row : batch.rows) {
        row.penalised = tokens;
        row.saved = saved;
        tokens += row.num_penalised;
        saved += row.num_penalised;
    }
    parcel.clear();
    parcel.add(std::span<const ChosenRow>(batch.rows));  // now that they know where all is
    parcel.add(std::span<const std::int32_t>(batch.penalised));
    ring.send(there, parcel.bytes().data(), parcel.bytes().size());
    return reinterpret_cast<const ChosenRow*>(there);
}

void launch_all(const Stream& stream, const Call& call, std::int64_t num_rows, const Batch::Needs& needs) {
    const auto rows = static_cast<unsigned>(num_rows);
    const dim3 a_row(rows), parts(rows, static_cast<unsigned>(call.num_parts)),
        lanes(rows, vocabulary_lanes / lanes_a_block);
    const dim3 threads(choose_threads), lane_threads(lanes_a_block);
    constexpr std::size_t lane_bytes = vocabulary_lanes * sizeof(double);
    constexpr std::size_t room_bytes = choose_threads * sizeof(Draw);
    if (needs.penalty) launch(stream, penalise_kernel, a_row, threads, 0, call);
    launch(stream, scan_kernel, parts, threads, 0, call);
    if (needs.survey) {
        launch(stream, survey_kernel, lanes, lane_threads, sizeof(Histogram), call);
        launch(stream, settle_kernel, a_row, threads, lane_bytes + 32 * sizeof(Word), call);
    }
    if (needs.eta) {
        launch(stream, entropy_kernel, lanes, lane_threads, 0, call);
        launch(stream, settle_eta_kernel, a_row, threads, lane_bytes, call);
    }
    if (needs.survivors) {
        launch(stream, survivors_kernel, lanes, lane_threads, 0, call);
        launch(stream, settle_survivors_kernel, a_row, threads, lane_bytes, call);
    }
    if (needs.gather) launch(stream, gather_kernel, parts, threads, 0, call);
    if (needs.keep) launch(stream, keep_kernel, parts, threads, 0, call);
    for (int number = 0; needs.search && number < call.num_searches(); ++number)
        launch(stream, search_kernel, parts, threads, room_bytes, call, number);
    launch(stream, decide_kernel, a_row, threads, needs.gather ? few_bytes : room_bytes, call);
}

/// Launches all; what it returns tells where the results will be.
Call start(ChoosePart& part, const Stream& stream, PinnedRing& ring, Batch& batch, std::int64_t vocab_size) {
    Call call = memory_of(part, stream, batch, vocab_size);
    call.rows = send(part, stream, ring, batch);
    launch_all(stream, call, batch.num_rows(), batch.needs);
    return call;
}

}  // namespace

void keep_rows(ChoosePart& part, const Stream& stream, PinnedRing& ring, float* logits, std::int64_t stride,
               std::int64_t vocab_size, std::span<const Choice> choices) {
    Batch batch(choices, logits, stride, 0);
    start(part, stream, ring, batch, vocab_size);
}

void CudaDevice::choose(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                        std::span<std::int32_t> tokens) {
    if (choices.size() != tokens.size()) throw std::logic_error("choose: a token a choice");
    if (choices.empty()) return;
    Batch batch(choices, logits, stride, 0);
    const Call call = start(state_->choose, state_->stream, state_->ring, batch, vocab_size);
    download(tokens.data(), reinterpret_cast<const std::byte*>(call.tokens), tokens.size_bytes());
}

void CudaDevice::draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                      std::int64_t count, std::span<Drawn> drawn) {
    if (count < 1 || count > most_draws) throw std::logic_error("draw: 1 to " + std::to_string(most_draws));
    if (drawn.size() != choices.size() * static_cast<std::size_t>(1 + count))
        throw std::logic_error("draw: the most probable token and `count` others a choice");
    if (choices.empty()) return;
    Batch batch(choices, logits, stride, count);
    const Call call = start(state_->choose, state_->stream, state_->ring, batch, vocab_size);
    download(drawn.data(), reinterpret_cast<const std::byte*>(call.drawn), drawn.size_bytes());
}

}  // namespace longhaul::kernels::cuda
