#include "engine/model/expert_routing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/exp_nonpositive.hpp"

namespace longhaul::engine {
namespace {

double sigmoid(double x) {
    const double exp = kernels::scalar::exp_nonpositive(-std::abs(x));
    return (x < 0 ? exp : 1) / (1 + exp);
}

/// Chooses the experts of one row after another.
class Chooser {
  public:
    Chooser(const ExpertConfig& experts, std::span<const float> correction)
        : experts_(experts),
          correction_(correction),
          order_(static_cast<std::size_t>(experts.count)),
          scores_(order_.size()),
          ranks_(order_.size()),
          groups_(static_cast<std::size_t>(experts.num_groups)) {}

    /// The experts of a row in ascending order; valid until the next call.
    std::span<const std::int32_t> choose(std::span<const float> logits) {
        score(logits);
        if (experts_.num_groups > 1) keep_best_groups();
        std::iota(order_.begin(), order_.end(), 0);
        const auto better = [&](std::int32_t a, std::int32_t b) {
            return ranks_[a] != ranks_[b] ? ranks_[a] > ranks_[b] : a < b;
        };
        const auto end = order_.begin() + experts_.per_token;
        std::nth_element(order_.begin(), end - 1, order_.end(), better);
        std::sort(order_.begin(), end);
        return {order_.begin(), end};
    }

    /// Weights of the experts `chosen` last. NaN if a logit was: what is wrong with a row is not to be hidden.
    std::vector<float> weights(std::span<const std::int32_t> chosen) {
        if (is_bad_) return std::vector<float>(chosen.size(), std::nanf(""));
        double sum = experts_.score == RouterScore::sigmoid ? 1e-20 : 0;  // as transformers: all scores may be zero
        if (experts_.normalized) {
            for (const std::int32_t expert : chosen) sum += scores_[expert];
            if (is_corrected_softmax()) sum = std::max(sum, 1e-12);  // as transformers
        } else if (experts_.score == RouterScore::softmax) {
            for (const double score : scores_) sum += score;
        } else {
            sum = 1;
        }
        std::vector<float> weights;
        for (const std::int32_t expert : chosen)
            weights.push_back(static_cast<float>(scores_[expert] / sum * experts_.scale));
        return weights;
    }

  private:
    /// Sets the scores, up to a factor with softmax, and what they are chosen by.
    void score(std::span<const float> logits) {
        constexpr double lowest = -std::numeric_limits<double>::infinity();
        is_bad_ = false;
        double highest = lowest;
        for (std::size_t e = 0; e < logits.size(); ++e) {
            ranks_[e] = std::isnan(logits[e]) ? lowest : double{logits[e]};
            is_bad_ = is_bad_ || std::isnan(logits[e]);
            highest = std::max(highest, ranks_[e]);
        }
        is_bad_ = is_bad_ || std::isinf(highest);
        if (is_bad_) return;
        if (experts_.score == RouterScore::sigmoid) {
            for (std::size_t e = 0; e < logits.size(); ++e) scores_[e] = sigmoid(ranks_[e]);
        } else {
            for (std::size_t e = 0; e < logits.size(); ++e)
                scores_[e] = kernels::scalar::exp_nonpositive(ranks_[e] - highest);
        }
        if (is_corrected_softmax()) {
            const double sum = std::accumulate(scores_.begin(), scores_.end(), 0.0);
            for (double& score : scores_) score /= sum;
        }
        if (experts_.score == RouterScore::sigmoid || is_corrected_softmax()) rank_by_scores();
    }

    [[nodiscard]] bool is_corrected_softmax() const {
        return experts_.score == RouterScore::softmax && !correction_.empty();
    }

    void rank_by_scores() {
        for (std::size_t e = 0; e < scores_.size(); ++e) {
            ranks_[e] = scores_[e] + (correction_.empty() ? 0 : double{correction_[e]});
            if (!std::isnan(ranks_[e])) continue;
            is_bad_ = true;
            ranks_[e] = -std::numeric_limits<double>::infinity();
        }
    }

    /// Lowers the ranks of all experts outside of the best groups.
    void keep_best_groups() {
        const auto size = static_cast<std::ptrdiff_t>(order_.size() / groups_.size());
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            const auto first = ranks_.begin() + static_cast<std::ptrdiff_t>(g) * size;
            std::vector<double> best(experts_.score == RouterScore::sigmoid ? 2 : 1);
            std::partial_sort_copy(first, first + size, best.begin(), best.end(), std::greater<>());
            groups_[g] = {std::accumulate(best.begin(), best.end(), 0.0), first};
        }
        // Of equal groups the first is better.
        std::stable_sort(groups_.begin(), groups_.end(),
                         [](const Group& a, const Group& b) { return a.rank > b.rank; });
        for (auto group = groups_.begin() + experts_.best_groups; group != groups_.end(); ++group)
            std::fill(group->first, group->first + size, -std::numeric_limits<double>::infinity());
    }

    struct Group {
        double rank = 0;
        std::vector<double>::iterator first;  ///< rank of its first expert
    };

    ExpertConfig experts_;
    std::span<const float> correction_;
    std::vector<std::int32_t> order_;
    std::vector<double> scores_;
    std::vector<double> ranks_;  ///< what experts are chosen by
    std::vector<Group> groups_;
    bool is_bad_ = false;
};

/// Adds the shared expert to each row's terms, weighted by the sigmoid of the row's last logit.
void add_shared_terms(std::span<const float> logits, const ExpertConfig& experts, ExpertRouting& routing) {
    const auto num_logits = static_cast<std::size_t>(experts.num_logits());
    const auto per_token = static_cast<std::ptrdiff_t>(experts.per_token);
    std::vector<kernels::WeightedRow> terms;
    auto row_terms = routing.terms.cbegin();
    const auto num_copies = static_cast<std::int32_t>(routing.rows.size());
    for (std::size_t row = 0; row < logits.size() / num_logits; ++row, row_terms += per_token) {
        terms.insert(terms.end(), row_terms, row_terms + per_token);
        const float logit = logits[(row + 1) * num_logits - 1];
        terms.push_back({.row = num_copies + static_cast<std::int32_t>(row),
                         .weight = std::isnan(logit) ? logit : static_cast<float>(sigmoid(double{logit}))});
    }
    routing.terms = std::move(terms);
}

}  // namespace

ExpertRouting route(std::span<const float> logits, const ExpertConfig& experts, std::span<const float> correction,
                    std::span<const float> scales) {
    const auto count = static_cast<std::size_t>(experts.count), per_row = static_cast<std::size_t>(experts.per_token);
    const auto num_logits = static_cast<std::size_t>(experts.num_logits());
    const std::size_t num_rows = logits.size() / num_logits;
    Chooser chooser(experts, correction);
    ExpertRouting routing;
    routing.first_copies.resize(count + 1);
    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::span<const std::int32_t> chosen = chooser.choose(logits.subspan(row * num_logits, count));
        const std::vector<float> weights = chooser.weights(chosen);
        for (std::size_t i = 0; i < per_row; ++i) {
            const float scale = scales.empty() ? 1.0F : scales[static_cast<std::size_t>(chosen[i])];
            // The expert's copy follows below.
            routing.terms.push_back({.row = chosen[i], .weight = weights[i] * scale});
            ++routing.first_copies[chosen[i] + 1];
        }
    }
    std::partial_sum(routing.first_copies.begin(), routing.first_copies.end(), routing.first_copies.begin());
    routing.rows.resize(routing.terms.size());
    routing.experts.resize(routing.terms.size());
    std::vector<std::int64_t> next = routing.first_copies;
    for (std::size_t i = 0; i < routing.terms.size(); ++i) {
        const std::int32_t expert = routing.terms[i].row;
        const std::int64_t copy = next[expert]++;
        routing.experts[copy] = expert;
        routing.rows[copy] = static_cast<std::int32_t>(i / per_row);
        routing.terms[i].row = static_cast<std::int32_t>(copy);
    }
    if (experts.shared_gate) add_shared_terms(logits, experts, routing);
    return routing;
}

}  // namespace longhaul::engine
