// Common code of the sampling rules (multi_round.cpp, k_seq.cpp, recursive.cpp): the decision at a node, and arithmetic
// on the residual of the target distribution (ALGORITHMS.md section 3).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampling/distribution.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

/// A draft token below a node.
struct DraftToken {
    std::int32_t token = 0;
    std::int32_t node = 0;
    const Distribution* drawn_from = nullptr;  ///< nullptr: a certain draft, its distribution is one-hot

    [[nodiscard]] double probability() const { return drawn_from == nullptr ? 1.0 : drawn_from->probability(token); }
};

/// Maps `values`, indexed by the ids `from` (ascending), to the ids `ids` (ascending); 0 for ids missing from `from`.
std::vector<double> over_ids(std::span<const double> values, const std::vector<std::int32_t>& from,
                             const std::vector<std::int32_t>& ids);

/// The residual of the target distribution after rejections: q_k of the papers, q_1 is the target's own. `target` must
/// outlive it.
class ResidualDistribution {
  public:
    explicit ResidualDistribution(const Distribution& target) : ids_(target.ids), left_(target.q) {}

    [[nodiscard]] double probability(std::int32_t token) const;

    /// left := max(left - by * scale, 0), normalised. Leaves it unchanged if the result would be all zeros (possible
    /// only by rounding). `by`: one number per entry of ids().
    void reduce(std::span<const double> by, double scale);
    /// Subtracts a one-hot distribution in the same way.
    void remove(std::int32_t token);

    [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
    [[nodiscard]] std::span<const double> left() const { return left_; }

    /// Draws a token by inverse transform with `u`, 0 <= u < 1: the token at which the running sum exceeds u times the
    /// mass. Order of summation: kernels/numerics.hpp.
    [[nodiscard]] std::int32_t draw(double u) const;

  private:
    void replace_left();

    const std::vector<std::int32_t>& ids_;
    std::vector<double> left_;
    std::vector<double> less_;  ///< buffer for the next left_
};

/// Uniform random numbers of one node's decision, by index of the trial.
using TrialNumbers = std::function<double(std::size_t trial)>;

/// A rule's decision at one node. `decide` takes the drafts in draw order and returns the index of the accepted one. If
/// none is accepted it returns drafts.size(), and the emitted token is drawn from `residual`.
class NodeRule {
  public:
    virtual ~NodeRule() = default;
    virtual std::size_t decide(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                               const TrialNumbers& numbers) const = 0;
};

/// A verifier of one rule; `on_device`: the device's implementation of the same rule. Acceptance and residual draws use
/// separate random numbers (ALGORITHMS.md section 2).
std::unique_ptr<NodeVerifier> make_sampling_verifier(std::unique_ptr<NodeRule> rule, kernels::TrialRule on_device);

/// The drafts of a node and their random numbers, as passed to a device together with the target's logits row.
struct DeviceTrials {
    std::vector<kernels::DraftTrial> trials;
    std::vector<std::int32_t> children;  ///< tree node of each trial
    double number = 0;                   ///< uniform number of the draw from the residual
};
/// `position` as in Verifier::decide. nullopt: the device did not keep the distribution of one of the drafts.
std::optional<DeviceTrials> device_trials(const TokenTree& tree, std::int32_t node, std::uint64_t noise_key,
                                          std::int64_t position);

std::unique_ptr<NodeRule> make_multi_round_rule();
std::unique_ptr<NodeRule> make_k_seq_rule();
std::unique_ptr<NodeRule> make_recursive_rule();

}  // namespace longhaul::engine
