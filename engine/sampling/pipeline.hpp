// From logits to the target's distribution (algorithms.md section 1): contextual penalty, temperature, top-k, top-p,
// min-p, eta, in this order, each seeing the renormalised output of the one before. Plain IEEE arithmetic in a fixed
// order, no libm: the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/distribution.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/params.hpp"
#include "kernels/device.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// The context of a tree node, for the penalty: tokens of the sequence (the root included) followed by the node's path.
struct NodeContext {
    std::span<const std::int32_t> sequence;
    std::span<const std::int32_t> path;  ///< below the root, the node itself last; empty at the root
};

/// Holds scratch memory: one a thread.
class LogitsPipeline {
  public:
    LogitsPipeline(const SamplingParams& params, std::int64_t vocab_size);

    /// Of the calls that follow: sequences of a batch may differ.
    void set_params(const SamplingParams& params);

    /// The distribution of the token after `context`. `logits`: f32 [vocab_size]; NaN counts as -inf. `with_q`: whether
    /// probabilities are wanted (the coupled rule needs none). The result lives until the next call.
    const Distribution& apply(std::span<const float> logits, const NodeContext& context, bool with_q = true);

    /// What a device is told to choose as `apply` and gumbel_argmax do. `penalised`: where the tokens that the context
    /// penalises are put; the choice points there.
    [[nodiscard]] kernels::Choice choice(const NodeContext& context, const NoiseRow& noise,
                                         std::vector<std::int32_t>& penalised);

    [[nodiscard]] const SamplingParams& params() const { return params_; }

  private:
    void take(std::span<const float> logits);
    /// Calls take(token) for each token that the context penalises, once.
    template <typename Take>
    void for_penalised(const NodeContext& context, Take take);
    void penalise(const NodeContext& context);
    [[nodiscard]] float greatest_logit() const;
    void take_greedy();
    void take_all();
    void take_by_min_p();  // where min-p is the first filter: the few that pass are found among the logits
    void keep_top_k();
    void weigh(double greatest);  // log weights to q times a constant, 1 for log weight `greatest`
    void renormalise();
    void keep_top_p();
    template <typename Keep>
    void keep_if(Keep keep);  // never fewer than min_keep, the most probable ones
    void keep_eta();

    SamplingParams params_;
    std::vector<float> logits_;
    std::vector<std::uint64_t> seen_;  // call number in which a token was penalised last
    std::uint64_t call_ = 0;
    std::vector<std::int32_t> order_;
    Distribution out_;
};

/// Of a distribution, the tokens that a device drew: gumbel_argmax, gumbel_top_k and most_probable say the same of it
/// as of the whole one, under the noise that the device was told. `drawn`: of one choice.
Distribution distribution_of(std::span<const kernels::Drawn> drawn);

/// All of a distribution that a device kept (Choice::keep).
Distribution kept_distribution(kernels::Device& device, const std::byte* kept);

/// Place of the greatest log weight, the first of equal ones.
std::size_t most_probable(const Distribution& distribution);

/// argmax of log q + Gumbel noise over the survivors, the lowest id at a tie; at one survivor no noise is drawn.
std::int32_t gumbel_argmax(const Distribution& distribution, const NoiseRow& noise);

/// A survivor and its log weight + noise.
struct Perturbed {
    std::int64_t place = 0;  ///< in Distribution::ids
    double score = 0;
};

/// The `count` greatest sums of log weight and noise, greatest first, the lower id at a tie: draws without replacement,
/// in the order of their draw. Fewer where fewer survived; a token that the noise forbids (-inf) is none of them.
std::vector<Perturbed> gumbel_top_k(const Distribution& distribution, const NoiseRow& noise, std::int64_t count);

}  // namespace longhaul::engine
