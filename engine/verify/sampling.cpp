#include "engine/verify/sampling.hpp"

#include "engine/sampling/noise.hpp"

namespace longhaul::engine {

double Residual::probability(std::int32_t token) const {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token);
    return at != ids_.end() && *at == token ? left_[static_cast<std::size_t>(at - ids_.begin())] : 0.0;
}

void Residual::reduce(const std::function<double(std::size_t place)>& by) {
    std::vector<double> less(left_.size());
    double mass = 0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
        less[i] = std::max(left_[i] - by(i), 0.0);
        mass += less[i];
    }
    if (!(mass > 0)) return;
    for (double& q : less) q /= mass;
    left_ = std::move(less);
}

std::int32_t Residual::draw(double u) const {
    double mass = 0;
    for (const double q : left_) mass += q;
    const double mark = u * mass;
    double sum = 0;
    std::int32_t last = ids_.front();
    for (std::size_t i = 0; i < left_.size(); ++i) {
        if (!(left_[i] > 0)) continue;
        last = ids_[i];
        sum += left_[i];
        if (mark < sum) return last;
    }
    return last;
}

namespace {

class SamplingVerifier final : public Verifier {
  public:
    explicit SamplingVerifier(std::unique_ptr<NodeRule> rule) : rule_(std::move(rule)) {}
    [[nodiscard]] bool needs_probabilities() const override { return true; }

    Verdict verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                   std::int64_t position) const override {
        Verdict verdict;
        std::int32_t node = 0;
        for (;;) {
            const std::int64_t at = position + tree.depth[static_cast<std::size_t>(node)];
            const std::vector<DraftToken> drafts = drafts_of(tree, node);
            Residual residual(target(node));
            const std::size_t taken = rule_->decide(drafts, residual, [&](std::size_t trial) {
                return uniform(noise_key, at, Purpose::accept, static_cast<std::uint32_t>(trial));
            });
            if (taken == drafts.size()) {
                verdict.next_token = residual.draw(uniform(noise_key, at, Purpose::residual, 0));
                return verdict;
            }
            node = drafts[taken].node;
            verdict.nodes.push_back(node);
        }
    }

  private:
    static std::vector<DraftToken> drafts_of(const TokenTree& tree, std::int32_t node) {
        std::vector<DraftToken> drafts;
        const auto token = [&](std::int32_t child) { return tree.token[static_cast<std::size_t>(child)]; };
        for (const Trial& trial : tree.trials) {
            if (trial.parent == node)
                drafts.push_back(
                    {token(trial.child), trial.child, &tree.drafts[static_cast<std::size_t>(trial.draft)]});
        }
        for (std::int32_t child = node + 1; !tree.sampled && child < tree.num_nodes(); ++child) {
            if (tree.parent[static_cast<std::size_t>(child)] == node) drafts.push_back({token(child), child, nullptr});
        }
        return drafts;
    }

    std::unique_ptr<NodeRule> rule_;
};

}  // namespace

std::unique_ptr<Verifier> make_sampling_verifier(std::unique_ptr<NodeRule> rule) {
    return std::make_unique<SamplingVerifier>(std::move(rule));
}

}  // namespace longhaul::engine
