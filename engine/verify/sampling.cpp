#include "engine/verify/sampling.hpp"

#include <algorithm>

#include "engine/sampling/noise.hpp"
#include "engine/sampling/sum_over_tokens.hpp"
#include "kernels/flush_denormals.hpp"

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

double ResidualDistribution::probability(std::int32_t token) const {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token);
    return at != ids_.end() && *at == token ? left_[at - ids_.begin()] : 0.0;
}

void ResidualDistribution::reduce(std::span<const double> by, double scale) {
    less_.resize(left_.size());
    const auto take = [](double left, double less) { return left > less ? left - less : 0.0; };
    for (std::size_t i = 0; i < left_.size(); ++i) less_[i] = take(left_[i], by[i] * scale);
    replace_left();
}

void ResidualDistribution::remove(std::int32_t token) {
    less_ = left_;
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), token);
    if (at != ids_.end() && *at == token) less_[at - ids_.begin()] = 0;
    replace_left();
}

void ResidualDistribution::replace_left() {
    const double mass = sum_over_tokens(ids_, [&](std::size_t i) { return less_[i]; });
    if (!(mass > 0)) return;
    for (double& q : less_) q /= mass;
    std::swap(left_, less_);
}

std::int32_t ResidualDistribution::draw(double u) const {
    const double mark = u * sum_over_tokens(ids_, [&](std::size_t i) { return left_[i]; });
    const auto chunk_of = [&](std::size_t i) { return ids_[i] / kernels::draw_chunk; };
    double sum = 0;
    std::int32_t last = ids_.front();
    for (std::size_t first = 0, end = 0; first < ids_.size(); first = end) {
        double of_chunk = 0;
        for (end = first; end < ids_.size() && chunk_of(end) == chunk_of(first); ++end) {
            of_chunk += left_[end];
            last = left_[end] > 0 ? ids_[end] : last;
        }
        if (!(mark < sum + of_chunk)) {
            sum += of_chunk;
            continue;
        }
        double up_to = sum;
        for (std::size_t i = first; i < end; ++i) {
            up_to += left_[i];
            if (left_[i] > 0 && mark < up_to) return ids_[i];
        }
        return last;  // rounding: the running sum of the chunk's tokens stayed below the chunk's sum
    }
    return last;
}

namespace {

double number_of(std::uint64_t key, std::int64_t at, Purpose purpose, std::size_t index) {
    return uniform(key, at, purpose, static_cast<std::uint32_t>(index));
}

std::vector<DraftToken> drafts_of(const TokenTree& tree, std::int32_t node) {
    std::vector<DraftToken> drafts;
    const auto token = [&](std::int32_t child) { return tree.token[child]; };
    for (const Trial& trial : tree.trials) {
        if (trial.parent == node) drafts.push_back({token(trial.child), trial.child, &tree.drafts[trial.draft]});
    }
    for (std::int32_t child = node + 1; !tree.sampled && child < tree.num_nodes(); ++child) {
        if (tree.parent[child] == node) drafts.push_back({token(child), child, nullptr});
    }
    return drafts;
}

class SamplingVerifier final : public NodeVerifier {
  public:
    SamplingVerifier(std::unique_ptr<NodeRule> rule, kernels::TrialRule on_device)
        : rule_(std::move(rule)), on_device_(on_device) {}
    [[nodiscard]] bool needs_probabilities() const override { return true; }
    [[nodiscard]] std::optional<kernels::TrialRule> device_rule() const override { return on_device_; }

    [[nodiscard]] Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                  std::uint64_t noise_key, std::int64_t position) const override {
        const kernels::FlushDenormals flush;
        const std::int64_t at = position + tree.depth[node];
        const std::vector<DraftToken> drafts = drafts_of(tree, node);
        ResidualDistribution residual(target(node));
        const std::size_t taken = rule_->decide(
            drafts, residual, [&](std::size_t trial) { return number_of(noise_key, at, Purpose::accept, trial); });
        if (taken < drafts.size()) return {drafts[taken].node, drafts[taken].token};
        return {-1, residual.draw(number_of(noise_key, at, Purpose::residual, 0))};
    }

  private:
    std::unique_ptr<NodeRule> rule_;
    kernels::TrialRule on_device_;
};

}  // namespace

std::unique_ptr<NodeVerifier> make_sampling_verifier(std::unique_ptr<NodeRule> rule, kernels::TrialRule on_device) {
    return std::make_unique<SamplingVerifier>(std::move(rule), on_device);
}

std::optional<DeviceTrials> device_trials(const TokenTree& tree, std::int32_t node, std::uint64_t noise_key,
                                          std::int64_t position) {
    const std::int64_t at = position + tree.depth[node];
    DeviceTrials result{.trials = {}, .children = {}, .number = number_of(noise_key, at, Purpose::residual, 0)};
    for (const DraftToken& draft : drafts_of(tree, node)) {
        const bool drawn = draft.drawn_from != nullptr;
        if (drawn && draft.drawn_from->kept == nullptr) return std::nullopt;
        result.trials.push_back({.token = draft.token,
                                 .drawn_from = drawn ? draft.drawn_from->kept : nullptr,
                                 .number = number_of(noise_key, at, Purpose::accept, result.trials.size())});
        result.children.push_back(draft.node);
    }
    return result;
}

}  // namespace longhaul::engine
