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
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const DraftToken& x = drafts[k];
            if (numbers(k) * x.probability() < residual.probability(x.token)) return k;
            const std::vector<std::int32_t>& ids = residual.ids();
            std::size_t at = 0;  // both lists ascend
            residual.reduce([&](std::size_t place) {
                if (x.drawn_from == nullptr) return ids[place] == x.token ? 1.0 : 0.0;
                const Distribution& p = *x.drawn_from;
                while (at < p.ids.size() && p.ids[at] < ids[place]) ++at;
                return at < p.ids.size() && p.ids[at] == ids[place] ? p.q[at] : 0.0;
            });
        }
        return drafts.size();
    }
};

}  // namespace

std::unique_ptr<NodeRule> make_multi_round_rule() {
    return std::make_unique<MultiRound>();
}

}  // namespace longhaul::engine
