// Pearson's chi-square test, and the distribution of whole texts: shared by the statistical tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/sampling/distribution.hpp"

namespace longhaul::engine::testing {

/// Q(a, x): the probability that a Gamma(a) variable exceeds x (series below a + 1, continued fraction above).
inline double upper_gamma(double a, double x) {
    if (x <= 0) return 1;
    const double front = std::exp(-x + a * std::log(x) - std::lgamma(a));
    if (x < a + 1) {
        double term = 1 / a;
        double sum = term;
        for (int n = 1; n < 1000 && term > sum * 1e-15; ++n) sum += term *= x / (a + n);
        return 1 - sum * front;
    }
    double b = x + 1 - a;
    double c = 1e300;
    double d = 1 / b;
    double h = d;
    for (int n = 1; n < 1000; ++n) {
        const double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (std::abs(d * c - 1) < 1e-14) break;
    }
    return front * h;
}

/// p-value of `counts` against `expected` (probabilities). Cells with few expected draws are pooled. A draw whose
/// expected probability is zero is impossible.
template <typename Text>
double chi_square_p(const std::map<Text, std::int64_t>& counts, const std::map<Text, double>& expected) {
    std::int64_t draws = 0;
    for (const auto& [text, count] : counts) {
        draws += count;
        if (!expected.contains(text)) return 0;
    }
    double statistic = 0;
    double pooled_expected = 0;
    double pooled_count = 0;
    int cells = 0;
    const auto add = [&](double count, double mean) {
        statistic += (count - mean) * (count - mean) / mean;
        ++cells;
    };
    for (const auto& [text, probability] : expected) {
        const auto counted = counts.find(text);
        const double count = counted == counts.end() ? 0 : static_cast<double>(counted->second);
        const double mean = probability * static_cast<double>(draws);
        if (mean >= 8) {
            add(count, mean);
        } else {
            pooled_expected += mean;
            pooled_count += count;
        }
    }
    if (pooled_expected > 0.5) add(pooled_count, pooled_expected);
    return cells < 2 ? 1 : upper_gamma(0.5 * (cells - 1), 0.5 * statistic);
}

/// The probabilities of all texts of `length` tokens. `after(text)`: the distribution of the next token.
template <typename After>
std::map<std::vector<std::int32_t>, double> joint_distribution(std::int64_t length, const After& after) {
    std::map<std::vector<std::int32_t>, double> texts{{{}, 1.0}};
    for (std::int64_t i = 0; i < length; ++i) {
        std::map<std::vector<std::int32_t>, double> longer;
        for (const auto& [text, probability] : texts) {
            const Distribution next = after(text);
            for (std::size_t v = 0; v < next.ids.size(); ++v) {
                std::vector<std::int32_t> all = text;
                all.push_back(next.ids[v]);
                longer[all] = probability * next.q[v];
            }
        }
        texts = std::move(longer);
    }
    return texts;
}

}  // namespace longhaul::engine::testing
