// K-SEQ at the nodes of a token tree (engine/verify/k_seq.cpp): one discount for all drafts of a node, found by
// bisection over the mass that it would accept. For most tokens, the same side of the minimum min(p, q / gamma) is
// taken for every discount; the others are gathered per lane, so that a bisection step reads few tokens. The kernels
// run one after another:
//   split     lanes of the tokens whose side is known; gathers the probabilities of the others
//   discount  one block per node: the bisection, and which draft is accepted
//   remove    subtracts the accepted mass from the target's, scaled to the chance that any draft is accepted
//   mass      the sum of the residual
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

__global__ void __launch_bounds__(lane_threads) split_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    if (node.num_drafts == 0 || !has_all_distributions(node)) return;
    const unsigned lane = blockIdx.y * lane_threads + threadIdx.x;
    double q_sum = 0, p_sum = 0;
    std::int32_t count = 0;
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const double q = probability(*node.target, v), p = probability(*node.drafts[0].from, v);
        if (q <= p) {
            q_sum += q;
        } else if (q >= static_cast<double>(node.num_drafts) * p) {
            p_sum += p;
        } else {
            node.left[gathered_at(count, lane)] = p;
            node.less[gathered_at(count, lane)] = q;
            ++count;
        }
    }
    node.lanes[lane] = q_sum;
    node.rest[lane] = p_sum;
    node.counts[lane] = count;
}

/// The sum of min(p, q / gamma) over the gathered tokens, returned to all threads. shared: [vocabulary_lanes].
__device__ inline double gathered_mass(const TriedNode& node, double gamma, double* shared) {
    __syncthreads();
    for (unsigned lane = threadIdx.x; lane < vocabulary_lanes; lane += blockDim.x) {
        double sum = 0;
        for (std::int32_t i = 0; i < node.counts[lane]; ++i) {
            const double p = node.left[gathered_at(i, lane)],
                         discounted = flushed(node.less[gathered_at(i, lane)] / gamma);
            sum += p < discounted ? p : discounted;
        }
        shared[lane] = sum;
    }
    return tree_of_lanes(shared);
}

__global__ void __launch_bounds__(choose_threads) discount_kernel(DecideCall call) {
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
    const auto mass_at = [&](double gamma) {
        return p_sum + flushed(q_sum / gamma) + gathered_mass(node, gamma, shared);
    };
    const double gamma = min_gamma(node.num_drafts, mass_at);
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

__global__ void __launch_bounds__(lane_threads) remove_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    const NodeState state = call.states[blockIdx.x];
    if (!state.is_open() || state.num_rejected == 0) return;
    const unsigned lane = blockIdx.y * lane_threads + threadIdx.x;
    double sum = 0;
    for (std::int64_t v = lane; v < call.vocab_size; v += vocabulary_lanes) {
        const double q = probability(*node.target, v), p = probability(*node.drafts[0].from, v);
        const double discounted = flushed(q / state.gamma);
        const double less = difference(q, flushed((discounted < p ? discounted : p) * state.scale));
        node.left[v] = q;
        node.less[v] = less;
        sum += less;
    }
    node.lanes[lane] = sum;
}

__global__ void __launch_bounds__(choose_threads) mass_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    NodeState& state = call.states[blockIdx.x];
    if (!state.is_open() || state.num_rejected == 0) return;
    const double mass = sum_of_lanes(node.lanes, shared_memory<double>());
    if (threadIdx.x == 0) state.mass = mass;
}

}  // namespace longhaul::kernels::cuda
