// K-SEQ (SpecTr; algorithms.md section 3): K independent drafts of one distribution p, all with one discount gamma of
// the acceptance, the least for which the accepted mass never exceeds the target's.
#include <algorithm>

#include "engine/verify/sampling.hpp"

namespace longhaul::engine {
namespace {

/// p over the target's support, in the order of its ids.
std::vector<double> draft_over(const Residual& target, const DraftToken& draft) {
    const std::vector<std::int32_t>& ids = target.ids();
    std::vector<double> p(ids.size(), 0.0);
    std::size_t at = 0;  // both lists ascend
    for (std::size_t i = 0; i < p.size(); ++i) {
        if (draft.drawn_from == nullptr) {
            p[i] = ids[i] == draft.token ? 1.0 : 0.0;
            continue;
        }
        const Distribution& drawn = *draft.drawn_from;
        while (at < drawn.ids.size() && drawn.ids[at] < ids[i]) ++at;
        if (at < drawn.ids.size() && drawn.ids[at] == ids[i]) p[i] = drawn.q[at];
    }
    return p;
}

/// beta(gamma): the chance that one draft is accepted.
double accepted_mass(const Residual& target, std::span<const double> p, double gamma) {
    double beta = 0;
    for (std::size_t i = 0; i < p.size(); ++i) beta += std::min(p[i], target.at(i) / gamma);
    return beta;
}

double power(double base, std::size_t exponent) {
    double result = 1;
    for (std::size_t i = 0; i < exponent; ++i) result *= base;
    return result;
}

/// The least gamma in [1, K] with 1 - (1 - beta)^K <= gamma beta: the upper end of a bisection.
double least_gamma(const Residual& target, std::span<const double> p, std::size_t num_drafts) {
    const auto holds = [&](double gamma) {
        const double beta = accepted_mass(target, p, gamma);
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
        const std::vector<double> p = draft_over(residual, drafts.front());
        const double gamma = least_gamma(residual, p, drafts.size());
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const double accepted_up_to = residual.probability(drafts[k].token) / gamma;
            if (numbers(k) * drafts[k].probability() < accepted_up_to) return k;
        }
        const double beta = accepted_mass(residual, p, gamma);
        if (!(beta > 0)) return drafts.size();
        const double scale = (1.0 - power(1.0 - beta, drafts.size())) / beta;
        residual.reduce([&](std::size_t i) { return std::min(p[i], residual.at(i) / gamma) * scale; });
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_k_seq_rule() {
    return std::make_unique<KSeq>();
}

}  // namespace longhaul::engine
