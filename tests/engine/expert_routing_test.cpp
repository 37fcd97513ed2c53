// Which experts the rows of a pass have: chosen by each row's logits alone, grouped by expert, added in their order.
#include "engine/model/expert_routing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace longhaul::engine {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const float nan = std::nanf("");

/// The experts of row `row`, in the order in which their outputs are added.
std::vector<std::size_t> experts_of(const ExpertRouting& routing, std::size_t row, std::size_t per_row) {
    std::vector<std::size_t> experts;
    for (std::size_t i = 0; i < per_row; ++i) {
        const std::int32_t copy = routing.terms[row * per_row + i].row;
        EXPECT_EQ(routing.rows[copy], static_cast<std::int32_t>(row));
        std::size_t expert = 0;
        while (routing.first_copies[expert + 1] <= copy) ++expert;
        experts.push_back(expert);
    }
    return experts;
}

std::vector<float> weights_of(const ExpertRouting& routing) {
    std::vector<float> weights;
    for (const kernels::WeightedRow& term : routing.terms) weights.push_back(term.weight);
    return weights;
}

TEST(ExpertRouting, RowsOfAnExpertStandTogether) {
    const std::vector<float> logits = {0, 3, 1, 2,  //
                                       5, 1, 4, 0,  //
                                       0, 9, 8, 7};
    const ExpertRouting routing = route(logits, {.count = 4, .per_token = 2});
    EXPECT_EQ(routing.first_copies, (std::vector<std::int64_t>{0, 1, 3, 5, 6}));
    EXPECT_EQ(routing.rows, (std::vector<std::int32_t>{1, 0, 2, 1, 2, 0}));
    EXPECT_EQ(experts_of(routing, 0, 2), (std::vector<std::size_t>{1, 3}));
    EXPECT_EQ(experts_of(routing, 1, 2), (std::vector<std::size_t>{0, 2}));
    EXPECT_EQ(experts_of(routing, 2, 2), (std::vector<std::size_t>{1, 2}));
}

TEST(ExpertRouting, WeightsAreSoftmaxOverTheChosenOrOverAll) {
    const std::vector<float> logits = {std::log(2.0F), std::log(5.0F), std::log(3.0F)};
    const std::vector<float> chosen = weights_of(route(logits, {.count = 3, .per_token = 2, .normalized = true}));
    EXPECT_FLOAT_EQ(chosen[0], 5.0F / 8);
    EXPECT_FLOAT_EQ(chosen[1], 3.0F / 8);
    const std::vector<float> all = weights_of(route(logits, {.count = 3, .per_token = 2, .normalized = false}));
    EXPECT_FLOAT_EQ(all[0], 0.5F);
    EXPECT_FLOAT_EQ(all[1], 0.3F);
}

TEST(ExpertRouting, TheSharedExpertIsWeighedByTheSigmoidOfTheLastLogit) {
    const std::vector<float> logits = {0, 0, 9, 0,      //
                                       5, 1, 0, -50.0,  //
                                       1, 2, 0, nan};
    const ExpertRouting routing = route(logits, {.count = 3, .per_token = 1, .shared_gate = true});
    EXPECT_EQ(routing.rows, (std::vector<std::int32_t>{1, 2, 0}));
    std::vector<std::int32_t> rows;
    for (const kernels::WeightedRow& term : routing.terms) rows.push_back(term.row);
    EXPECT_EQ(rows, (std::vector<std::int32_t>{2, 3, 0, 4, 1, 5})) << "the shared expert's rows follow the copies";
    const std::vector<float> weights = weights_of(routing);
    EXPECT_EQ(weights[0], 1.0F);
    EXPECT_EQ(weights[1], 0.5F);
    EXPECT_FLOAT_EQ(weights[3], static_cast<float>(std::exp(-50.0)));
    EXPECT_EQ(weights[4], 1.0F);
    EXPECT_TRUE(std::isnan(weights[5]));
}

TEST(ExpertRouting, WeightsAreMultipliedByTheExpertsScales) {
    const std::vector<float> logits = {std::log(5.0F), 0, std::log(3.0F)}, scales = {2, 100, -4};
    const std::vector<float> weights = weights_of(route(logits, {.count = 3, .per_token = 2}, {}, scales));
    EXPECT_FLOAT_EQ(weights[0], 2 * 5.0F / 8);
    EXPECT_FLOAT_EQ(weights[1], -4 * 3.0F / 8);
}

/// Scores 1/2, 1/4 and 1/5: the correction chooses the last two, and their weights are as if it were not there.
TEST(ExpertRouting, ACorrectionChoosesExpertsAndDoesNotWeighThem) {
    const std::vector<float> logits = {0, -std::log(3.0F), -std::log(4.0F)}, correction = {-1, 0, 0.1F};
    ExpertConfig experts{.count = 3, .per_token = 2, .score = RouterScore::sigmoid, .scale = 2.5};
    const ExpertRouting routing = route(logits, experts, correction);
    EXPECT_EQ(experts_of(routing, 0, 2), (std::vector<std::size_t>{1, 2}));
    EXPECT_FLOAT_EQ(weights_of(routing)[0], 2.5F * 5 / 9);
    EXPECT_FLOAT_EQ(weights_of(routing)[1], 2.5F * 4 / 9);
    EXPECT_EQ(experts_of(route(logits, experts), 0, 2), (std::vector<std::size_t>{0, 1}));
    experts.normalized = false;
    EXPECT_FLOAT_EQ(weights_of(route(logits, experts, correction))[0], 2.5F / 4);
    const std::vector<float> large = {80, -80, -80};
    EXPECT_FLOAT_EQ(weights_of(route(large, experts))[0], 2.5F);
    const std::vector<float> far = {-2000, -2000, nan};
    EXPECT_TRUE(std::isnan(weights_of(route(far, experts))[0]));
    EXPECT_TRUE(std::isnan(weights_of(route(logits, experts, std::vector<float>{0, nan, 0}))[0]));
    experts.normalized = true;
    EXPECT_EQ(weights_of(route(std::vector<float>(3, -2000), experts)), (std::vector<float>{0, 0}));
}

/// Shares 1/2, 1/3 and 1/6 of a softmax.
TEST(ExpertRouting, ACorrectionIsAddedToSharesOfASoftmax) {
    const std::vector<float> logits = {std::log(3.0F), std::log(2.0F), 0}, correction = {-1, 0, 0.1F};
    const ExpertConfig experts{.count = 3, .per_token = 2};
    const ExpertRouting routing = route(logits, experts, correction);
    EXPECT_EQ(experts_of(routing, 0, 2), (std::vector<std::size_t>{1, 2}));
    EXPECT_FLOAT_EQ(weights_of(routing)[0], 2.0F / 3);
    EXPECT_FLOAT_EQ(weights_of(routing)[1], 1.0F / 3);
    EXPECT_EQ(experts_of(route(logits, experts, std::vector<float>{-0.16F, 0, 0}), 0, 2),
              (std::vector<std::size_t>{0, 1}))
        << "1/2 - 0.16 is more than 1/6: shares, not exponentials, are corrected";
    EXPECT_EQ(experts_of(route(logits, experts, std::vector<float>{-0.4F, 0, 0}), 0, 2),
              (std::vector<std::size_t>{1, 2}));
    const std::vector<float> far = {0, -2000, -2000}, only_far = {-2, 0, 0};
    EXPECT_EQ(weights_of(route(far, experts, only_far)), (std::vector<float>{0, 0})) << "their shares are zero";
    EXPECT_TRUE(std::isnan(weights_of(route(logits, experts, std::vector<float>{0, nan, 0}))[0]));
    EXPECT_TRUE(std::isnan(weights_of(route(std::vector<float>{0, nan, 0}, experts, correction))[0]));
}

/// Groups {0, 1, 2}, {3, 4, 5} and {6, 7, 8}, of which two count.
TEST(ExpertRouting, ExpertsAreOfTheBestGroups) {
    const std::vector<float> logits = {9, 0, 0,  //
                                       5, 7, 0,  //
                                       6, 6, 1};
    ExpertConfig experts{.count = 9, .per_token = 3, .num_groups = 3, .best_groups = 2};
    const auto chosen = [&](const std::vector<float>& row, std::span<const float> correction = {}) {
        return experts_of(route(row, experts, correction), 0, 3);
    };
    EXPECT_EQ(chosen(logits), (std::vector<std::size_t>{0, 3, 4})) << "by their best expert";
    EXPECT_EQ(chosen(std::vector<float>(9, 1.0F)), (std::vector<std::size_t>{0, 1, 2})) << "of equals the first";
    experts.score = RouterScore::sigmoid;
    EXPECT_EQ(chosen(logits), (std::vector<std::size_t>{4, 6, 7})) << "by the sum of their two best";
    const std::vector<float> correction = {0, 1, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(chosen(logits, correction), (std::vector<std::size_t>{0, 1, 6})) << "with the correction";
    std::vector<float> bad = logits;
    bad[4] = nan;
    EXPECT_EQ(chosen(bad), (std::vector<std::size_t>{0, 6, 7}));
}

TEST(ExpertRouting, ARowDoesNotDependOnThoseBesideIt) {
    std::vector<float> logits;
    for (int i = 0; i < 50 * 7; ++i) logits.push_back(static_cast<float>(i * i % 101) / 10);
    const ExpertConfig experts{.count = 7, .per_token = 3};
    const ExpertRouting together = route(logits, experts);
    for (std::size_t row = 0; row < 50; ++row) {
        const ExpertRouting alone = route(std::span(logits).subspan(row * 7, 7), experts);
        EXPECT_EQ(experts_of(alone, 0, 3), experts_of(together, row, 3));
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(alone.terms[i].weight, together.terms[row * 3 + i].weight);
    }
}

TEST(ExpertRouting, OfEqualLogitsTheLowerExpertWins) {
    const std::vector<float> logits = {1, 2, 2, 2, 1};
    const ExpertRouting routing = route(logits, {.count = 5, .per_token = 2});
    EXPECT_EQ(experts_of(routing, 0, 2), (std::vector<std::size_t>{1, 2}));
    EXPECT_EQ(weights_of(routing), (std::vector<float>{0.5F, 0.5F}));
}

TEST(ExpertRouting, MayChooseAll) {
    const std::vector<float> logits = {1, 1, 1, 1};
    const ExpertRouting routing = route(logits, {.count = 4, .per_token = 4});
    EXPECT_EQ(experts_of(routing, 0, 4), (std::vector<std::size_t>{0, 1, 2, 3}));
    EXPECT_EQ(weights_of(routing), std::vector<float>(4, 0.25F));
}

/// A logit of -infinity is never above another; what is not a number must show in the row's output.
TEST(ExpertRouting, NumbersThatAreNone) {
    const std::vector<float> logits = {-infinity, 0,         1,  //
                                       nan,       0,         1,  //
                                       infinity,  0,         1,  //
                                       -infinity, -infinity, -infinity};
    const ExpertRouting routing = route(logits, {.count = 3, .per_token = 2});
    EXPECT_EQ(experts_of(routing, 0, 2), (std::vector<std::size_t>{1, 2}));
    EXPECT_FLOAT_EQ(routing.terms[0].weight + routing.terms[1].weight, 1.0F);
    for (std::size_t term = 2; term < 8; ++term) EXPECT_TRUE(std::isnan(routing.terms[term].weight)) << term;
    EXPECT_TRUE(route({}, {.count = 3, .per_token = 2}).rows.empty());
}

}  // namespace
}  // namespace longhaul::engine
