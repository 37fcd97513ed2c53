// The logits pipeline against a plain restatement of ALGORITHMS.md section 1, filter by filter.
#include "engine/sampling/pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "kernels/exp_nonpositive.hpp"
#include "kernels/scalar_math.hpp"
#include "tests/engine/filters.hpp"

namespace longhaul::engine {
namespace {

using Probabilities = std::map<std::int32_t, double>;

void normalise(Probabilities& q) {
    double sum = 0;
    for (const auto& [token, p] : q) sum += p;
    for (auto& [token, p] : q) p /= sum;
}

std::vector<std::pair<std::int32_t, double>> by_probability(const Probabilities& q) {
    std::vector<std::pair<std::int32_t, double>> order(q.begin(), q.end());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return order;
}

/// A literal, slow implementation of that section with libm.
Probabilities expected(const std::vector<float>& logits, const SamplingParams& params,
                       const std::vector<std::int32_t>& context) {
    std::vector<float> l = logits;
    const auto window = std::min<std::size_t>(context.size(), static_cast<std::size_t>(params.penalty_window));
    for (const std::int32_t token :
         std::set<std::int32_t>(context.end() - static_cast<std::ptrdiff_t>(window), context.end())) {
        float& value = l[static_cast<std::size_t>(token)];
        const auto theta = static_cast<float>(params.repetition_penalty);
        value = value > 0 ? value / theta : value * theta;
    }
    if (params.temperature == 0)
        return {{static_cast<std::int32_t>(std::max_element(l.begin(), l.end()) - l.begin()), 1.0}};
    const double greatest = *std::max_element(l.begin(), l.end());
    Probabilities q;
    for (std::size_t v = 0; v < l.size(); ++v)
        q[static_cast<std::int32_t>(v)] = std::exp((static_cast<double>(l[v]) - greatest) / params.temperature);
    normalise(q);
    const auto keep_first = [&](std::size_t count) {
        auto order = by_probability(q);
        order.resize(std::min(count, order.size()));
        q = Probabilities(order.begin(), order.end());
        normalise(q);
    };
    if (params.top_k > 0) keep_first(static_cast<std::size_t>(std::max(params.top_k, params.min_keep)));
    if (params.top_p < 1) {
        double sum = 0;
        std::size_t count = 0;
        for (const auto& [token, p] : by_probability(q)) {
            if (sum >= params.top_p && count >= static_cast<std::size_t>(params.min_keep)) break;
            sum += p;
            ++count;
        }
        keep_first(count);
    }
    const auto keep_above = [&](double least) {
        std::size_t count = 0;
        for (const auto& [token, p] : q) count += p >= least ? 1 : 0;
        keep_first(std::max(count, static_cast<std::size_t>(params.min_keep)));
    };
    if (params.min_p > 0) keep_above(params.min_p * by_probability(q)[0].second);
    if (params.eta > 0) {
        double entropy = 0;
        for (const auto& [token, p] : q) entropy -= p > 0 ? p * std::log(p) : 0;
        keep_above(std::min(params.eta, std::sqrt(params.eta) * std::exp(-entropy)));
    }
    return q;
}

void expect_equal(const Distribution& got, const Probabilities& want, const std::string& what) {
    ASSERT_EQ(got.ids.size(), want.size()) << what;
    std::size_t i = 0;
    double sum = 0;
    for (const auto& [token, p] : want) {
        EXPECT_EQ(got.ids[i], token) << what;
        EXPECT_NEAR(got.q[i], p, 1e-9) << what;
        sum += got.q[i++];
    }
    EXPECT_NEAR(sum, 1.0, 1e-9) << what;
}

TEST(Pipeline, EqualsItsDefinition) {
    std::mt19937 random(20240501);
    std::normal_distribution<float> normal(0, 2);
    std::vector<SamplingParams> cases;
    for (const double temperature : {0.0, 0.3, 0.8, 1.0, 1.7}) {
        for (int filters = 0; filters < 32; ++filters) {
            SamplingParams params = testing::filters_of(filters);
            params.temperature = temperature;
            params.min_keep = filters % 3 == 0 ? 3 : 1;
            cases.push_back(params);
        }
    }
    for (std::size_t c = 0; c < cases.size(); ++c) {
        LogitsPipeline pipeline(cases[c], 200);
        for (int repeat = 0; repeat < 4; ++repeat) {
            std::vector<float> logits(200);
            for (float& l : logits) l = normal(random);
            std::vector<std::int32_t> context(40);
            for (auto& token : context) token = static_cast<std::int32_t>(random() % 200);
            const std::size_t split = random() % context.size();
            const NodeContext node{std::span(context).first(split), std::span(context).subspan(split)};
            const Distribution whole = pipeline.apply(logits, node);
            expect_equal(whole, expected(logits, cases[c], context), "case " + std::to_string(c));
            // Without probabilities: the same tokens with the same weights.
            const Distribution& order = pipeline.apply(logits, node, false);
            EXPECT_EQ(order.ids, whole.ids) << "case " << c;
            EXPECT_EQ(order.log_weights, whole.log_weights) << "case " << c;
        }
    }
}

/// A literal implementation of the summation order over tokens of kernels/numerics.hpp.
double sum_in_lanes_of_ids(const std::vector<std::int32_t>& ids, const std::vector<double>& terms) {
    std::vector<double> lanes(1024, 0.0);
    for (std::size_t i = 0; i < ids.size(); ++i) lanes[static_cast<std::size_t>(ids[i]) % 1024] += terms[i];
    for (std::size_t half = 512; half > 0; half /= 2) {
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

// Bit for bit, because every device must add the same numbers in the same order.
TEST(Pipeline, AddsProbabilitiesInLanesOfTokenIds) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 3);
    for (const std::size_t vocab : {3, 700, 1024, 5000}) {
        for (const bool holes : {false, true}) {
            std::vector<float> logits(vocab);
            for (float& l : logits) l = holes && random() % 3 == 0 ? NAN : normal(random);
            logits[0] = 0.5F;
            SamplingParams params;
            params.temperature = 0.7;
            const Distribution got = LogitsPipeline(params, static_cast<std::int64_t>(vocab)).apply(logits, {});
            const double greatest = *std::max_element(got.log_weights.begin(), got.log_weights.end());
            std::vector<double> weights;
            for (const double log_weight : got.log_weights)
                weights.push_back(kernels::scalar::exp_nonpositive(log_weight - greatest));
            const double sum = sum_in_lanes_of_ids(got.ids, weights);
            for (double& weight : weights) weight /= sum;
            EXPECT_EQ(got.q, weights) << vocab;

            params.eta = 0.01;
            const Distribution kept = LogitsPipeline(params, static_cast<std::int64_t>(vocab)).apply(logits, {});
            std::vector<double> terms;
            for (const double q : weights) terms.push_back(q * kernels::scalar::det_log(q));
            const double entropy = -sum_in_lanes_of_ids(got.ids, terms);
            const double least = std::min(params.eta, std::sqrt(params.eta) * kernels::scalar::det_exp(-entropy));
            std::vector<std::int32_t> above;
            for (std::size_t i = 0; i < weights.size(); ++i) {
                if (weights[i] >= least) above.push_back(got.ids[i]);
            }
            EXPECT_EQ(kept.ids, above) << vocab;
        }
    }
}

// A penalty below 1 raises logits. The largest float cannot be raised further, and some token must always be left.
TEST(Pipeline, PenalisesTheGreatestNumberUpwards) {
    for (int filters = 0; filters < 16; ++filters) {
        SamplingParams params = testing::filters_of(filters);
        params.repetition_penalty = 0.5;
        const std::vector<float> logits{INFINITY, 1, 2, 3};
        const std::vector<std::int32_t> context{0};
        LogitsPipeline pipeline(params, 4);
        const Distribution& got = pipeline.apply(logits, {context, {}});
        ASSERT_FALSE(got.ids.empty()) << filters;
        EXPECT_EQ(got.ids[0], 0);
        EXPECT_GT(got.q[0], 0.99);
    }
}

// Each tree node is penalised for its own path: a token drafted on this path counts, one on another path does not.
TEST(Pipeline, PenaltyIsPerNode) {
    SamplingParams params;
    params.temperature = 0;
    params.repetition_penalty = 2.0;
    params.penalty_window = 3;
    LogitsPipeline pipeline(params, 4);
    const std::vector<float> logits = {1.0F, 1.5F, 1.4F, -1.0F};
    const std::vector<std::int32_t> sequence = {1, 3, 3};
    EXPECT_EQ(pipeline.apply(logits, {sequence, {}}).ids[0], 2);  // 1 is in the window
    EXPECT_EQ(pipeline.apply(logits, {sequence, std::vector<std::int32_t>{2}}).ids[0],
              1);  // the path pushed it out; 2 is penalised
    EXPECT_EQ(pipeline.apply(logits, {sequence, std::vector<std::int32_t>{2, 1}}).ids[0], 0);
}

TEST(Pipeline, TiesGoToTheLowestId) {
    SamplingParams greedy;
    greedy.temperature = 0;
    const std::vector<float> flat = {0.5F, 2.0F, 2.0F, 2.0F, -1.0F};
    EXPECT_EQ(LogitsPipeline(greedy, 5).apply(flat, {}).ids[0], 1);
    SamplingParams top2;
    top2.top_k = 2;
    EXPECT_EQ(LogitsPipeline(top2, 5).apply(flat, {}).ids, (std::vector<std::int32_t>{1, 2}));
    SamplingParams half;
    half.top_p = 0.3;
    EXPECT_EQ(LogitsPipeline(half, 5).apply(flat, {}).ids[0], 1);
}

TEST(Pipeline, BadLogitsDoNotEndTheProgram) {
    SamplingParams params;
    LogitsPipeline pipeline(params, 3);
    EXPECT_EQ(pipeline.apply(std::vector<float>{NAN, NAN, NAN}, {}).ids, std::vector<std::int32_t>{0});
    EXPECT_EQ(pipeline.apply(std::vector<float>{NAN, 1.0F, -INFINITY}, {}).ids, std::vector<std::int32_t>{1});
    params.temperature = 0;
    EXPECT_EQ(LogitsPipeline(params, 3).apply(std::vector<float>{NAN, 1.0F, 0.0F}, {}).ids[0], 1);
}

// Skipping tokens that cannot win must not change the winner: compared with a plain argmax over all tokens.
TEST(GumbelArgmax, EqualsThePlainSearch) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 4);
    LogitsPipeline pipeline(SamplingParams{}, 300);
    int other_than_mode = 0;
    for (int repeat = 0; repeat < 300; ++repeat) {
        std::vector<float> logits(300);
        for (float& l : logits) l = normal(random);
        const Distribution& q = pipeline.apply(logits, {});
        const NoiseRow noise(17, repeat);
        std::int32_t best = -1;
        double best_score = -INFINITY;
        for (std::size_t i = 0; i < q.ids.size(); ++i) {
            const double score = q.log_weights[i] + static_cast<double>(noise.gumbel(q.ids[i]));
            if (score > best_score) {
                best_score = score;
                best = q.ids[i];
            }
        }
        EXPECT_EQ(gumbel_argmax(q, noise), best);
        other_than_mode += best != std::max_element(logits.begin(), logits.end()) - logits.begin() ? 1 : 0;
    }
    EXPECT_GT(other_than_mode, 50);
}

// Draws follow q: chi-square over 20,000 positions, significance 1e-4 (critical value of 7 degrees of freedom: 29.9).
TEST(GumbelArgmax, DrawsAreDistributedAsQ) {
    const std::vector<float> logits = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -2.0F, 1.5F, -0.5F};
    LogitsPipeline pipeline(SamplingParams{}, 8);
    const Distribution& q = pipeline.apply(logits, {});
    std::vector<int> counts(8, 0);
    constexpr int draws = 20000;
    for (int i = 0; i < draws; ++i)
        ++counts[static_cast<std::size_t>(gumbel_argmax(q, NoiseRow(noise_key(3, "chi", 0), i)))];
    double chi_square = 0;
    for (std::size_t v = 0; v < 8; ++v) chi_square += std::pow(counts[v] - draws * q.q[v], 2) / (draws * q.q[v]);
    EXPECT_LT(chi_square, 29.9);
}

}  // namespace
}  // namespace longhaul::engine
