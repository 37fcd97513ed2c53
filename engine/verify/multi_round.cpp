// Multi-round rejection sampling (SpecInfer): independent drafts are tried one after the other, each against what the
// rejected ones left of the target (algorithms.md section 3). With one draft it is the rejection sampling of Leviathan
// et al. and Chen et al.
#include "engine/verify/sampling.hpp"

namespace longhaul::engine {
namespace {

class MultiRound final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, Residual& residual,
                       const TrialNumbers& numbers) const override {
        std::vector<double> p;  // over the target's support: of one model, drawn from again and again
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
