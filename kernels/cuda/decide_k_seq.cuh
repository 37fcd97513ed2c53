// K-SEQ at the nodes of a tree (engine/verify/k_seq.cpp): one discount for all drafts of a node, found by a bisection
// over the mass that it would accept. Most tokens are on one side of its minimum for every discount; the others are
// gathered lane by lane, so that a step of the bisection reads few. Kernels follow each other:
//   split     lanes of the tokens whose side is known; the others' probabilities, gathered
//   discount  one block a node: the bisection, and which draft is accepted
//   remove    takes the accepted mass away from the target's, as much of it as the drafts' chances come to
//   mass      the sum of what is left
#pragma once

#include "kernels/cuda/decide_nodes.cuh"
#include "kernels/discount.hpp"

namespace longhaul::kernels::cuda {

/// Whether the device has what a node's decision asks for.
__device__ inline bool knows_all(const TriedNode& node) {
    if (!(node.target->sum > 0)) return false;
    for (int k = 0; k < node.num_drafts; ++k) {
        const KeptDistribution* const from = node.drafts[k].from;
        if (from == nullptr || !(from->sum > 0)) return false;
    }
    return true;
}

/// The i-th gathered token of a lane: p to `left`, q to `less`. A lane has no more than its tokens.
__device__ __forceinline__ std::int64_t gathered_at(std::int32_t i, unsigned lane) {
    return std::int64_t{i} * vocabulary_lanes + lane;
}

__global__ void __launch_bounds__(lane_threads) split_kernel(DecideCall call) {
    const TriedNode node = call.nodes[blockIdx.x];
    if (node.num_drafts == 0 || !knows_all(node)) return;
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

/// Of the gathered tokens, the sum of min(p, q / gamma), to all threads. shared: [vocabulary_lanes].
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
    if (!knows_all(node)) {
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
    state.num_rejected = 1;  // all at once
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
