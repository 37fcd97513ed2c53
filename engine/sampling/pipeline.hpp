// Logits pipeline (ALGORITHMS.md section 1): turns logits into the next-token distribution by biases, the grammar of
// the output, repetition penalty, presence and frequency penalties, DRY, temperature, top-k, top-p, min-p and eta, in
// this order, each applied to the renormalized output of the one before. Called by drafters and verifiers. Plain IEEE
// arithmetic in a fixed order without libm: the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/distribution.hpp"
#include "engine/sampling/dry.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/output_counts.hpp"
#include "engine/sampling/params.hpp"
#include "engine/sampling/token_constraint.hpp"
#include "kernels/device.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// Context of a tree node, for the penalties: tokens of the sequence (including the root), followed by the node's path.
struct NodeContext {
    std::span<const std::int32_t> sequence;
    std::span<const std::int32_t> path;  ///< nodes below the root, ending with the node itself; empty at the root
};

/// Holds scratch memory: use one object per thread.
class LogitsPipeline {
  public:
    LogitsPipeline(const SamplingParams& params, std::int64_t vocab_size);

    /// Sets the options for the following calls: sequences of a batch may differ.
    void set_params(const SamplingParams& params);

    /// Distribution of the token after `context`. `logits`: f32 [vocab_size]; NaN is treated as -inf. `with_q`: whether
    /// probabilities are needed (the coupled rule does not need them). The result is valid until the next call.
    const Distribution& apply(std::span<const float> logits, const NodeContext& context, bool with_q = true);

    /// Whether a device can choose tokens with these parameters, for a sequence of `num_tokens` tokens and paths of up
    /// to `depth`: a Choice has no DRY, no biases, no constraint and no penalties of the output.
    [[nodiscard]] static bool fits_device(const SamplingParams& params, std::int64_t num_tokens,
                                          std::int64_t depth = 0) {
        const std::int64_t output = num_tokens - params.prompt_tokens;
        return !params.dry.is_on() && !params.output.is_on() && params.biases.empty() &&
               (params.constraint == nullptr || output + depth < params.constraint->num_free()) &&
               (params.ends.empty() || output >= params.min_tokens);
    }

    /// Parameters for a device (kernels::TokenChooser) to choose the token that `apply` and gumbel_argmax would choose,
    /// if they fit it (fits_device). `penalised` receives the tokens that the context penalises; the returned Choice
    /// points to it.
    [[nodiscard]] kernels::Choice choice(const NodeContext& context, const NoiseRow& noise,
                                         std::vector<std::int32_t>& penalised);

    [[nodiscard]] const SamplingParams& params() const { return params_; }

  private:
    void take(std::span<const float> logits);
    /// Calls take(token) once for each token that the context penalises.
    template <typename Take>
    void for_penalised(const NodeContext& context, Take take);
    void add_biases(const NodeContext& context);
    void keep_allowed(const NodeContext& context);
    void penalise(const NodeContext& context);
    void penalise_output(const NodeContext& context);
    void penalise_repeats(const NodeContext& context);
    [[nodiscard]] float greatest_logit() const;
    void take_greedy();
    void take_all();
    void take_by_min_p();  // if min-p is the first filter: finds the few survivors directly among the logits
    void keep_top_k();
    void weigh(double greatest);  // q = exp(log weight - greatest), not normalized
    void renormalise();
    void keep_top_p();
    template <typename Keep>
    void keep_if(Keep keep);  // always keeps the min_keep most probable tokens
    void keep_eta();

    SamplingParams params_;
    std::vector<float> logits_;
    std::vector<std::uint64_t> seen_;  // by token: the last call that penalised it
    std::uint64_t call_ = 0;
    OutputCounts output_counts_;
    DryMatcher dry_;
    std::vector<std::int32_t> order_;
    Distribution out_;
};

/// The tokens that a device drew from a distribution, as a partial distribution. gumbel_argmax, gumbel_top_k and
/// most_probable give the same result on it as on the complete one, under the noise passed to the device. `drawn`: the
/// result for one Choice.
Distribution distribution_of(std::span<const kernels::Drawn> drawn);

/// Downloads a complete distribution that a device kept (Choice::keep).
Distribution kept_distribution(kernels::Device& device, const std::byte* kept);

/// Index of the greatest log weight; the first one at a tie.
std::size_t most_probable(const Distribution& distribution);

/// argmax of log q + Gumbel noise over the survivors; ties go to the lowest id. With one survivor no noise is drawn.
std::int32_t gumbel_argmax(const Distribution& distribution, const NoiseRow& noise);

/// A surviving token and its score, log weight + noise.
struct Perturbed {
    std::int64_t place = 0;  ///< index in Distribution::ids
    double score = 0;
};

/// The `count` greatest sums of log weight and noise, greatest first; ties go to the lower id. This is sampling without
/// replacement (Gumbel top-k), in draw order. Returns fewer if fewer tokens survived; tokens with noise -inf are
/// excluded.
std::vector<Perturbed> gumbel_top_k(const Distribution& distribution, const NoiseRow& noise, std::int64_t count);

}  // namespace longhaul::engine
