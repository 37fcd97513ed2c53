// What the sampling rules share: the walk down a tree, and arithmetic on what is left of the target's distribution.
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

/// A draft of one node, in the order of its draw.
struct DraftToken {
    std::int32_t token = 0;
    std::int32_t node = 0;
    const Distribution* drawn_from = nullptr;  ///< nullptr: it was certain, its distribution is one-hot

    [[nodiscard]] double probability() const { return drawn_from == nullptr ? 1.0 : drawn_from->probability(token); }
};

/// `values`, of `from` (ascending), at the places of `ids` (ascending); 0 where `from` lacks an id.
std::vector<double> over_ids(std::span<const double> values, const std::vector<std::int32_t>& from,
                             const std::vector<std::int32_t>& ids);

/// What rejections leave of the target's distribution: q_k of the papers, q_1 the target's own. `target` must outlive
/// it.
class Residual {
  public:
    explicit Residual(const Distribution& target) : ids_(target.ids), left_(target.q) {}

    [[nodiscard]] double probability(std::int32_t token) const;

    /// left := max(left - by * scale, 0), normalised; where nothing is left it stays as it was: its mass was lost to
    /// rounding. `by`: one number a place of ids().
    void reduce(std::span<const double> by, double scale);
    /// The same by a one-hot distribution.
    void remove(std::int32_t token);

    [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
    [[nodiscard]] std::span<const double> left() const { return left_; }

    /// The token at which the sum of what is left passes `u` of it, 0 <= u < 1, in the order of kernels/numerics.hpp.
    [[nodiscard]] std::int32_t draw(double u) const;

  private:
    void replace_left();

    const std::vector<std::int32_t>& ids_;
    std::vector<double> left_;
    std::vector<double> less_;  ///< the next left_
};

/// Uniform numbers of one node's decision, by the number of the trial.
using TrialNumbers = std::function<double(std::size_t trial)>;

/// A rule's decision at one node: the index of the draft it accepts, or drafts.size(); then `residual` is what the
/// emitted token is drawn from.
class NodeRule {
  public:
    virtual ~NodeRule() = default;
    virtual std::size_t decide(std::span<const DraftToken> drafts, Residual& residual,
                               const TrialNumbers& numbers) const = 0;
};

/// A verifier of one rule; `on_device`: the same rule, as devices have it. Accepting and residual draws have random
/// numbers of their own (algorithms.md section 2).
std::unique_ptr<Verifier> make_sampling_verifier(std::unique_ptr<NodeRule> rule, kernels::TrialRule on_device);

/// What a device is told of the drafts of `node` and their random numbers, but for the target's row; `position` as in
/// Verifier::decide. nullopt: the device does not have what one of them was drawn from.
struct DeviceTrials {
    std::vector<kernels::DraftTrial> trials;
    std::vector<std::int32_t> children;  ///< of each trial
    double number = 0;                   ///< of the draw from what is left
};
std::optional<DeviceTrials> device_trials(const TokenTree& tree, std::int32_t node, std::uint64_t noise_key,
                                          std::int64_t position);

std::unique_ptr<NodeRule> make_multi_round_rule();
std::unique_ptr<NodeRule> make_k_seq_rule();
std::unique_ptr<NodeRule> make_recursive_rule();

}  // namespace longhaul::engine
