// Recursive rejection sampling (RSD, Theorem 3.1; algorithms.md section 3): the drafts of a node were drawn without
// replacement, so the k-th one's distribution is p without the tokens drawn before it; each is tried against what the
// rejected ones left of the target. Drafts that were certain (one-hot) are the same with p_k(x_k) = 1.
#include <algorithm>

#include "engine/verify/sampling.hpp"

namespace longhaul::engine {
namespace {

/// p without the tokens already drawn.
class Remaining {
  public:
    explicit Remaining(const Distribution& p) : p_(p), gone_(p.ids.size(), false), mass_(sum()) {}

    [[nodiscard]] double at(std::size_t place) const {
        return gone_[place] || !(mass_ > 0) ? 0.0 : p_.q[place] / mass_;
    }
    void remove(std::int32_t token) {
        const std::int64_t place = p_.place_of(token);
        if (place >= 0) gone_[static_cast<std::size_t>(place)] = true;
        mass_ = sum();  // anew: a difference would lose the digits of what little may be left
    }
    [[nodiscard]] const Distribution& whole() const { return p_; }

  private:
    [[nodiscard]] double sum() const {
        double mass = 0;
        for (std::size_t i = 0; i < gone_.size(); ++i) mass += gone_[i] ? 0.0 : p_.q[i];
        return mass;
    }

    const Distribution& p_;
    std::vector<bool> gone_;
    double mass_;
};

void reduce(Residual& residual, const Remaining& p) {
    const std::vector<std::int32_t>& ids = residual.ids();
    const std::vector<std::int32_t>& drafted = p.whole().ids;
    std::size_t at = 0;  // both lists ascend
    residual.reduce([&](std::size_t place) {
        while (at < drafted.size() && drafted[at] < ids[place]) ++at;
        return at < drafted.size() && drafted[at] == ids[place] ? p.at(at) : 0.0;
    });
}

class Recursive final : public NodeRule {
  public:
    std::size_t decide(std::span<const DraftToken> drafts, Residual& residual,
                       const TrialNumbers& numbers) const override {
        if (drafts.empty()) return 0;
        return drafts.front().drawn_from == nullptr ? decide_certain(drafts, residual, numbers)
                                                    : decide_drawn(drafts, residual, numbers);
    }

  private:
    static std::size_t decide_certain(std::span<const DraftToken> drafts, Residual& residual,
                                      const TrialNumbers& numbers) {
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const std::int32_t token = drafts[k].token;
            if (numbers(k) < residual.probability(token)) return k;
            residual.reduce([&](std::size_t place) { return residual.ids()[place] == token ? 1.0 : 0.0; });
        }
        return drafts.size();
    }

    static std::size_t decide_drawn(std::span<const DraftToken> drafts, Residual& residual,
                                    const TrialNumbers& numbers) {
        Remaining p(*drafts.front().drawn_from);
        for (std::size_t k = 0; k < drafts.size(); ++k) {
            const std::int32_t token = drafts[k].token;
            const std::int64_t place = p.whole().place_of(token);
            const double p_k = place < 0 ? 1.0 : p.at(static_cast<std::size_t>(place));
            if (numbers(k) * p_k < residual.probability(token)) return k;
            reduce(residual, p);
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
