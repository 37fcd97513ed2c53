#include "engine/model/expert_routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/exp_nonpositive.hpp"

namespace longhaul::engine {
namespace {

/// Chooses the experts of one row after another.
class Chooser {
  public:
    explicit Chooser(const ExpertConfig& experts)
        : experts_(experts),
          logits_(static_cast<std::size_t>(experts.count)),
          order_(logits_.size()),
          exps_(logits_.size()) {}

    /// The experts of a row in ascending order; valid until the next call.
    std::span<const std::int32_t> choose(std::span<const float> row) {
        const auto is_nan = [](float logit) { return std::isnan(logit); };
        has_nan_ = std::any_of(row.begin(), row.end(), is_nan);
        std::replace_copy_if(row.begin(), row.end(), logits_.begin(), is_nan, -std::numeric_limits<float>::infinity());
        std::iota(order_.begin(), order_.end(), 0);
        const auto better = [&](std::int32_t a, std::int32_t b) {
            return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
        };
        const auto end = order_.begin() + experts_.per_token;
        std::nth_element(order_.begin(), end - 1, order_.end(), better);
        std::sort(order_.begin(), end);
        return {order_.begin(), end};
    }

    /// Weights of the experts `chosen` last. NaN if a logit was: what is wrong with a row is not to be hidden.
    std::vector<float> weights(std::span<const std::int32_t> chosen) {
        const double highest = *std::max_element(logits_.begin(), logits_.end());
        if (has_nan_ || std::isinf(highest)) return std::vector<float>(chosen.size(), std::nanf(""));
        double sum = 0;
        const auto add = [&](std::int32_t expert) {
            exps_[expert] = kernels::scalar::exp_nonpositive(double{logits_[expert]} - highest);
            sum += exps_[expert];
        };
        if (experts_.normalized) {
            for (const std::int32_t expert : chosen) add(expert);
        } else {
            for (std::int32_t expert = 0; expert < experts_.count; ++expert) add(expert);
        }
        std::vector<float> weights;
        for (const std::int32_t expert : chosen) weights.push_back(static_cast<float>(exps_[expert] / sum));
        return weights;
    }

  private:
    ExpertConfig experts_;
    std::vector<float> logits_;
    std::vector<std::int32_t> order_;
    std::vector<double> exps_;
    bool has_nan_ = false;
};

}  // namespace

ExpertRouting route(std::span<const float> logits, const ExpertConfig& experts) {
    const auto count = static_cast<std::size_t>(experts.count), per_row = static_cast<std::size_t>(experts.per_token);
    const std::size_t num_rows = logits.size() / count;
    Chooser chooser(experts);
    ExpertRouting routing;
    routing.first_copies.resize(count + 1);
    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::span<const std::int32_t> chosen = chooser.choose(logits.subspan(row * count, count));
        const std::vector<float> weights = chooser.weights(chosen);
        for (std::size_t i = 0; i < per_row; ++i) {
            routing.terms.push_back({.row = chosen[i], .weight = weights[i]});  // the expert's copy follows below
            ++routing.first_copies[chosen[i] + 1];
        }
    }
    std::partial_sum(routing.first_copies.begin(), routing.first_copies.end(), routing.first_copies.begin());
    routing.rows.resize(routing.terms.size());
    std::vector<std::int64_t> next = routing.first_copies;
    for (std::size_t i = 0; i < routing.terms.size(); ++i) {
        const std::int64_t copy = next[routing.terms[i].row]++;
        routing.rows[copy] = static_cast<std::int32_t>(i / per_row);
        routing.terms[i].row = static_cast<std::int32_t>(copy);
    }
    return routing;
}

}  // namespace longhaul::engine
