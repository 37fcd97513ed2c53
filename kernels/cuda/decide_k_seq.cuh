// K-SEQ at the nodes of a token tree (engine/verify/k_seq.cpp): one discount for all drafts of a node, found by
// bisection over the mass that it would accept. For most tokens, the same side of the minimum min(p, q / gamma) is
// taken for every discount; the others are gathered per lane, so that a bisection step reads few tokens. The kernels
// run one after another:
//   split     lanes of the tokens whose side is known; gathers the probabilities of the others
//   discount  one block per node: the bisection, narrowed by a bracket (discount.hpp), and which draft is accepted
//   remove    subtracts the accepted mass from the target's, scaled to the chance that any draft is accepted,
//             and adds up the residual
#pragma once

#include "kernels/cuda/decide_nodes.cuh"
#include "kernels/discount.hpp"

namespace longhaul::kernels::cuda {

/// Whether the device has all distributions that the node's decision needs.
__device__ inline bool has_all_distributions(const TriedNode& node) {
    if (!(node.target->sum > 0)) return false;
    for (int k = 0; k < node.num_drafts; ++k) {
        const KeptDistribution* const from = node.drafts[k].from;
        if (from == nullptr || !(from->sum > 0)) return false;
    }
    return true;
}

/// Index of the i-th gathered token of a lane: p in `left`, q in `less`. A lane gathers at most its own tokens.
__device__ __forceinline__ std::int64_t gathered_at(std::int32_t i, unsigned lane) {
    return std::int64_t{i} * vocabulary_lanes + lane;
}

/// The terms of a tile in shared memory, each sum's [tile_steps, group_lanes]; then the warps' counts.
constexpr std::size_t split_bytes = lane_tile_bytes(2) + max_lane_threads * sizeof(std::int32_t);

/// p and q of a token.
struct Pair {
    double p, q;
};

enum class Side : std::uint8_t { q, p, unknown };

__device__ __forceinline__ Side side_of(const TriedNode& node, const Pair& token) {
    if (token.q <= token.p) return Side::q;
    return token.q >= static_cast<double>(node.num_drafts) * token.p ? Side::p : Side::unknown;
}

/// Gathers the unknown tokens of a tile behind the `count` that the lane has already; returns the new count. Each warp
/// has adjacent steps, so that its place in the list is what the warps before it found.
__device__ inline std::int32_t gather_tile(const TriedNode& node, const LaneTile& tile, const double* p_at,
                                           const double* q_at, std::int32_t* counts, unsigned group,
                                           std::int32_t count) {
    const unsigned lane = threadIdx.x % 32;
    const int warp = static_cast<int>(threadIdx.x / 32), num_warps = static_cast<int>(blockDim.x / 32);
    const int share = (tile.num_steps + num_warps - 1) / num_warps, first = warp * share;
    const int end = first + share < tile.num_steps ? first + share : tile.num_steps;
    const auto pair_at = [&](int step) {
        return Pair{p_at[step * group_lanes + lane], q_at[step * group_lanes + lane]};
    };
    std::int32_t mine = 0;
    for (int step = first; step < end; ++step) mine += side_of(node, pair_at(step)) == Side::unknown ? 1 : 0;
    counts[threadIdx.x] = mine;
    __syncthreads();
    std::int32_t place = count;
    for (int other = 0; other < num_warps; ++other) {
        const std::int32_t found = counts[static_cast<unsigned>(other) * 32 + lane];
        if (other < warp) place += found;
        count += found;
    }
    for (int step = first; step < end; ++step) {
        const Pair pair = pair_at(step);
        if (side_of(node, pair) != Side::unknown) continue;
        node.left[gathered_at(place, group * group_lanes + lane)] = pair.p;
        node.less[gathered_at(place, group * group_lanes + lane)] = pair.q;
        ++place;
    }
    return count;
}

__global__ void __launch_bounds__(max_lane_threads) split_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    if (node.num_drafts == 0 || !has_all_distributions(node)) return;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              num_warps = static_cast<int>(blockDim.x / 32);
    auto* const p_at = shared_memory<double>();
    auto* const q_at = p_at + lane_tile_bytes(1) / sizeof(double);
    auto* const counts = reinterpret_cast<std::int32_t*>(q_at + lane_tile_bytes(1) / sizeof(double));
    double q_sum = 0, p_sum = 0;
    std::int32_t count = 0;
    for (std::int64_t first = std::int64_t{blockIdx.y} * group_lanes; first < call.vocab_size;
         first += std::int64_t{tile_steps} * vocabulary_lanes) {
        const LaneTile tile(first, call.vocab_size);
        __syncthreads();  // the previous tile was added
        for (int step = warp; step < tile.num_steps; step += num_warps) {
            const std::int64_t v = tile.token(step);
            const bool is_there = v < call.vocab_size;
            p_at[step * group_lanes + lane] = is_there ? probability(*node.drafts[0].from, v) : 0.0;
            q_at[step * group_lanes + lane] = is_there ? probability(*node.target, v) : 0.0;
        }
        __syncthreads();
        const auto known = [&](int step, Side side) {
            const Pair pair{p_at[step * group_lanes + lane], q_at[step * group_lanes + lane]};
            return side_of(node, pair) != side ? 0.0 : side == Side::q ? pair.q : pair.p;
        };
        if (warp == 0) q_sum = add_in_order(q_sum, tile.num_steps, [&](int step) { return known(step, Side::q); });
        if (warp == 1 % num_warps)
            p_sum = add_in_order(p_sum, tile.num_steps, [&](int step) { return known(step, Side::p); });
        count = gather_tile(node, tile, p_at, q_at, counts, blockIdx.y, count);
    }
    const unsigned of_row = blockIdx.y * group_lanes + static_cast<unsigned>(lane);
    if (warp == 1 % num_warps) node.rest[of_row] = p_sum;
    if (warp != 0) return;
    node.lanes[of_row] = q_sum;
    node.counts[of_row] = count;
}

constexpr int cached_pairs = 8;  ///< gathered tokens per lane that are kept in shared memory during the bisection
constexpr std::size_t discount_bytes = vocabulary_lanes * (sizeof(double) + cached_pairs * sizeof(Pair));

/// The gathered tokens of the thread's lane. A block has one thread per lane.
class Gathered {
  public:
    /// shared: discount_bytes.
    __device__ Gathered(const TriedNode& node, double* shared)
        : node_(node),
          lanes_(shared),
          cached_(reinterpret_cast<Pair*>(shared + vocabulary_lanes)),
          count_(node.counts[threadIdx.x]) {
        for (int i = 0; i < cached_pairs && i < count_; ++i) cached_[gathered_at(i, threadIdx.x)] = loaded(i);
    }

    /// The sum of min(p, q / gamma), returned to all threads.
    [[nodiscard]] __device__ double mass(double gamma) const {
        constexpr int ahead = 4;  // loads and divisions that do not wait for the additions
        double sum = 0;
        for (std::int32_t first = 0; first < count_; first += ahead) {
            double terms[ahead];
            for (int i = 0; i < ahead; ++i) {
                const Pair pair = first + i < count_ ? at(first + i) : Pair{0.0, 0.0};  // adds nothing
                const double discounted = flushed(pair.q / gamma);
                terms[i] = pair.p < discounted ? pair.p : discounted;
            }
            for (int i = 0; i < ahead; ++i) sum += terms[i];
        }
        __syncthreads();  // the previous sum was read
        lanes_[threadIdx.x] = sum;
        return tree_of_lanes(lanes_);
    }

  private:
    [[nodiscard]] __device__ Pair loaded(std::int32_t i) const {
        return {node_.left[gathered_at(i, threadIdx.x)], node_.less[gathered_at(i, threadIdx.x)]};
    }
    [[nodiscard]] __device__ Pair at(std::int32_t i) const {
        return i < cached_pairs ? cached_[gathered_at(i, threadIdx.x)] : loaded(i);
    }

    const TriedNode& node_;
    double* lanes_;
    Pair* cached_;
    std::int32_t count_;
};

__global__ void __launch_bounds__(vocabulary_lanes) discount_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    NodeState& state = call.states[blockIdx.x];
    const bool first = threadIdx.x == 0;
    if (!has_all_distributions(node)) {
        if (first) state.undecided = 1;
        return;
    }
    if (node.num_drafts == 0) return;
    auto* const shared = shared_memory<double>();
    const double q_sum = sum_of_lanes(node.lanes, shared);
    __syncthreads();
    const double p_sum = sum_of_lanes(node.rest, shared);
    const Gathered gathered(node, shared);
    const auto mass_at = [&](double gamma) { return p_sum + flushed(q_sum / gamma) + gathered.mass(gamma); };
    const double margin = excess_margin(call.vocab_size, node.num_drafts);
    const double gamma = min_gamma(node.num_drafts, mass_at, bracket_gamma(node.num_drafts, margin, mass_at));
    const double beta = mass_at(gamma);
    if (!first) return;
    for (int k = 0; k < node.num_drafts && state.taken_plus_one == 0; ++k) {
        const TriedDraft draft = node.drafts[k];
        const double accepted_up_to = flushed(probability(*node.target, draft.token) / gamma);
        const double chance = probability(*draft.from, draft.token);
        if (flushed(draft.number * chance) < accepted_up_to) state.taken_plus_one = k + 1;
    }
    if (!(beta > 0)) return;
    state.num_rejected = 1;  // all drafts at once
    state.gamma = gamma;
    state.scale = chance_of_any(beta, node.num_drafts) / beta;
}

__global__ void __launch_bounds__(max_lane_threads) remove_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    const NodeState state = call.states[blockIdx.x];
    if (!state.is_open() || state.num_rejected == 0) return;
    auto* const shared = shared_memory<double>();
    sum_lanes(call.vocab_size, blockIdx.y, shared, node.lanes, [&](std::int64_t v) {
        const double q = probability(*node.target, v), p = probability(*node.drafts[0].from, v);
        const double discounted = flushed(q / state.gamma);
        const double less = difference(q, flushed((discounted < p ? discounted : p) * state.scale));
        node.left[v] = q;
        node.less[v] = less;
        return less;
    });
    if (!is_last_of_node(call)) return;
    const double mass = sum_of_lanes(node.lanes, shared);
    if (threadIdx.x != 0) return;
    call.states[blockIdx.x].mass = mass;
    call.states[blockIdx.x].arrived = 0;
}

}  // namespace longhaul::kernels::cuda
