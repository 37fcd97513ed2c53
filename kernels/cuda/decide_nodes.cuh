// Shared by the kernels of the sampling rules (decide.cu): parameters and state of a node, probabilities, the residual.
#pragma once

#include "kernels/cuda/choose_rows.cuh"

namespace longhaul::kernels::cuda {

constexpr double min_mass = 1e-200;  ///< of drafts without replacement; below, the host recomputes their weights

struct TriedDraft {
    const KeptDistribution* from;  ///< nullptr: the draft was certain
    double number;
    std::int32_t token;
};

/// A node, as sent by the host.
struct TriedNode {
    const KeptDistribution* target;
    const TriedDraft* drafts;
    double* left;          ///< [vocab_size], residual of the target before the last rejection
    double* less;          ///< [vocab_size], residual after it, not normalised
    double* lanes;         ///< [vocabulary_lanes], sums of `less`, finally of the residual
    double* rest;          ///< [vocabulary_lanes], sums of the drafts' remaining distribution
    std::int32_t* counts;  ///< [vocabulary_lanes], gathered tokens; k-seq only
    double* chunks;        ///< [vocab_size / draw_chunk, rounded up]
    double number;
    std::int32_t num_drafts;
};

/// Zeros at first.
struct NodeState {
    double mass;                ///< of `less`; if not above 0, it was lost to rounding, and `left` is used instead
    double rest_mass;           ///< of the drafts' remaining distribution
    double gamma, scale;        ///< k-seq only: the discount; the factor of the accepted mass that is subtracted
    std::int32_t num_rejected;  ///< drafts whose distributions were subtracted from the target's
    std::int32_t taken_plus_one;
    std::uint32_t undecided;
    unsigned arrived;  ///< blocks of the running kernel that have written their part; 0 between kernels

    [[nodiscard]] __device__ bool is_open() const { return taken_plus_one == 0 && undecided == 0; }
};

/// Arguments of all kernels.
struct DecideCall {
    const TriedNode* nodes;
    NodeState* states;
    Decided* decided;
    std::int64_t vocab_size;
    std::int64_t num_chunks;
    TrialRule rule;
};

__device__ __forceinline__ double probability(const KeptDistribution& of, std::int64_t token) {
    if (token >= of.vocab_size) return 0;
    const float logit = logits_of(&of)[token];
    if (!possible(logit)) return 0;
    const auto exact = static_cast<double>(logit);
    const double log_weight = of.temperature == 1.0 ? exact : exact / of.temperature;
    return flushed(scalar::exp_nonpositive(log_weight - of.greatest) / of.sum);
}
__device__ __forceinline__ bool survived(const KeptDistribution& of, std::int64_t token) {
    return token < of.vocab_size && possible(logits_of(&of)[token]);
}

/// Probability of a token in the residual, after the rejections so far.
__device__ __forceinline__ double left_of(const TriedNode& node, const NodeState& state, std::int64_t token) {
    if (state.num_rejected == 0) return probability(*node.target, token);
    return state.mass > 0 ? flushed(node.less[token] / state.mass) : node.left[token];
}

/// Drafts without replacement: probability of a token in the drafts' distribution; 0 if it was drawn before.
__device__ __forceinline__ double rest_of(const TriedNode& node, int num_drawn, std::int64_t token) {
    for (int i = 0; i < num_drawn; ++i) {
        if (node.drafts[i].token == token) return 0;
    }
    return probability(*node.drafts[0].from, token);
}

__device__ __forceinline__ double difference(double left, double less) {
    return left > less ? flushed(left - less) : 0.0;
}

/// Whether this block is the last of its node (blockIdx.x) to arrive here, so that it can read what the others wrote.
/// Called by the whole block, after its own writes. The last block must set `arrived` to 0.
__device__ inline bool is_last_of_node(const DecideCall& call) {
    auto* const before = shared_memory<unsigned>();
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicAdd(&call.states[blockIdx.x].arrived, 1U);
    __syncthreads();
    const bool is_last = *before + 1 == gridDim.y;
    __syncthreads();  // all threads have read `before`: shared memory may be overwritten
    __threadfence();
    return is_last;
}

/// Whether the drafts' own distribution shrinks with each draw.
__device__ __forceinline__ bool shrinks(const DecideCall& call, const TriedNode& node) {
    return call.rule == TrialRule::recursive && node.num_drafts > 0 && node.drafts[0].from != nullptr;
}

}  // namespace longhaul::kernels::cuda
