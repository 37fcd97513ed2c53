// Recursive rejection sampling (RSD, Theorem 3.1; ALGORITHMS.md section 3): the drafts of a node were drawn without
// replacement, so the k-th draft's distribution is p without the tokens drawn before it. Each is tried against the
// residual of the target distribution that the rejected ones left. Certain (one-hot) drafts: the same with
// p_k(x_k) = 1.
#include <algorithm>
#include <limits>

#include "engine/sampling/sum_over_tokens.hpp"
#include "engine/verify/sampling.hpp"
#include "kernels/exp_nonpositive.hpp"

namespace longhaul::engine {
namespace {

/// p without the tokens already drawn.
class Remaining {
  public:
    /// `ids`: the target's support, over which weights() is given.
    Remaining(const Distribution& p, const std::vector<std::int32_t>& ids)
        : p_(p), ids_(ids), same_support_(p.ids == ids), weights_(p.q) {
        align();
    }

    /// Probability among the remaining tokens; 1 for a token outside p's support.
    [[nodiscard]] double probability(std::int32_t token) const {
        const std::int64_t place = p_.place_of(token);
        return place < 0 ? 1.0 : mass_ > 0 ? weights_[place] / mass_ : 0.0;
    }
    /// Unnormalised, over the target's support; multiply by scale().
    [[nodiscard]] std::span<const double> weights() const { return same_support_ ? weights_ : over_; }
    [[nodiscard]] double scale() const { return mass_ > 0 ? 1.0 / mass_ : 0.0; }

    void remove(std::int32_t token) {
        const std::int64_t place = p_.place_of(token);
        if (place >= 0) {
            gone_.push_back(static_cast<std::size_t>(place));
            weights_[gone_.back()] = 0;
        }
        align();
        // Probabilities are clamped near 1e-304. Drafts are drawn by log weight, which also distinguishes smaller ones.
        // So recompute the weights from the log weights before the mass gets that small.
        constexpr double min_mass = 1e-200;
        if (mass_ < min_mass) weigh_anew();
    }

  private:
    void weigh_anew() {
        double greatest = -std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < weights_.size(); ++i) {
            const bool gone = std::find(gone_.begin(), gone_.end(), i) != gone_.end();
            if (!gone) greatest = std::max(greatest, p_.log_weights[i]);
        }
        for (std::size_t i = 0; i < weights_.size(); ++i)
            weights_[i] = kernels::scalar::exp_nonpositive(std::min(p_.log_weights[i] - greatest, 0.0));
        for (const std::size_t place : gone_) weights_[place] = 0;
        align();
    }
    /// Recomputes the mass. (Subtracting the weight of each removed token would lose precision if little is left.)
    void align() {
        mass_ = sum_over_tokens(p_.ids, [&](std::size_t i) { return weights_[i]; });
        if (!same_support_) over_ = over_ids(weights_, p_.ids, ids_);
    }

    const Distribution& p_;
    const std::vector<std::int32_t>& ids_;
    bool same_support_;
    std::vector<double> weights_;  ///< p up to a factor; 0 for removed tokens
    std::vector<double> over_;     ///< weights_ over ids_, if the supports differ
    std::vector<std::size_t> gone_;
    double mass_ = 0;
};

class Recursive final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                       const TrialNumbers& numbers) const override {
        if (drafts.empty()) return 0;
        return drafts.front().drawn_from == nullptr ? decide_certain(drafts, residual, numbers)
                                                    : decide_drawn(drafts, residual, numbers);
    }

  private:
    static std::size_t decide_certain(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                                      const TrialNumbers& numbers) {
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const std::int32_t token = drafts[k].token;
            if (numbers(k) < residual.probability(token)) return k;
            residual.remove(token);
        }
        return drafts.size();
    }

    static std::size_t decide_drawn(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                                    const TrialNumbers& numbers) {
        Remaining p(*drafts.front().drawn_from, residual.ids());
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const std::int32_t token = drafts[k].token;
            if (numbers(k) * p.probability(token) < residual.probability(token)) return k;
            residual.reduce(p.weights(), p.scale());
            p.remove(token);
        }
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_recursive_rule() {
    return std::make_unique<Recursive>();
}

}  // namespace longhaul::engine
