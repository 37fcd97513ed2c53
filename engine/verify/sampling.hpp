// What the sampling rules share: the walk down a tree, and arithmetic on what is left of the target's distribution.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

/// What rejections leave of the target's distribution: q_k of the papers, q_1 the target's own. Sums run in the order
/// of the ids. `target` must outlive it.
class Residual {
  public:
    explicit Residual(const Distribution& target) : ids_(target.ids), left_(target.q) {}

    [[nodiscard]] double probability(std::int32_t token) const;

    /// left := max(left - by, 0) over the target's support (`by` is asked by ascending place), normalised; where
    /// nothing is left it stays as it was: its mass was lost to rounding.
    void reduce(const std::function<double(std::size_t place)>& by);

    [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
    [[nodiscard]] double at(std::size_t place) const { return left_[place]; }

    /// The token at which the sum of what is left passes `u` of it, 0 <= u < 1.
    [[nodiscard]] std::int32_t draw(double u) const;

  private:
    const std::vector<std::int32_t>& ids_;
    std::vector<double> left_;
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

/// Walks the tree from its root with one rule. Accepting and residual draws have random numbers of their own
/// (algorithms.md section 2).
std::unique_ptr<Verifier> make_sampling_verifier(std::unique_ptr<NodeRule> rule);

std::unique_ptr<NodeRule> make_multi_round_rule();
std::unique_ptr<NodeRule> make_k_seq_rule();
std::unique_ptr<NodeRule> make_recursive_rule();

}  // namespace longhaul::engine
