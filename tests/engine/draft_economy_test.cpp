// Whether one more draft pays off: the cost of a row, learned from passes of different sizes.
#include "engine/draft/draft_economy.hpp"

#include <gtest/gtest.h>

namespace longhaul::engine {
namespace {

/// Passes of 1 to 8 rows that take `base` seconds plus `row` per row, each emitting `tokens` tokens.
DraftEconomy after_passes(double base, double row, std::int64_t tokens, int passes = 400) {
    DraftEconomy economy;
    for (int i = 0; i < passes; ++i) {
        const std::int64_t rows = 1 + (i * 5) % 8;
        economy.record({.rows = rows,
                        .seconds = base + row * static_cast<double>(rows),
                        .tokens = tokens,
                        .ngrams = {.accepted = 1, .expected = 1.0}});
    }
    return economy;
}

// A pass of 4.5 rows takes 1.9 ms here: a token is worth that much, and a row costs 0.2 ms of it.
TEST(DraftEconomy, ANodePaysWhereItsChanceIsWorthItsRow) {
    EXPECT_NEAR(after_passes(1e-3, 2e-4, 1).min_probability(), 2e-4 / 1.9e-3, 0.005);
    EXPECT_NEAR(after_passes(1e-3, 2e-4, 2).min_probability(), 2 * 2e-4 / 1.9e-3, 0.01);
    EXPECT_LT(after_passes(5e-2, 1e-5, 1).min_probability(), 0.03) << "bound by memory: rows are free";
    EXPECT_GT(after_passes(1e-9, 1e-3, 1).min_probability(), 0.2) << "bound by arithmetic: rows cost as much as passes";
}

TEST(DraftEconomy, DraftersThatPromiseTooMuchAreBelievedLess) {
    DraftEconomy honest, boaster;
    for (int i = 0; i < 2000; ++i) {
        const std::int64_t rows = 1 + i % 8;
        const double seconds = 1e-3 + 2e-4 * static_cast<double>(rows);
        honest.record({.rows = rows, .seconds = seconds, .tokens = 1, .ngrams = {.accepted = 1, .expected = 1.0}});
        boaster.record({.rows = rows, .seconds = seconds, .tokens = 1, .ngrams = {.accepted = 1, .expected = 4.0}});
    }
    EXPECT_NEAR(boaster.min_probability() / honest.min_probability(), 4.0, 0.3);
}

TEST(DraftEconomy, TriesBeforeItKnows) {
    DraftEconomy economy;
    EXPECT_LT(economy.min_probability(), 0.2);
    for (int i = 0; i < 200; ++i) economy.record({.rows = 1, .seconds = 1e-3, .tokens = 1});
    EXPECT_LE(economy.min_probability(), 0.1) << "all passes alike say nothing against drafting";
}

// In a batch whose rows fill a pass, even the first nodes must be worth their rows.
TEST(DraftEconomy, NodesHaveTheCostModelsPriceUntilPassesAreMeasured) {
    DraftEconomy economy;
    economy.set_modelled_price(0.6);
    EXPECT_DOUBLE_EQ(economy.min_probability(), 0.6);
    economy.set_modelled_price(0.01);
    EXPECT_DOUBLE_EQ(economy.min_probability(), 0.1) << "rows that cost nothing are tried, not all of them";
    economy.set_modelled_price(50);
    EXPECT_LE(economy.min_probability(), 2);
    economy.set_modelled_price(0.6);
    for (int i = 0; i < 50; ++i) economy.record({.rows = 16, .seconds = 5e-2, .tokens = 16});
    EXPECT_NEAR(economy.min_probability(), 0.6, 1e-9) << "passes of one size say nothing about a row";
    for (int i = 0; i < 200; ++i) economy.record({.rows = 1 + i % 8, .seconds = 5e-2, .tokens = 1});
    EXPECT_LT(economy.min_probability(), 0.1) << "rows cost nothing, as measured";
}

// A level costs a pass of the draft model besides its row: 0.3 ms and 0.2 ms where a token is worth 2.2 ms.
TEST(DraftEconomy, ALevelPaysWhereItsChanceIsWorthItsPass) {
    DraftEconomy economy;
    for (int i = 0; i < 400; ++i) {
        const std::int64_t rows = 1 + (i * 5) % 8;
        economy.record({.rows = rows,
                        .seconds = 1e-3 + 2e-4 * static_cast<double>(rows),
                        .model_passes = 1,
                        .draft_seconds = 3e-4,
                        .tokens = 1,
                        .ngrams = {.accepted = 1, .expected = 4},  // says nothing about the model
                        .models = {.accepted = 1, .expected = 1}});
    }
    EXPECT_NEAR(economy.min_level_probability(), 5e-4 / 2.2e-3, 0.01);
    EXPECT_NEAR(economy.min_node_probability(), 2e-4 / 2.2e-3, 0.01);
    EXPECT_NEAR(economy.min_probability(), 4 * 2e-4 / 2.2e-3, 0.02);
}

// A copy that is right 0.9 of the time and brings 3 tokens then; its pass costs 0.27 of a token's 2.2 ms.
TEST(DraftEconomy, NgramsStandInForAPassWhereTheyLoseLessThanItCosts) {
    DraftEconomy economy;
    EXPECT_EQ(economy.sure_probability(), 1) << "nothing is known of the copy";
    const auto learn = [&](double copys_seconds, double ngrams_accepted) {
        for (int i = 0; i < 4000; ++i) {
            const bool right = i % 10 != 0;
            economy.record({.rows = 4,
                            .seconds = 1.6e-3,
                            .model_passes = 1,
                            .draft_seconds = copys_seconds,
                            .tokens = 1,
                            .ngrams = {.accepted = ngrams_accepted, .expected = 1},
                            .models = {.accepted = right ? 3.0 : 0.0, .expected = 3},
                            .first_drafts = 1,
                            .right_first_drafts = right ? 1 : 0});
        }
        return economy.sure_probability();
    };
    EXPECT_NEAR(learn(6e-4, 1), 0.9 - 6e-4 / 2.2e-3 / 3, 0.02);
    EXPECT_NEAR(learn(1e-6, 1), 0.9, 0.02) << "a pass that costs nothing";
    EXPECT_EQ(learn(6e-4, 0.5), 1) << "n-grams that promise twice as much as they keep";
}

// Interrupted passes that happened to be the larger ones made rows look expensive, and n-grams stopped. Once passes are
// of one size nothing contradicts that: the price falls until n-grams are tried and measured again.
TEST(DraftEconomy, APriceThatIsNotMeasuredAnyMoreIsForgotten) {
    DraftEconomy economy;
    for (int i = 0; i < 16; ++i) {
        const bool large = i % 4 == 0;
        economy.record({.rows = large ? 3 : 1, .seconds = large && i > 4 ? 3e-3 : 1e-3, .tokens = 1});
    }
    const double wrong = economy.min_probability();
    ASSERT_GT(wrong, 0.3);
    for (int i = 0; i < 15'000; ++i) economy.record({.rows = 1, .seconds = 1e-3, .tokens = 1});
    EXPECT_LT(economy.min_probability(), 0.1);
}

// A pass during which another process had the core must not make rows look expensive.
TEST(DraftEconomy, OneSlowPassChangesLittle) {
    DraftEconomy economy = after_passes(1e-3, 2e-4, 1);
    const double before = economy.min_probability();
    economy.record({.rows = 8, .seconds = 1.0, .tokens = 1});
    EXPECT_LT(economy.min_probability(), 2 * before);
}

}  // namespace
}  // namespace longhaul::engine
