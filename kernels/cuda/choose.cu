// Chooses tokens from rows of logits: contextual penalty, temperature, top-k, top-p, min-p, eta, Gumbel noise, argmax,
// bit-identical to the host. Only one token per row is copied to the host, instead of a vocabulary of logits.
//
// Kernels that read a whole row use many blocks, because one multiprocessor alone would be too slow. Their results do
// not depend on the order of the blocks: maxima, counts, integer sums, and sums of doubles in 1024 lanes
// (lane_sums.cuh), each added by one thread. The kernels run one after another:
//   penalise  changes the logits of penalised tokens in place (decide restores them)
//   scan      the greatest logit
//   survey    lanes of the sum of weights; a histogram of distances to the greatest logit, with counts or masses
//   settle    the sum; the last bin that top-k or top-p can reach
//   gather    the tokens of these bins, in any order: typically a few hundred
//   decide    one block per row filters them in shared memory (choose_few.cuh), and draws
// Without filters, or with eta alone, there are many survivors, found by comparison: `search` replaces gather, and
// skips the logarithm where the magnitude of the noise shows that a token cannot win. For several draws, each search
// finds the best draw after the previous one.
//
// A row's distribution can be kept (KeptDistribution). If the survivors are found by comparison, `keep` copies their
// logits; otherwise decide copies those of the candidates that its filters left.
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/cuda/choose_few.cuh"
#include "kernels/cuda/choose_survey.cuh"
#include "kernels/cuda/cuda_token_chooser.hpp"

namespace longhaul::kernels::cuda {
namespace {

/// A thread's search for the best draw that comes after `before`, in steps of four adjacent tokens, which share their
/// random words. It rules out tokens in f32, with a margin for rounding errors; the rest are drawn exactly.
struct Search {
    static constexpr float margin = 1e-3F, relative_margin = 1e-6F;

    const ChosenRow& row;
    const RowState& state;
    float greatest, per_temperature;
    double greatest_weight;
    Draw before;
    Draw best;
    float mark;  ///< the best score relative to the greatest log weight, less the margin

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
        mark -= margin + relative_margin * fabsf(mark);
    }
    [[nodiscard]] __device__ float distance(float logit) const { return (logit - greatest) * per_temperature; }
    [[nodiscard]] __device__ bool survives(float logit) const {
        return row.way == Way::all || reaches_eta(state, weight_of(row, logit, greatest_weight));
    }

    /// Four adjacent tokens; -inf beyond `end`.
    struct Logits {
        float at[4];
    };
    [[nodiscard]] __device__ Logits load(std::int64_t token, std::int64_t end) const {
        Logits logits;
        for (int i = 0; i < 4; ++i) logits.at[i] = token + i < end ? row.logits[token + i] : minus_infinity();
        return logits;
    }

    __device__ void look_at(std::int64_t token, Logits logits) {
        bool any = false;
        const float most = row.silent ? 0.0F : static_cast<float>(max_gumbel);
        for (float& logit : logits.at) {
            logit = taken(logit);
            any = any || (possible(logit) && distance(logit) + most >= mark);
        }
        if (!any) return;
        const NoiseWords words = row.silent ? NoiseWords{} : words_of(row, token);
        for (int i = 0; i < 4; ++i) {
            const float logit = logits.at[i];
            const float bound = row.silent ? 0.0F : static_cast<float>(gumbel_bound_of_bits(words.word[i]));
            if (!possible(logit) || distance(logit) + bound < mark || !survives(logit)) continue;
            take(draw_of(row, logit, static_cast<std::int32_t>(token + i), words.word[i]));
        }
    }

    /// The thread's tokens of a part. The next logits are loaded before the current ones are looked at.
    __device__ void look_at_part(const Range& part) {
        std::int64_t token = part.first + 4 * std::int64_t{threadIdx.x};
        Logits next = load(token, part.end);
        for (; token < part.end; token += 4 * choose_threads) {
            const Logits logits = next;
            next = load(token + 4 * choose_threads, part.end);
            look_at(token, logits);
        }
    }
};

/// The best draw after `before` among the results of one search over all parts of the row. Each warp finds it.
__device__ Draw best_of_parts(const ChooseCall& call, int search, const Draw& before) {
    const Draw* const draws = call.draws_of(search);
    Draw best = no_draw();
    for (int part = static_cast<int>(threadIdx.x % 32); part < call.num_parts; part += 32) {
        if (comes_after(draws[part], before)) best = better_of(best, draws[part]);
    }
    return warp_best(best);
}

/// A draw that search `number` can find at least, so that it can skip worse ones. First search: the draw of the most
/// probable token. Later searches: the best result of the previous search that comes after `before`.
__device__ Draw known_draw(const ChooseCall& call, const ChosenRow& row, const RowState& state, int number,
                           const Draw& before) {
    if (number > 0) return best_of_parts(call, number - 1, before);
    return draw_of(row, greatest_logit(state), most_probable(state));
}

__global__ void __launch_bounds__(choose_threads) search_kernel(ChooseCall call, int number) {
    const ChosenRow row = call.rows[blockIdx.x];
    if (row.way != Way::all && row.way != Way::eta) return;
    const RowState& state = call.states[blockIdx.x];
    if (state.best == 0) return;
    const Draw before = number == 0 ? first_of_all() : best_of_parts(call, number - 1, first_of_all());
    Search search(row, state, before);
    search.take(known_draw(call, row, state, number, before));
    search.look_at_part(part_of(call));
    const Draw best = block_best(search.best, shared_memory<Draw>());
    if (threadIdx.x == 0) call.draws_of(number)[blockIdx.y] = best;
}

/// The token of a row; -1: the host must decide.
__device__ std::int32_t choose_token(const ChooseCall& call, const ChosenRow& row, const RowState& state,
                                     unsigned char* shared) {
    if (row.way == Way::none || state.undecided != 0) return -1;
    if (state.best == 0) return 0;  // no possible token (all NaN): must end the item, not the program
    if (row.way == Way::greedy) return most_probable(state);
    if (row.way != Way::few) return best_of_parts(call, 0, first_of_all()).token;
    Few few = few_in(shared);
    const std::int32_t* const list = call.lists + std::int64_t{blockIdx.x} * max_candidates;
    return take_few(few, row, state, list) ? next_of_few(few, row, first_of_all()).token : -1;
}

__device__ Drawn drawn_of(const ChosenRow& row, std::int32_t token, double probability) {
    return {token, log_weight(row, taken(row.logits[token])), probability};
}

/// Writes the row's distribution to row.keep: its header, and the logits of gathered survivors.
__device__ void keep_row(const ChooseCall& call, const ChosenRow& row, const RowState& state, const Few& few) {
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

/// Writes the most probable token and the row's draws to drawn [1 + num_draws]. Call after keep_row.
__device__ void draw_of_few(const ChooseCall& call, const ChosenRow& row, Few& few, Drawn* drawn) {
    const bool first = threadIdx.x == 0;
    const std::int32_t greatest = most_probable_of(few, row);
    const double most = weight_in(few, greatest);
    if (first) drawn[0] = drawn_of(row, greatest, most);
    Draw draw = first_of_all();
    for (int i = 0; i < call.num_draws; ++i) {
        draw = next_of_few(few, row, draw);
        if (!is_draw(draw)) return;
        const double probability = weight_in(few, draw.token);
        if (first) drawn[1 + i] = drawn_of(row, draw.token, probability);
    }
}

/// The same for draws found by searches, each by one warp.
__device__ void draw_of_parts(const ChooseCall& call, const ChosenRow& row, const RowState& state, Drawn* drawn) {
    const double max_weight = log_weight(row, greatest_logit(state));
    for (int i = static_cast<int>(threadIdx.x / 32); i <= call.num_draws; i += choose_threads / 32) {
        std::int32_t token = most_probable(state);
        if (i > 0) {
            const Draw draw = best_of_parts(call, i - 1, first_of_all());
            if (!is_draw(draw)) return;
            token = draw.token;
        }
        const double weight = weight_of(row, taken(row.logits[token]), max_weight);
        if (threadIdx.x % 32 == 0) drawn[i] = drawn_of(row, token, flushed(weight / sum_of_survivors(row, state)));
    }
}

/// Writes the row's distribution and draws; leaves them empty (sum 0, token -1) if the host must decide.
__device__ void weigh_row(const ChooseCall& call, const ChosenRow& row, const RowState& state, unsigned char* shared) {
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
        if (!take_few(few, row, state, call.lists + std::int64_t{blockIdx.x} * max_candidates)) return;
    }
    keep_row(call, row, state, few);
    __syncthreads();
    if (!draws) return;
    if (row.way == Way::few) return draw_of_few(call, row, few, drawn);
    draw_of_parts(call, row, state, drawn);
}

__global__ void __launch_bounds__(choose_threads, 1) decide_kernel(ChooseCall call) {
    const ChosenRow& row = call.rows[blockIdx.x];
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

/// How the device decides a row; Way::none if it cannot.
Way way_of(const Choice& choice, bool draws) {
    if (choice.temperature == 0) return draws ? Way::none : Way::greedy;
    // Outside this range, quotients are too large or too small for f32 to rule out tokens.
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
    std::vector<std::int32_t> penalised;  ///< of all rows, concatenated
    std::int64_t num_draws;               ///< per row; 0: one token each, or none if its distribution is kept
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

/// Allocates the memory that the kernels write; states and histograms are zeroed.
ChooseCall memory_of(ChoosePart& part, const Stream& stream, const Batch& batch, std::int64_t vocab_size) {
    const std::int64_t num_rows = batch.num_rows();
    ChooseCall call{};
    call.vocab_size = vocab_size;
    call.num_parts = static_cast<int>((vocab_size + part_tokens - 1) / part_tokens);
    const std::size_t state_bytes = batch.rows.size() * sizeof(RowState);
    const std::size_t zero_bytes = state_bytes + (batch.needs.survey ? batch.rows.size() * sizeof(Histogram) : 0);
    auto* const zeros = part.states.get<std::byte>(stream, static_cast<std::int64_t>(zero_bytes));
    fill_zero(stream, zeros, zero_bytes);
    call.states = reinterpret_cast<RowState*>(zeros);
    call.histograms = reinterpret_cast<Histogram*>(zeros + state_bytes);
    call.lanes = part.lanes.get<double>(stream, batch.needs.survey ? num_rows * vocabulary_lanes : 0);
    call.lists = part.lists.get<std::int32_t>(stream, batch.needs.gather ? num_rows * max_candidates : 0);
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

/// Sends rows and their penalised tokens in one copy; returns the rows' address on the device.
const ChosenRow* send(ChoosePart& part, const Stream& stream, PinnedRing& ring, Batch& batch) {
    Parcel& parcel = part.parcel;
    parcel.clear();
    parcel.add(std::span<const ChosenRow>(batch.rows));  // reserves space
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
    parcel.add(std::span<const ChosenRow>(batch.rows));  // now with their pointers
    parcel.add(std::span<const std::int32_t>(batch.penalised));
    ring.send(there, parcel.bytes().data(), parcel.bytes().size());
    return reinterpret_cast<const ChosenRow*>(there);
}

void launch_all(const Stream& stream, const ChooseCall& call, std::int64_t num_rows, const Batch::Needs& needs) {
    const auto rows = static_cast<unsigned>(num_rows);
    const dim3 a_row(rows), parts(rows, static_cast<unsigned>(call.num_parts)), lanes(rows, num_lane_groups);
    const dim3 threads(choose_threads), of_lanes(lane_threads_for(call.vocab_size));
    constexpr std::size_t lane_bytes = vocabulary_lanes * sizeof(double), tile_bytes = lane_tile_bytes(1);
    constexpr std::size_t room_bytes = choose_threads / 32 * sizeof(Draw);
    if (needs.penalty) launch(stream, penalise_kernel, a_row, threads, 0, call);
    launch(stream, scan_kernel, parts, threads, 0, call);
    if (needs.survey) {
        launch(stream, survey_kernel, dim3(rows, survey_blocks(num_rows)), of_lanes,
               tile_bytes + sizeof(BlockHistogram), call);
        launch(stream, settle_kernel, a_row, threads, lane_bytes, call);
    }
    if (needs.eta) {
        launch(stream, entropy_kernel, lanes, of_lanes, tile_bytes, call);
        launch(stream, settle_eta_kernel, a_row, threads, lane_bytes, call);
    }
    if (needs.survivors) {
        launch(stream, survivors_kernel, lanes, of_lanes, tile_bytes, call);
        launch(stream, settle_survivors_kernel, a_row, threads, lane_bytes, call);
    }
    if (needs.gather) launch(stream, gather_kernel, parts, threads, 0, call);
    if (needs.keep) launch(stream, keep_kernel, parts, threads, 0, call);
    for (int number = 0; needs.search && number < call.num_searches(); ++number)
        launch(stream, search_kernel, parts, threads, room_bytes, call, number);
    launch(stream, decide_kernel, a_row, threads, needs.gather ? few_bytes : room_bytes, call);
}

/// Launches all kernels; the returned call holds the addresses of the results.
ChooseCall start(ChoosePart& part, const Stream& stream, PinnedRing& ring, Batch& batch, std::int64_t vocab_size) {
    ChooseCall call = memory_of(part, stream, batch, vocab_size);
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

void CudaTokenChooser::choose(float* logits, std::int64_t stride, std::int64_t vocab_size,
                              std::span<const Choice> choices, std::span<std::int32_t> tokens) {
    if (choices.size() != tokens.size()) throw std::logic_error("choose: one token per choice is needed");
    for (const Choice& choice : choices) {
        if (choice.keep != nullptr) throw std::logic_error("choose: keep is for draw() only");
    }
    if (choices.empty()) return;
    Batch batch(choices, logits, stride, 0);
    const ChooseCall call = start(choosing_, stream_, ring_, batch, vocab_size);
    download(tokens, call.tokens);
}

void CudaTokenChooser::draw(float* logits, std::int64_t stride, std::int64_t vocab_size,
                            std::span<const Choice> choices, std::int64_t count, std::span<Drawn> drawn) {
    if (count < 1 || count > max_draws) throw std::logic_error("draw: 1 to " + std::to_string(max_draws));
    if (drawn.size() != choices.size() * static_cast<std::size_t>(1 + count))
        throw std::logic_error("draw: 1 + count results per choice are needed");
    if (choices.empty()) return;
    Batch batch(choices, logits, stride, count);
    const ChooseCall call = start(choosing_, stream_, ring_, batch, vocab_size);
    download(drawn, call.drawn);
}

}  // namespace longhaul::kernels::cuda
