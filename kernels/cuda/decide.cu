// The sampling rules at the nodes of a token tree, bit-identical to the host (engine/verify). Drafts are tried one
// after another against the residual distribution, which is what the rejected drafts left of the target's distribution.
// If none is accepted, a token is drawn from the residual. All nodes are computed at once: the decision at a node
// depends only on its row and its drafts, so the host then walks from decision to decision.
//
// choose.cu keeps the distributions as logits; probabilities are computed from them on use. The residual is stored next
// to them in doubles. Sums are in 1024 lanes (lane_sums.cuh), so that many blocks share a row. The kernels run one
// after another (k-seq replaces the first three):
//   rest   lanes of the draft's mass (drafts without replacement)
//   try    one block per node: decides whether the first draft is accepted
//   take   subtracts a rejected draft's distribution, adds up the residual, and tries the next draft (last block)
//   sums   lanes and chunks of the final residual
//   draw   one block per node: the token where the running sum passes the node's random number
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/cuda_token_chooser.hpp"
#include "kernels/cuda/decide_k_seq.cuh"
#include "kernels/cuda/decide_nodes.cuh"

namespace longhaul::kernels::cuda {
namespace {

__global__ void __launch_bounds__(max_lane_threads) rest_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    if (!shrinks(call, node)) return;
    sum_lanes(call.vocab_size, blockIdx.y, shared_memory<double>(), node.rest,
              [&](std::int64_t token) { return rest_of(node, 0, token); });
}

/// The probability with which draft `k` was drawn.
__device__ double chance_of(const DecideCall& call, const TriedNode& node, const NodeState& state, int k) {
    const TriedDraft draft = node.drafts[k];
    if (draft.from == nullptr) return 1;
    if (!shrinks(call, node)) return probability(*draft.from, draft.token);
    if (!survived(*draft.from, draft.token)) return 1;  // it was drawn nevertheless
    return state.rest_mass > 0 ? flushed(rest_of(node, k, draft.token) / state.rest_mass) : 0.0;
}

/// Tries draft `k` of an open node, by one block. Also called after the last draft, for the sum of the residual.
/// shared: [vocabulary_lanes].
__device__ void try_draft(const DecideCall& call, int k, double* shared) {
    const TriedNode& node = call.nodes[blockIdx.x];
    const double mass = k > 0 ? sum_of_lanes(node.lanes, shared) : 0.0;
    __syncthreads();
    const double rest_mass = shrinks(call, node) ? sum_of_lanes(node.rest, shared) : 0.0;
    if (threadIdx.x != 0) return;
    NodeState& state = call.states[blockIdx.x];
    state.arrived = 0;
    state.num_rejected = k;
    state.mass = mass;
    state.rest_mass = rest_mass;
    if (!(node.target->sum > 0)) state.undecided = 1;
    if (k >= node.num_drafts || state.undecided != 0) return;
    const TriedDraft draft = node.drafts[k];
    const bool is_known = draft.from == nullptr || draft.from->sum > 0;
    const bool is_weighed = k == 0 || !shrinks(call, node) || rest_mass >= min_mass;
    if (!is_known || !is_weighed) {
        state.undecided = 1;
    } else if (flushed(draft.number * chance_of(call, node, state, k)) < left_of(node, state, draft.token)) {
        state.taken_plus_one = k + 1;
    }
}

__global__ void __launch_bounds__(choose_threads) try_first_kernel(DecideCall call) {
    try_draft(call, 0, shared_memory<double>());
}

/// Subtracts draft `k`, which was rejected. The last block of a node then tries the next draft.
__global__ void __launch_bounds__(max_lane_threads) take_kernel(DecideCall call, int k) {
    const TriedNode& node = call.nodes[blockIdx.x];
    const NodeState state = call.states[blockIdx.x];
    if (!state.is_open() || k >= node.num_drafts) return;
    const TriedDraft draft = node.drafts[k];
    const bool shrinking = shrinks(call, node);
    const double scale = state.rest_mass > 0 ? flushed(1.0 / state.rest_mass) : 0.0;
    const auto take = [&](std::int64_t v, double(&sums)[2]) {
        const double left = left_of(node, state, v);
        double less;
        if (draft.from == nullptr) {
            less = v == draft.token ? 0.0 : left;
        } else if (shrinking) {
            const double drawn = rest_of(node, k, v);
            less = difference(left, flushed(drawn * scale));
            sums[1] = v != draft.token ? drawn : 0.0;
        } else {
            less = difference(left, probability(*draft.from, v));
        }
        node.left[v] = left;
        node.less[v] = less;
        sums[0] = less;
    };
    double* const sums[2] = {node.lanes, node.rest};
    auto* const shared = shared_memory<double>();
    sum_lanes<2>(call.vocab_size, blockIdx.y, shared, sums, take);
    if (is_last_of_node(call)) try_draft(call, k + 1, shared);
}

/// Sums of the final residual over chunks [32 blockIdx, + 32). All warps compute the probabilities of a piece of these
/// chunks into shared memory, and one warp adds them, each thread those of one chunk. shared: lane_tile_bytes(2).
__device__ void sum_chunks(const DecideCall& call, const TriedNode& node, const NodeState& state, unsigned block,
                           double* shared) {
    constexpr int piece = draw_chunk / 2, row = piece + 1;  // an odd row: no bank conflicts between chunks
    static_assert(32 * row * sizeof(double) <= lane_tile_bytes(2) && piece % add_ahead == 0);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const std::int64_t chunk = std::int64_t{block} * 32 + lane;
    double sum = 0;
    for (int start = 0; start < draw_chunk; start += piece) {
        __syncthreads();  // the previous piece was added
        for (int i = static_cast<int>(threadIdx.x); i < 32 * piece; i += static_cast<int>(blockDim.x)) {
            const std::int64_t token = (std::int64_t{block} * 32 + i / piece) * draw_chunk + start + i % piece;
            shared[i / piece * row + i % piece] = token < call.vocab_size ? left_of(node, state, token) : 0.0;
        }
        __syncthreads();
        if (warp == 0) sum = add_in_order(sum, piece, [&](int i) { return shared[lane * row + i]; });
    }
    if (warp == 0 && chunk < call.num_chunks) node.chunks[chunk] = sum;
}

/// Blocks [0, num_lane_groups) of a node compute lanes, the others chunks.
__global__ void __launch_bounds__(max_lane_threads) sums_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    const NodeState state = call.states[blockIdx.x];
    if (!state.is_open()) return;
    auto* const shared = shared_memory<double>();
    if (blockIdx.y >= num_lane_groups) return sum_chunks(call, node, state, blockIdx.y - num_lane_groups, shared);
    sum_lanes(call.vocab_size, blockIdx.y, shared, node.lanes,
              [&](std::int64_t token) { return left_of(node, state, token); });
}

/// The chunk at which the running sum passes a mark.
struct Passed {
    double before;       ///< the sum of the chunks before `chunk`
    std::int32_t chunk;  ///< -1: never passed; `last` is then the last nonzero chunk (-1: none)
    std::int32_t last;
};

/// The first of `count` running sums that `mark` is below, -1: none. Called by one whole warp.
__device__ int first_above(const double* sums, int count, double mark) {
    for (int first = 0; first < count; first += 32) {
        const int i = first + static_cast<int>(threadIdx.x);
        const unsigned votes = __ballot_sync(full_warp, i < count && mark < sums[i] ? 1 : 0);
        if (votes != 0) return first + __ffs(static_cast<int>(votes)) - 1;
    }
    return -1;
}

/// The last nonzero chunk, -1: none. Called by one whole warp.
__device__ std::int32_t last_nonzero_chunk(const DecideCall& call, const TriedNode& node) {
    for (std::int64_t end = call.num_chunks; end > 0; end -= 32) {
        const std::int64_t chunk = end - 1 - threadIdx.x;
        const unsigned votes = __ballot_sync(full_warp, chunk >= 0 && node.chunks[chunk] > 0 ? 1 : 0);
        if (votes != 0) return static_cast<std::int32_t>(end - __ffs(static_cast<int>(votes)));
    }
    return -1;
}

/// Called by the whole block. sums: [vocabulary_lanes].
__device__ void find_chunk(const DecideCall& call, const TriedNode& node, double mark, double* sums, Passed* passed) {
    if (threadIdx.x == 0) *passed = {0, -1, -1};
    for (std::int64_t first = 0; first < call.num_chunks; first += vocabulary_lanes) {
        const std::int64_t rest = call.num_chunks - first;
        const int count = static_cast<int>(rest < vocabulary_lanes ? rest : vocabulary_lanes);
        __syncthreads();  // nobody still reads `sums`
        const int padded = (count + add_ahead - 1) / add_ahead * add_ahead;
        for (int i = static_cast<int>(threadIdx.x); i < padded; i += choose_threads)
            sums[i] = i < count ? node.chunks[first + i] : 0.0;
        __syncthreads();
        if (threadIdx.x == 0) run_sums(sums, padded, passed->before);
        __syncthreads();
        if (threadIdx.x < 32) {
            const int found = first_above(sums, count, mark);
            if (threadIdx.x == 0) {
                if (found >= 0) passed->chunk = static_cast<std::int32_t>(first + found);
                if (found != 0) passed->before = sums[found > 0 ? found - 1 : count - 1];
            }
        }
        __syncthreads();
        if (passed->chunk >= 0) return;
    }
    if (threadIdx.x >= 32) return;
    const std::int32_t last = last_nonzero_chunk(call, node);
    if (threadIdx.x == 0) passed->last = last;
}

/// The token of a chunk at which the running sum passes `mark`, or else the last nonzero one (-1: none). `values`, the
/// chunk's probabilities [draw_chunk], become running sums; `nonzero`: [draw_chunk / 32], bits of the nonzero ones.
/// Called by the whole block.
__device__ int token_in_chunk(double* values, unsigned* nonzero, double before, bool passes, double mark) {
    const unsigned mine = __ballot_sync(full_warp, values[threadIdx.x] > 0 ? 1 : 0);
    if (threadIdx.x % 32 == 0) nonzero[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) run_sums(values, draw_chunk, before);
    __syncthreads();
    if (threadIdx.x >= 32) return -1;
    int last = -1;
    for (int word = 0; word < draw_chunk / 32; ++word) {
        const bool above = passes && mark < values[32 * word + static_cast<int>(threadIdx.x)];
        const unsigned found = __ballot_sync(full_warp, above ? 1 : 0) & nonzero[word];
        if (found != 0) return 32 * word + __ffs(static_cast<int>(found)) - 1;
        if (nonzero[word] != 0) last = 32 * word + 31 - __clz(static_cast<int>(nonzero[word]));
    }
    return last;
}

__global__ void __launch_bounds__(choose_threads) draw_kernel(DecideCall call) {
    const TriedNode& node = call.nodes[blockIdx.x];
    const NodeState& state = call.states[blockIdx.x];
    Decided& decided = call.decided[blockIdx.x];
    if (!state.is_open()) {
        if (threadIdx.x == 0) decided = {.trial = state.taken_plus_one - 1, .token = -1};
        return;
    }
    static_assert(draw_chunk == choose_threads);
    auto* const lanes = shared_memory<double>();
    auto* const passed = reinterpret_cast<Passed*>(lanes + vocabulary_lanes);
    const double mark = flushed(node.number * sum_of_lanes(node.lanes, lanes));
    find_chunk(call, node, mark, lanes, passed);
    __syncthreads();
    const bool passes = passed->chunk >= 0;
    const std::int32_t chunk = passes ? passed->chunk : passed->last;
    const std::int64_t first = std::int64_t{chunk} * draw_chunk, token = first + threadIdx.x;
    const bool is_there = chunk >= 0 && token < call.vocab_size;
    lanes[threadIdx.x] = is_there ? left_of(node, state, token) : 0.0;
    __syncthreads();
    auto* const nonzero = reinterpret_cast<unsigned*>(lanes + draw_chunk);
    const int place = token_in_chunk(lanes, nonzero, passed->before, passes, mark);
    if (threadIdx.x != 0) return;
    decided = {.trial = -1, .token = place >= 0 ? static_cast<std::int32_t>(first + place) : -1};
}

constexpr std::size_t lane_bytes = vocabulary_lanes * sizeof(double);

/// Doubles per node, besides its residual: lanes of two sums, counts in the space of a third, chunks.
constexpr std::int64_t num_sums(std::int64_t vocab_size) {
    return 3 * vocabulary_lanes + (vocab_size + draw_chunk - 1) / draw_chunk;
}

/// The kernels' memory for one batch of nodes of a call.
class Nodes {
  public:
    Nodes(DecidePart& part, const Stream& stream, std::int64_t vocab_size, std::span<const NodeTrials> nodes)
        : vocab_size_(vocab_size), nodes_(nodes) {
        const auto count = static_cast<std::int64_t>(nodes.size());
        targets_ = part.targets.get<std::byte>(stream, count * kept_bytes());
        left_ = part.left.get<double>(stream, count * 2 * vocab_size);
        sums_ = part.sums.get<double>(stream, count * num_sums(vocab_size));
        choices.reserve(nodes.size());
        for (std::int64_t i = 0; i < count; ++i) {
            choices.push_back(nodes[static_cast<std::size_t>(i)].choice);
            choices.back().keep = targets_ + i * kept_bytes();
        }
    }

    /// Fills the parcel with the nodes, followed by their drafts. `there`: its future device address.
    void fill(Parcel& parcel, const std::byte* there) const {
        std::vector<TriedDraft> drafts;
        for (const NodeTrials& node : nodes_) {
            for (const DraftTrial& trial : node.trials)
                drafts.push_back({.from = reinterpret_cast<const KeptDistribution*>(trial.drawn_from),
                                  .number = trial.number,
                                  .token = trial.token});
        }
        const auto* next = reinterpret_cast<const TriedDraft*>(there + drafts_at(nodes_.size()));
        std::vector<TriedNode> tried;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            double* const left = left_ + at * 2 * vocab_size_;
            double* const sums = sums_ + at * num_sums(vocab_size_);
            tried.push_back({.target = reinterpret_cast<const KeptDistribution*>(choices[i].keep),
                             .drafts = next,
                             .left = left,
                             .less = left + vocab_size_,
                             .lanes = sums,
                             .rest = sums + vocabulary_lanes,
                             .counts = reinterpret_cast<std::int32_t*>(sums + 2 * vocabulary_lanes),
                             .chunks = sums + 3 * vocabulary_lanes,
                             .number = nodes_[i].number,
                             .num_drafts = static_cast<std::int32_t>(nodes_[i].trials.size())});
            next += nodes_[i].trials.size();
        }
        parcel.clear();
        parcel.add(std::span<const TriedNode>(tried));
        parcel.add(std::span<const TriedDraft>(drafts));
    }
    [[nodiscard]] static std::size_t drafts_at(std::size_t num_nodes) {
        return (num_nodes * sizeof(TriedNode) + 15) / 16 * 16;
    }
    [[nodiscard]] std::int64_t sent_bytes() const {
        std::size_t num_drafts = 0;
        for (const NodeTrials& node : nodes_) num_drafts += node.trials.size();
        return static_cast<std::int64_t>(drafts_at(nodes_.size()) + (num_drafts * sizeof(TriedDraft) + 15) / 16 * 16);
    }
    [[nodiscard]] std::int64_t num_chunks() const { return (vocab_size_ + draw_chunk - 1) / draw_chunk; }

    std::vector<Choice> choices;  ///< for the rows of the targets

  private:
    [[nodiscard]] std::int64_t kept_bytes() const {
        return static_cast<std::int64_t>(KeptDistribution::num_bytes(vocab_size_));
    }

    std::int64_t vocab_size_;
    std::span<const NodeTrials> nodes_;
    std::byte* targets_;
    double* left_;
    double* sums_;
};

/// Grids and blocks of the kernels of a call.
struct Shapes {
    dim3 a_node, lanes, sums, of_lanes;

    Shapes(const DecideCall& call, unsigned num_nodes)
        : a_node(num_nodes),
          lanes(num_nodes, num_lane_groups),
          sums(num_nodes, num_lane_groups + static_cast<unsigned>((call.num_chunks + 31) / 32)),
          of_lanes(lane_threads_for(call.vocab_size)) {}
};

/// Tries the drafts one after another: one round of rejection sampling per draft.
void launch_trials(const Stream& stream, const DecideCall& call, const Shapes& shapes, std::size_t max_drafts) {
    if (call.rule == TrialRule::recursive)
        launch(stream, rest_kernel, shapes.lanes, shapes.of_lanes, lane_tile_bytes(1), call);
    launch(stream, try_first_kernel, shapes.a_node, dim3(choose_threads), lane_bytes, call);
    for (std::size_t k = 0; k < max_drafts; ++k)
        launch(stream, take_kernel, shapes.lanes, shapes.of_lanes, lane_tile_bytes(2), call, static_cast<int>(k));
}

void launch_k_seq(const Stream& stream, const DecideCall& call, const Shapes& shapes) {
    launch(stream, split_kernel, shapes.lanes, shapes.of_lanes, split_bytes, call);
    launch(stream, discount_kernel, shapes.a_node, dim3(vocabulary_lanes), discount_bytes, call);
    launch(stream, remove_kernel, shapes.lanes, shapes.of_lanes, lane_tile_bytes(1), call);
}

void launch_all(const Stream& stream, const DecideCall& call, std::span<const NodeTrials> nodes) {
    std::size_t max_drafts = 0;
    for (const NodeTrials& node : nodes) max_drafts = std::max(max_drafts, node.trials.size());
    const Shapes shapes(call, static_cast<unsigned>(nodes.size()));
    if (call.rule == TrialRule::k_seq) {
        launch_k_seq(stream, call, shapes);
    } else {
        launch_trials(stream, call, shapes, max_drafts);
    }
    launch(stream, sums_kernel, shapes.sums, shapes.of_lanes, lane_tile_bytes(2), call);
    launch(stream, draw_kernel, shapes.a_node, dim3(choose_threads), lane_bytes + sizeof(Passed), call);
}

}  // namespace

std::int64_t DecidePart::bytes(const PassSize& pass) {
    const std::int64_t vocab = pass.decided_vocab;
    if (vocab == 0) return 0;
    const std::int64_t of_node = static_cast<std::int64_t>(KeptDistribution::num_bytes(vocab)) +
                                 (2 * vocab + num_sums(vocab)) * std::int64_t{sizeof(double)};
    return std::min(pass.logit_rows, static_cast<std::int64_t>(max_nodes)) * of_node;
}

void CudaTokenChooser::decide(float* logits, std::int64_t stride, std::int64_t vocab_size, TrialRule rule,
                              std::span<const NodeTrials> nodes, std::span<Decided> decided) {
    if (decided.size() != nodes.size()) throw std::logic_error("decide: one result per node is needed");
    for (const NodeTrials& node : nodes) {
        if (static_cast<std::int64_t>(node.trials.size()) > max_trials)
            throw std::logic_error("decide: at most " + std::to_string(max_trials) + " drafts per node");
    }
    if (nodes.empty()) return;
    auto* const answers = deciding_.decided.get<Decided>(stream_, static_cast<std::int64_t>(nodes.size()));
    for (std::size_t first = 0; first < nodes.size(); first += DecidePart::max_nodes) {
        const auto some = nodes.subspan(first, std::min<std::size_t>(DecidePart::max_nodes, nodes.size() - first));
        const Nodes memory(deciding_, stream_, vocab_size, some);
        keep_rows(choosing_, stream_, ring_, logits, stride, vocab_size, memory.choices);
        auto* const there = deciding_.sent.get<std::byte>(stream_, memory.sent_bytes());
        memory.fill(deciding_.parcel, there);
        ring_.send(there, deciding_.parcel.bytes().data(), deciding_.parcel.bytes().size());
        auto* const states = deciding_.states.get<NodeState>(stream_, static_cast<std::int64_t>(some.size()));
        fill_zero(stream_, reinterpret_cast<std::byte*>(states), some.size() * sizeof(NodeState));
        const DecideCall call{.nodes = reinterpret_cast<const TriedNode*>(there),
                              .states = states,
                              .decided = answers + first,
                              .vocab_size = vocab_size,
                              .num_chunks = memory.num_chunks(),
                              .rule = rule};
        launch_all(stream_, call, some);
    }
    download(decided, answers);
}

}  // namespace longhaul::kernels::cuda
