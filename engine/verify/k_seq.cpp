// K-SEQ (SpecTr; algorithms.md section 3): K independent drafts of one distribution p, all with one discount gamma of
// the acceptance, the least for which the accepted mass never exceeds the target's.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "engine/verify/sampling.hpp"

namespace longhaul::engine {
namespace {

/// The sum of term(0..count-1), in eight lanes that are added pairwise: registers side by side, and one order always.
template <typename Term>
double sum_in_lanes(std::size_t count, Term term) {
    std::array<double, 8> lanes{};
    std::size_t i = 0;
    for (; i + lanes.size() <= count; i += lanes.size()) {
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] += term(i + lane);
    }
    for (std::size_t lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
    for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

/// beta(gamma) = sum of min(p, q / gamma): the chance that one draft is accepted. It is asked for many gamma in [1, K],
/// and most tokens are on one side of the minimum for all of them.
class AcceptedMass {
  public:
    AcceptedMass(std::span<const double> p, std::span<const double> q, double most_gamma) {
        for (std::size_t i = 0; i < p.size(); ++i) {
            if (q[i] <= p[i]) {
                q_sum_ += q[i];
            } else if (q[i] >= most_gamma * p[i]) {
                p_sum_ += p[i];
            } else {
                p_.push_back(p[i]);
                q_.push_back(q[i]);
            }
        }
    }
    [[nodiscard]] double at(double gamma) const {
        const double open = sum_in_lanes(p_.size(), [&](std::size_t i) {
            const double discounted = q_[i] / gamma;
            return p_[i] < discounted ? p_[i] : discounted;
        });
        return p_sum_ + q_sum_ / gamma + open;
    }

  private:
    double p_sum_ = 0, q_sum_ = 0;
    std::vector<double> p_, q_;  ///< of tokens where gamma decides
};

double power(double base, std::size_t exponent) {
    double result = 1;
    for (std::size_t i = 0; i < exponent; ++i) result *= base;
    return result;
}

/// The least gamma in [1, K] with 1 - (1 - beta)^K <= gamma beta: the upper end of a bisection.
double least_gamma(const AcceptedMass& mass, std::size_t num_drafts) {
    const auto holds = [&](double gamma) {
        const double beta = mass.at(gamma);
        return 1.0 - power(1.0 - beta, num_drafts) <= gamma * beta;
    };
    double low = 1;
    double high = static_cast<double>(num_drafts);
    if (holds(low)) return low;
    for (int step = 0; step < 50; ++step) {
        const double middle = 0.5 * (low + high);
        (holds(middle) ? high : low) = middle;
    }
    return high;
}

class KSeq final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, Residual& residual,
                       const TrialNumbers& numbers) const override {
        if (drafts.empty()) return 0;
        if (drafts.front().drawn_from == nullptr) throw std::logic_error("k-seq was given drafts that were not drawn");
        const Distribution& drawn = *drafts.front().drawn_from;
        std::vector<double> accepted = over_ids(drawn.q, drawn.ids, residual.ids());
        const AcceptedMass mass(accepted, residual.left(), static_cast<double>(drafts.size()));
        const double gamma = least_gamma(mass, drafts.size());
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const double accepted_up_to = residual.probability(drafts[k].token) / gamma;
            if (numbers(k) * drafts[k].probability() < accepted_up_to) return k;
        }
        const double beta = mass.at(gamma);
        if (!(beta > 0)) return drafts.size();
        for (std::size_t i = 0; i < accepted.size(); ++i)
            accepted[i] = std::min(accepted[i], residual.left()[i] / gamma);
        residual.reduce(accepted, (1.0 - power(1.0 - beta, drafts.size())) / beta);
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_k_seq_rule() {
    return std::make_unique<KSeq>();
}

}  // namespace longhaul::engine
