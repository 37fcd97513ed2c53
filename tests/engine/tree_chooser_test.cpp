// `draft-tree = auto` against a simulated machine and simulated drafts, on a simulated clock: what it chooses, what it
// loses, and how it adapts.
#include "engine/draft/tree_chooser.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tests/engine/simulated_drafts.hpp"

namespace longhaul::engine {
namespace {

using testing::arithmetic_bound, testing::costs_of, testing::family_of, testing::memory_bound, testing::World;

TEST(TreeChooser, GivesUpUselessDraftsAndLosesLittle) {
    for (const char* method : {"sd", "rsd-s"}) {
        for (const std::int64_t batch : {1, 4}) {
            for (const bool memory : {true, false}) {
                World world{.family = family_of(method),
                            .target = memory ? memory_bound(1) : arithmetic_bound(1),
                            .draft = memory ? memory_bound(0.125) : arithmetic_bound(0.125),
                            .chances = {0.0},
                            .sequences = batch};
                world.run(30);
                EXPECT_TRUE(world.chooser.pauses()) << method << ", batch " << batch;
                world.run(270);
                EXPECT_LT(world.loss(), 0.03) << method << ", batch " << batch << ", 300 steps";
                world.run(10'000);
                EXPECT_LT(world.loss(), 0.02) << method << ", batch " << batch << ", in the long run";
                EXPECT_GT(world.drafted_steps, 8) << "it does try again";
            }
        }
    }
}

TEST(TreeChooser, ProbesBackOff) {
    World world{.family = family_of("sd"), .target = memory_bound(1), .draft = memory_bound(0.02), .chances = {0.0}};
    world.run(2000);
    const std::int64_t early = world.drafted_steps;
    world.forget();
    world.run(10'000);
    EXPECT_LT(world.drafted_steps, early) << "though the time is five times as long";
    EXPECT_GT(world.drafted_steps, 0);
}

// Heads of one level: probes are not deeper either.
TEST(TreeChooser, AFamilyOfOneLevelIsTriedAndGivenUp) {
    TreeFamily family = family_of("medusa");
    family.max_depth = 1;
    World world{.family = family, .target = arithmetic_bound(1), .draft = arithmetic_bound(0.5), .chances = {0.05}};
    world.run(3000);
    EXPECT_GT(world.drafted_steps, 0);
    EXPECT_LT(world.drafted_steps, 600);
    EXPECT_LE(world.last.depth, 1);
}

TEST(TreeChooser, ComesNearTheBestFixedTree) {
    for (const double chance : {0.3, 0.5, 0.7, 0.9, 0.97}) {
        for (const bool memory : {true, false}) {
            for (const char* method : {"sd", "rsd-s", "replay"}) {
                World world{.family = family_of(method),
                            .target = memory ? memory_bound(1) : arithmetic_bound(1),
                            .draft = memory ? memory_bound(0.1) : arithmetic_bound(0.1),
                            .chances = {chance, 0.5 * (1 - chance), 0.2 * (1 - chance)},
                            .replayed = std::string_view(method) == "replay"};
                world.run(2000);
                EXPECT_GT(world.rate(), 0.95 * world.best_fixed_rate())
                    << method << " " << chance << (memory ? " memory" : " arithmetic") << ", last " << world.last.width
                    << "x" << world.last.depth << ", gain " << world.best_fixed_rate() * world.plain_token();
                EXPECT_GT(world.rate(), 0.97 / world.plain_token());
            }
        }
    }
}

/// Tokens per second with the best limits, plain decoding among them, of drafts that end where they are unsure.
double best_rate(const World& world) {
    double best = 1 / world.plain_token();
    for (std::int64_t depth = 1; depth <= world.family.max_depth; ++depth) {
        World fixed = world;
        fixed.run_fixed(1500, {.depth = depth, .width = 1});
        best = std::max(best, fixed.rate());
    }
    return best;
}

// A tree that the drafter ends early has drafts of the sure kind at its depths. That they are accepted does not mean
// that trees become so deep, nor that they gain.
TEST(TreeChooser, DraftsThatEndEarlyAreWorthWhatTheyBring) {
    for (const double knows : {0.2, 0.5, 0.8}) {
        for (const double pass : {0.05, 0.3, 0.9}) {
            for (const std::int64_t batch : {1, 4}) {
                World world{.family = family_of("sd"),
                            .target = costs_of({{1, 1.0}, {64, 6.0}}),
                            .draft = memory_bound(pass),
                            .chances = {0.2},
                            .sequences = batch,
                            .knows = knows};
                const double best = best_rate(world);
                world.run(2000);
                EXPECT_GT(world.rate(), 0.95 * best) << "knows " << knows << ", a pass " << pass << ", batch " << batch;
                EXPECT_GT(world.rate(), 0.97 / world.plain_token()) << knows << " " << pass << " " << batch;
            }
        }
    }
}

// The same of a drafter that works for all levels (a chain of hidden states) and then drops what seems not to pay, at
// times the whole tree: what it dropped has cost its passes all the same.
TEST(TreeChooser, DraftsThatAreLeftOutAfterwardsHaveCostTheirPasses) {
    for (const double knows : {0.2, 0.5, 0.8}) {
        for (const double pass : {0.03, 0.15, 0.5}) {
            for (const std::int64_t batch : {1, 4}) {
                for (const bool leftovers : {false, true}) {
                    World world{.family = family_of("sd"),
                                .target = costs_of({{1, 1.0}, {64, 6.0}}),
                                .draft = memory_bound(pass),
                                .chances = {0.0},
                                .sequences = batch,
                                .knows = knows,
                                .leaves_out = true,
                                .adds_leftovers = leftovers};
                    const double best = best_rate(world);
                    world.run(2000);
                    EXPECT_GT(world.rate(), (leftovers ? 0.94 : 0.95) * best)
                        << "knows " << knows << ", a pass " << pass << ", batch " << batch << ", " << leftovers;
                }
            }
        }
    }
}

// N-grams at the head of trees leave the model fewer levels, or keep the text from getting to them.
TEST(TreeChooser, DraftsBehindNgramsAreWorthWhatTheyBring) {
    for (const double begins : {0.3, 0.7}) {
        for (const double chance : {0.5, 0.8}) {
            for (const double pass : {0.05, 0.3}) {
                World world{.family = family_of("sd"),
                            .target = costs_of({{1, 1.0}, {64, 6.0}}),
                            .draft = memory_bound(pass),
                            .chances = {chance},
                            .begins_with_ngrams = begins};
                const double best = best_rate(world);
                world.run(2000);
                EXPECT_GT(world.rate(), 0.95 * best) << begins << " " << chance << " " << pass;
            }
        }
    }
}

// N-grams that did not pay beside other drafts must not make plain decoding look slow.
TEST(TreeChooser, NgramsThatCostMoreThanTheyBringAreNoPartOfPlainDecoding) {
    World world{.family = family_of("sd"), .target = arithmetic_bound(1), .draft = memory_bound(0.5), .chances = {0.3}};
    world.ngram_rows = 6;
    world.run(40);
    world.ngram_rows = 0;
    world.forget();
    world.run(1000);
    EXPECT_LT(world.loss(), 0.03);
}

void expect_about_three_levels(World& world) {
    world.run(500);
    world.forget();
    world.run(1000);
    const double depth = static_cast<double>(world.levels) / static_cast<double>(world.drafted_steps);
    EXPECT_GT(depth, 2) << world.reuse_every;
    EXPECT_LT(depth, 5) << world.reuse_every << ": three levels gain most";
}

// A step that tries what an earlier draft has left takes hardly any time to draft. Trees must not get deeper for it.
TEST(TreeChooser, ReusedDraftsDoNotMakeDraftsLookCheap) {
    for (const std::int64_t every : {0, 2, 3}) {
        World world{.family = family_of("sd"),
                    .target = memory_bound(1),
                    .draft = memory_bound(0.3),
                    .chances = {0.8},
                    .reuse_every = every};
        expect_about_three_levels(world);
    }
}

// In a batch hardly any step is without a sequence that tries what was left. The others draft, and their time counts.
TEST(TreeChooser, ABatchWhereSomeReuseDraftsLearnsWhatDraftingCosts) {
    for (const std::int64_t every : {0, 2, 4}) {
        World world{.family = family_of("sd"),
                    .target = memory_bound(1),
                    .draft = memory_bound(0.02),
                    .chances = {0.8},
                    .sequences = 4,
                    .draft_surprise = 15,
                    .reuse_every = every};
        expect_about_three_levels(world);
    }
}

// Few tokens, a noisy clock, a model that overestimates the cost of rows, and luck: a few misses in a row must not stop
// drafts, and a few lucky hits must not keep them. The promise of 5 % holds for the mean of several runs;
// a single run of 600 steps also pays for learning and for its own luck, hence 15 %.
TEST(TreeChooser, IsNotMisledByNoiseAndLuck) {
    for (const char* method : {"sd", "rsd-s"}) {
        for (const double chance : {0.05, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9}) {
            for (const double row : {0.005, 0.05}) {
                double share = 0;
                constexpr unsigned num_runs = 10;
                for (unsigned run = 0; run < num_runs; ++run) {
                    World world{.family = family_of(method),
                                .target = costs_of({{1, 1.0}, {64, 1.0 + 63 * row}}),
                                .draft = memory_bound(0.2),
                                .chances = {chance, 0.3 * (1 - chance), 0.2 * (1 - chance)},
                                .believed = costs_of({{1, 1.0}, {64, 1.0 + 3 * 63 * row}}),
                                .noise = 0.1};
                    world.random.seed(run);
                    world.disturbance.seed(run);
                    world.run(600);
                    share += world.rate() / world.best_fixed_rate() / num_runs;
                    EXPECT_GT(world.rate(), 0.85 * world.best_fixed_rate()) << method << " " << chance << " " << run;
                }
                EXPECT_GT(share, 0.95) << method << " " << chance << ", a row " << row;
            }
        }
    }
}

// Other programs take each processor half of the time, for many steps of a small model at once.
TEST(TreeChooser, DraftsOnBesideOtherPrograms) {
    for (const double interruption : {3.0, 10.0, 30.0}) {
        for (const double chance : {0.4, 0.6, 0.8}) {
            World world{.family = family_of("sd"),
                        .target = memory_bound(1),
                        .draft = memory_bound(0.15),
                        .chances = {chance},
                        .interruption = interruption};
            world.run(5000);
            EXPECT_GT(world.rate(), 0.93 * world.best_fixed_rate()) << chance << ", pauses of " << interruption;
        }
        World useless{.family = family_of("sd"),
                      .target = memory_bound(1),
                      .draft = memory_bound(0.15),
                      .chances = {0.0},
                      .interruption = interruption};
        useless.run(5000);
        EXPECT_LT(useless.loss(), 0.03);
    }
}

TEST(TreeChooser, DraftsDeepWhereDraftsAreGood) {
    World world{.family = family_of("sd"), .target = memory_bound(1), .draft = memory_bound(0.05), .chances = {0.97}};
    world.run(200);
    EXPECT_GE(world.last.depth, 10);
    EXPECT_FALSE(world.chooser.pauses());
}

TEST(TreeChooser, GoesWideWhereSecondGuessesAreGood) {
    World world{.family = family_of("rsd-s"),
                .target = memory_bound(1),
                .draft = memory_bound(0.1),
                .chances = {0.3, 0.25, 0.2, 0.15}};
    world.run(400);
    EXPECT_GE(world.last.width, 4);
}

// A ninth row doubles the cost of a pass.
TEST(TreeChooser, StaysBelowAStepInThePrice) {
    World world{.family = family_of("sd"),
                .target = costs_of({{1, 1.0}, {8, 1.0}, {9, 2.0}, {64, 2.0}}),
                .draft = costs_of({{1, 0.01}, {64, 0.01}}),
                .chances = {0.8}};
    world.run(300);
    world.forget();
    world.run(60);
    EXPECT_EQ(world.last.depth, 7);
}

TEST(TreeChooser, FindsOutWhatTheModelOfCostsDoesNotKnow) {
    World world{.family = family_of("sd"),
                .target = memory_bound(1),
                .draft = memory_bound(0.1),
                .chances = {0.5},
                .draft_surprise = 10};  // a draft takes as long as the target
    world.run(2000);
    EXPECT_LT(world.loss(), 0.03);
}

// Drafts gain a tenth but slow down all passes by more. While passes without drafts are rare, they look slow too.
TEST(TreeChooser, SeesWhatDraftsCostThePassesAfterThem) {
    World world{.family = family_of("sd"),
                .target = memory_bound(1),
                .draft = memory_bound(0.1),
                .chances = {0.3},
                .after_drafts = 1.3};
    world.run(3000);
    EXPECT_LT(world.loss(), 0.03);
}

TEST(TreeChooser, RecoversWhenDraftsGetGood) {
    World world{.family = family_of("rsd-s"), .target = memory_bound(1), .draft = memory_bound(0.1), .chances = {0.0}};
    world.run(3000);
    ASSERT_TRUE(world.chooser.pauses());
    world.chances = {0.9};
    world.run(4000);
    EXPECT_FALSE(world.chooser.pauses());
    world.forget();
    world.run(500);
    EXPECT_GT(world.rate(), 0.95 * world.best_fixed_rate());
}

/// Drafts that read a part of the text: they do not pay while it is short, and do from about 900 tokens on. After so
/// many steps in short texts that timed probes have become rare.
World drafts_for_long_texts() {
    TreeFamily family = family_of("sd");
    family.follows_text = false;
    family.draft_context = [](std::int64_t, std::int64_t) { return CostModel::base_context; };
    World world{
        .family = family,
        .target = {1, {{.rows = 1, .layer = 1, .layer_token = 1e-3}, {.rows = 64, .layer = 6, .layer_token = 1e-3}}},
        .draft = memory_bound(0.9),
        .chances = {0.7}};
    world.run(9000);
    EXPECT_TRUE(world.chooser.pauses());
    return world;
}

TEST(TreeChooser, TriesAgainAsTheTextGrows) {
    World world = drafts_for_long_texts();
    while (world.context < 3000) {
        const std::int64_t before = world.tokens;
        world.step();
        world.context += world.tokens - before;
        if (world.context < 1500) world.drafted_steps = world.steps = 0;
    }
    EXPECT_GT(world.drafted_steps, world.steps * 9 / 10);
}

// In a batch of 16 each row costs as much as a pass. Once most of the texts have ended drafts pay at once.
TEST(TreeChooser, TriesAgainAsTheBatchShrinks) {
    World world{.family = family_of("self"),
                .target = costs_of({{1, 1.0}, {8, 1.0}, {64, 8.0}}),
                .draft = memory_bound(0.1),
                .chances = {0.6},
                .sequences = 16};
    world.run(9000);
    ASSERT_TRUE(world.chooser.pauses());
    world.sequences = 2;
    world.run(50);
    world.forget();
    world.run(300);
    EXPECT_GT(world.drafted_steps, world.steps * 9 / 10);
}

// Probes that come early, because the text has grown, take nothing from the timed ones: after one text whose drafts
// were useless, those of the next texts are found to be good as soon as before.
TEST(TreeChooser, ProbesAsTheTextGrowsDoNotPutOffOthers) {
    World world{.family = family_of("sd"), .target = memory_bound(1), .draft = memory_bound(0.05), .chances = {0.0}};
    const auto write_item = [&] {
        for (world.context = 100; world.context < 768;) {
            const std::int64_t before = world.tokens;
            world.step();
            world.context += world.tokens - before;
        }
    };
    write_item();
    ASSERT_TRUE(world.chooser.pauses());
    world.chances = {0.8};
    world.forget();
    for (int item = 0; item < 8; ++item) write_item();
    EXPECT_GT(world.rate(), 2 / world.plain_token());
}

// As long as n-grams lead the text elsewhere a model's drafts are worth nothing, however good they are.
TEST(TreeChooser, DraftsAreTriedAnewOnceNgramsNoLongerKeepTheTextFromThem) {
    World world{.family = family_of("sd"),
                .target = memory_bound(1),
                .draft = memory_bound(0.3),
                .chances = {0.6},
                .begins_with_ngrams = 0.9,
                .ngrams_right = 0.05};
    world.run(1000);
    ASSERT_TRUE(world.chooser.pauses());
    world.begins_with_ngrams = 0;
    world.run(1500);
    EXPECT_FALSE(world.chooser.pauses());
}

TEST(TreeChooser, GivesUpWhenDraftsGetBad) {
    World world{.family = family_of("sd"), .target = memory_bound(1), .draft = memory_bound(0.1), .chances = {0.9}};
    world.run(1000);
    ASSERT_FALSE(world.chooser.pauses());
    world.chances = {0.0};
    world.forget();
    world.run(100);
    EXPECT_TRUE(world.chooser.pauses());
    world.run(2000);
    EXPECT_LT(world.loss(), 0.03);
}

// A copy of the target reads nothing after a pause, so it is tried again more often.
TEST(TreeChooser, ProbesCostNoReadingWhereDraftsDoNotFollowTheText) {
    const auto drafted = [](bool follows_text) {
        TreeFamily family = family_of("rsd-s");
        family.follows_text = follows_text;
        World world{.family = family, .target = memory_bound(1), .draft = arithmetic_bound(0.1), .chances = {0}};
        world.run(3000);
        return world.drafted_steps;
    };
    EXPECT_GT(drafted(false), drafted(true));
}

// Drafts that read a part of a long text stay cheap there.
TEST(TreeChooser, DraftsMayReadLessThanTheTarget) {
    const CostModel costs(
        1, {{.rows = 1, .layer = 1, .layer_token = 1e-4}, {.rows = 64, .layer = 1.3, .layer_token = 1e-4}});
    const CostModel draft(
        1, {{.rows = 1, .layer = 0.2, .layer_token = 1e-4}, {.rows = 64, .layer = 0.3, .layer_token = 1e-4}});
    const auto depth_at = [&](bool reads_less) {
        TreeFamily family = family_of("sd");
        if (reads_less)
            family.draft_context = [](std::int64_t context, std::int64_t) {
                return std::min<std::int64_t>(context, 512);
            };
        TreeChooser chooser(family, costs, {draft});
        TreeLimits limits;
        for (int i = 0; i < 3; ++i) limits = chooser.choose({.sequences = 1, .context = 100'000});
        return limits.depth;
    };
    EXPECT_GT(depth_at(true), 1);
    EXPECT_LE(depth_at(false), 1);
}

// A tree of heads behind passes of a model: the first levels cost a pass each, those of the heads almost nothing.
TEST(TreeChooser, LevelsOfHeadsComeAfterThePasses) {
    TreeFamily family = family_of("tokenswift");
    family.passes = 2;
    EXPECT_EQ(family.fan_out(0, 4), 1);
    EXPECT_EQ(family.fan_out(1, 4), 4);
    EXPECT_EQ(family.fan_out(2, 4), 2);
    const auto depth_with = [&](std::int64_t passes) {
        family.passes = passes;
        family.max_depth = 5;
        TreeChooser chooser(family, memory_bound(1), {memory_bound(0.4)});
        TreeLimits limits;
        for (int i = 0; i < 2; ++i) limits = chooser.choose({.sequences = 1, .context = 100});
        return limits.depth;
    };
    EXPECT_GT(depth_with(1), depth_with(5));
}

TEST(TreeChooser, ChoosesNothingWhereNothingDecodes) {
    TreeChooser chooser(family_of("sd"), memory_bound(1), {memory_bound(0.1)});
    EXPECT_EQ(chooser.choose({.sequences = 0, .context = 0}).depth, 0);
    chooser.record({.sequences = 1, .rows = 1, .tokens = 1, .forward_seconds = 1});
    EXPECT_GT(chooser.choose({.sequences = 1, .context = 9}).depth, 0);
}

}  // namespace
}  // namespace longhaul::engine
