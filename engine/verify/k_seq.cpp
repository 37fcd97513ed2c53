// K-SEQ (SpecTr; ALGORITHMS.md section 3): K independent drafts from one distribution p. All are accepted with the same
// discount gamma, the smallest for which the accepted mass never exceeds the target's.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "engine/sampling/sum_over_tokens.hpp"
#include "engine/verify/sampling.hpp"
#include "kernels/discount.hpp"

namespace longhaul::engine {
namespace {

/// beta(gamma) = sum of min(p, q / gamma): the probability that one draft is accepted. The search evaluates it for many
/// gamma in [1, K]. For most tokens the minimum is the same side for all of them, so their sums are computed once.
class AcceptedMass {
  public:
    AcceptedMass(std::span<const std::int32_t> ids, std::span<const double> p, std::span<const double> q,
                 double max_gamma)
        : num_lanes_(ids.empty() ? 1 : num_lanes_to(ids.back())) {
        const auto below = [&](std::size_t i) { return q[i] <= p[i]; };
        const auto above = [&](std::size_t i) { return q[i] >= max_gamma * p[i]; };
        q_sum_ = sum_over_tokens(ids, [&](std::size_t i) { return below(i) ? q[i] : 0.0; });
        p_sum_ = sum_over_tokens(ids, [&](std::size_t i) { return !below(i) && above(i) ? p[i] : 0.0; });
        std::array<std::size_t, kernels::vocabulary_lanes> counts{};
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (below(i) || above(i)) continue;
            const std::size_t lane = static_cast<std::size_t>(ids[i]) & (num_lanes_ - 1);
            const std::size_t at = counts[lane]++ * num_lanes_ + lane;
            if (at >= p_.size()) {
                p_.resize(p_.size() + num_lanes_, 0.0);
                q_.resize(p_.size(), 0.0);
            }
            p_[at] = p[i];
            q_[at] = q[i];
        }
    }
    [[nodiscard]] double at(double gamma) const {
        std::array<double, kernels::vocabulary_lanes> lanes;
        std::fill_n(lanes.begin(), num_lanes_, 0.0);
        for (std::size_t first = 0; first < p_.size(); first += num_lanes_) {
            for (std::size_t lane = 0; lane < num_lanes_; ++lane) {
                const double p = p_[first + lane], discounted = q_[first + lane] / gamma;
                lanes[lane] += p < discounted ? p : discounted;
            }
        }
        return p_sum_ + q_sum_ / gamma + sum_of_lanes(lanes, num_lanes_);
    }

  private:
    std::size_t num_lanes_;
    double p_sum_ = 0, q_sum_ = 0;
    std::vector<double> p_, q_;  ///< [tokens of a lane, lane] of the tokens whose side depends on gamma; zero-padded
};

class KSeq final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                       const TrialNumbers& numbers) const override {
        if (drafts.empty()) return 0;
        if (drafts.front().drawn_from == nullptr) throw std::logic_error("k-seq was given drafts that were not drawn");
        const Distribution& drawn = *drafts.front().drawn_from;
        std::vector<double> accepted = over_ids(drawn.q, drawn.ids, residual.ids());
        const AcceptedMass mass(residual.ids(), accepted, residual.left(), static_cast<double>(drafts.size()));
        const auto num_drafts = static_cast<int>(drafts.size());
        const double gamma = kernels::min_gamma(num_drafts, [&](double at) { return mass.at(at); });
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const double accepted_up_to = residual.probability(drafts[k].token) / gamma;
            if (numbers(k) * drafts[k].probability() < accepted_up_to) return k;
        }
        const double beta = mass.at(gamma);
        if (!(beta > 0)) return drafts.size();
        for (std::size_t i = 0; i < accepted.size(); ++i)
            accepted[i] = std::min(accepted[i], residual.left()[i] / gamma);
        residual.reduce(accepted, kernels::chance_of_any(beta, num_drafts) / beta);
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_k_seq_rule() {
    return std::make_unique<KSeq>();
}

}  // namespace longhaul::engine
