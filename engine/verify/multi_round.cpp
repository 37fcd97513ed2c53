// Multi-round rejection sampling (SpecInfer; ALGORITHMS.md section 3): independent drafts are tried one after another,
// each against the residual of the target distribution that the rejected ones left. With one draft this is the
// rejection sampling of Leviathan et al. and Chen et al.
#include "engine/verify/sampling.hpp"

namespace longhaul::engine {
namespace {

class MultiRound final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, ResidualDistribution& residual,
                       const TrialNumbers& numbers) const override {
        std::vector<double> p;  // draft distribution over the target's support; consecutive drafts often share it
        const Distribution* of = nullptr;
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const DraftToken& x = drafts[k];
            if (numbers(k) * x.probability() < residual.probability(x.token)) return k;
            if (x.drawn_from == nullptr) {
                residual.remove(x.token);
                continue;
            }
            if (x.drawn_from != of) p = over_ids(x.drawn_from->q, x.drawn_from->ids, residual.ids());
            of = x.drawn_from;
            residual.reduce(p, 1.0);
        }
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_multi_round_rule() {
    return std::make_unique<MultiRound>();
}

}  // namespace longhaul::engine
