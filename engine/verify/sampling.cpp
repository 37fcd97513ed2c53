#include "engine/verify/sampling.hpp"

#include <algorithm>

#include "engine/sampling/noise.hpp"

namespace longhaul::engine {

std::vector<double> over_ids(std::span<const double> values, const std::vector<std::int32_t>& from,
                             const std::vector<std::int32_t>& ids) {
    if (from == ids) return {values.begin(), values.end()};
    std::vector<double> over(ids.size(), 0.0);
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        while (at < from.size() && from[at] < ids[i]) ++at;
        if (at < from.size() && from[at] == ids[i]) over[i] = values[at];
    }
    return over;
}

double Residual::probability(std::int32_t token) const {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token);
    return at != ids_.end() && *at == token ? left_[static_cast<std::size_t>(at - ids_.begin())] : 0.0;
}

void Residual::reduce(std::span<const double> by, double scale) {
    less_.resize(left_.size());
    const auto take = [](double left, double less) { return left > less ? left - less : 0.0; };
    for (std::size_t i = 0; i < left_.size(); ++i) less_[i] = take(left_[i], by[i] * scale);
    replace_left(sum_in_lanes(less_.size(), [&](std::size_t i) { return less_[i]; }));
}

void Residual::remove(std::int32_t token) {
    less_ = left_;
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token);
    if (at != ids_.end() && *at == token) less_[static_cast<std::size_t>(at - ids_.begin())] = 0;
    replace_left(sum_in_lanes(less_.size(), [&](std::size_t i) { return less_[i]; }));
}

void Residual::replace_left(double mass) {
    if (!(mass > 0)) return;
    for (double& q : less_) q /= mass;
    std::swap(left_, less_);
}

std::int32_t Residual::draw(double u) const {
    const double mark = u * sum_in_lanes(left_.size(), [&](std::size_t i) { return left_[i]; });
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
