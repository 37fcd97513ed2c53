// The choice between two draft methods on a simulated machine: which one it prefers, what trying the other one costs,
// and how it follows a text and a machine that change.
#include "engine/draft/method_chooser.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "engine/draft/draft_chooser.hpp"

namespace longhaul::engine {
namespace {

/// Chains of four drafts.
struct SimulatedMethod {
    double acceptance = 0.7;  ///< of each draft
    double seconds = 1;       ///< of a step
    [[nodiscard]] double tokens() const {
        double expected = 1, reached = 1;
        for (int level = 0; level < 4; ++level) expected += reached *= acceptance;
        return expected;
    }
    [[nodiscard]] double rate() const { return tokens() / seconds; }
};

struct TwoMethods {
    std::array<SimulatedMethod, 2> methods;
    double catching_up = 2;   ///< seconds of the second method's first step after others
    double interruption = 0;  ///< seconds for which another process interrupts, about as long in all as the work
    double noise = 0.1;       ///< of a step's time
    std::int64_t sequences = 1, context = 1000;
    MethodChooser chooser{};
    std::mt19937 random{1};

    double clock = 0, work = 0;  ///< seconds; without interruptions
    std::int64_t tokens = 0;
    std::array<std::int64_t, 2> steps{};
    std::int64_t last = 0, switches = 0;

    void step() {
        const std::int64_t method = chooser.choose({.sequences = sequences, .context = context});
        const SimulatedMethod& drafts = methods[method];
        std::int64_t emitted = 0;
        for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
            ++emitted;
            for (int level = 0; level < 4 && std::bernoulli_distribution(drafts.acceptance)(random); ++level) ++emitted;
        }
        double seconds = drafts.seconds * (1 + std::abs(std::normal_distribution<double>(0, noise)(random)));
        if (method == 1 && last != 1) seconds += catching_up;
        work += seconds;
        if (interruption > 0) seconds += interruption * std::poisson_distribution<int>(seconds / interruption)(random);
        clock += seconds;
        tokens += emitted;
        context += emitted / sequences;
        switches += method != last ? 1 : 0;
        last = method;
        ++steps[method];
        chooser.record(seconds, emitted);
    }
    void run(int count) {
        for (int i = 0; i < count; ++i) step();
    }
    void forget() { clock = 0, work = 0, tokens = 0, steps = {}, switches = 0; }
    /// Tokens per second of its work, relative to the better method alone (whose steps are as noisy).
    [[nodiscard]] double efficiency() const {
        const double noisy = 1 + noise * std::sqrt(2 / 3.14159265);
        const double best = std::max(methods[0].rate(), methods[1].rate()) / noisy * static_cast<double>(sequences);
        return static_cast<double>(tokens) / work / best;
    }
};

TEST(MethodChooser, PrefersTheFasterOneEitherWay) {
    for (const double ratio : {0.5, 0.8, 1.25, 2.0}) {
        int right = 0;
        for (unsigned seed = 0; seed < 20; ++seed) {
            TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 1 / ratio}}};
            world.random.seed(seed);
            world.run(600);
            right += world.chooser.preferred() == (ratio > 1 ? 1 : 0) ? 1 : 0;
            EXPECT_GT(world.efficiency(), 0.8) << ratio << ", seed " << seed;
        }
        EXPECT_GE(right, 19) << ratio;
    }
}

// More tokens per step or less time per step: only their ratio counts.
TEST(MethodChooser, WeighsTokensAgainstSeconds) {
    const SimulatedMethod slow_and_good{.acceptance = 0.9, .seconds = 1.6}, fast{.acceptance = 0.5, .seconds = 1};
    ASSERT_GT(slow_and_good.rate(), 1.2 * fast.rate());
    for (const std::int64_t best : {0, 1}) {
        TwoMethods world{.methods = {fast, fast}};
        world.methods[best] = slow_and_good;
        world.run(2000);
        EXPECT_EQ(world.chooser.preferred(), best);
        EXPECT_TRUE(world.chooser.decided());
    }
}

TEST(MethodChooser, TheBetterOneGetsNearlyAllOfTheTime) {
    for (const std::int64_t sequences : {1, 4}) {
        for (const double ratio : {0.25, 0.7, 0.9, 1.0, 1.1, 1.4, 4.0}) {
            double efficiency = 0;
            constexpr unsigned num_runs = 10;
            for (unsigned seed = 0; seed < num_runs; ++seed) {
                TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 1 / ratio}},
                                 .sequences = sequences};
                world.random.seed(seed);
                world.run(60);
                world.forget();
                world.run(1500);
                efficiency += world.efficiency() / num_runs;
            }
            EXPECT_GT(efficiency, 0.95) << ratio << ", " << sequences;
        }
    }
}

TEST(MethodChooser, TrialsOfAMuchSlowerMethodCostLittle) {
    TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 10}}, .catching_up = 30};
    world.run(300);
    EXPECT_LT(world.steps[1], 30);
    EXPECT_LT(world.clock - static_cast<double>(world.tokens) / world.methods[0].rate(), 0.1 * 300 + 120);
    world.forget();
    world.run(30'000);
    EXPECT_GT(world.efficiency(), 0.98);
    EXPECT_GT(world.steps[1], 8) << "it does try again";
    EXPECT_LT(world.steps[1], 300);
}

TEST(MethodChooser, IntervalsGrowWhileTheTextStaysAsItIs) {
    TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 1.5}}};
    const auto switches = [&](int steps) {
        world.forget();
        for (int i = 0; i < steps; ++i) {
            world.context = 1000;
            world.step();
        }
        return world.switches;
    };
    const std::int64_t early = switches(500);
    switches(8000);
    EXPECT_LT(switches(1000), early);
    EXPECT_GT(switches(20'000), 2);
}

// One method's cost grows with the text, as plain attention does beside a window.
TEST(MethodChooser, FollowsATextThatGrows) {
    for (const std::int64_t first : {0, 1}) {
        TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{}}};
        world.methods[1 - first].seconds = 1.4;
        world.run(400);
        EXPECT_EQ(world.chooser.preferred(), first);
        while (world.context < 30'000) {
            world.methods[first].seconds = 1 + static_cast<double>(world.context) / 10'000;
            world.step();
        }
        EXPECT_EQ(world.chooser.preferred(), 1 - first);
        world.forget();
        world.run(1000);
        EXPECT_GT(world.steps[1 - first], 850);
    }
}

// The machine becomes slower and faster again: both methods' rates change, but not which one is better.
TEST(MethodChooser, AMachineThatChangesItsSpeedDoesNotDecide) {
    std::array<std::int64_t, 2> while_changing{};
    for (unsigned seed = 0; seed < 10; ++seed) {
        TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 0.75}}};
        world.random.seed(seed);
        world.run(600);
        world.forget();
        for (int change = 0; change < 12; ++change) {
            for (SimulatedMethod& method : world.methods) method.seconds *= change % 2 == 0 ? 2.5 : 0.4;
            world.run(150);
        }
        for (const int method : {0, 1}) while_changing[method] += world.steps[method];
        world.forget();
        world.run(1000);
        EXPECT_EQ(world.chooser.preferred(), 1) << seed;
        EXPECT_GT(world.steps[1], 650) << seed;
    }
    EXPECT_GT(while_changing[1], 3 * while_changing[0]);
}

// Other programs take half of each processor's time, in pauses as long as many steps.
TEST(MethodChooser, ChoosesBesideOtherPrograms) {
    for (const double interruption : {0.5, 3.0, 10.0}) {
        for (const double ratio : {0.6, 1.6}) {
            int right = 0;
            double efficiency = 0;
            constexpr unsigned num_runs = 20;
            for (unsigned seed = 0; seed < num_runs; ++seed) {
                TwoMethods world{.methods = {SimulatedMethod{}, SimulatedMethod{.seconds = 1 / ratio}},
                                 .interruption = interruption};
                world.random.seed(seed);
                world.run(2000);
                right += world.chooser.preferred() == (ratio > 1 ? 1 : 0) ? 1 : 0;
                efficiency += world.efficiency() / num_runs;
            }
            EXPECT_GE(right, 18) << interruption << ", " << ratio;
            EXPECT_GT(efficiency, 0.93) << interruption << ", " << ratio;
        }
    }
}

// --- with the tree sizes of each method

/// One layer, no head: rows of a pass cost almost nothing.
CostModel pass_of(double seconds) {
    return {1, {{.rows = 1, .layer = seconds}, {.rows = 64, .layer = 1.3 * seconds}}};
}

/// `self` and `sd` with chains; acceptance and cost of each method's drafts.
struct TwoDrafters {
    std::array<double, 2> acceptance, draft_seconds;
    DraftChooser chooser{{TreeChooser(family(0), pass_of(1), {pass_of(draft_seconds[0])}),
                          TreeChooser(family(1), pass_of(1), {pass_of(draft_seconds[1])})}};
    std::mt19937 random{3};
    double clock = 0;
    std::int64_t tokens = 0, context = 600;
    std::array<std::int64_t, 2> steps{}, drafted_steps{};

    static TreeFamily family(int method) {
        TreeFamily chain = tree_family(find_draft_method("sd"), 1);
        chain.follows_text = method == 1;
        return chain;
    }

    void step() {
        const TreeLimits limits = chooser.choose({.sequences = 1, .context = context});
        TokenTree tree;
        tree.reset(0);
        std::vector<std::int32_t> accepted;
        for (std::int32_t level = 0; level < limits.depth; ++level) {
            tree.add(level, 0, Origin::model);
            const bool reached = static_cast<std::int32_t>(accepted.size()) == level;
            if (reached && std::bernoulli_distribution(acceptance[limits.method])(random))
                accepted.push_back(level + 1);
        }
        chooser.verified(tree, accepted, false, limits.depth);
        TreeChooser::Step taken{.sequences = 1, .rows = tree.num_nodes()};
        taken.tokens = static_cast<std::int64_t>(accepted.size()) + 1;
        taken.draft_seconds = draft_seconds[limits.method] * static_cast<double>(limits.depth);
        taken.forward_seconds = pass_of(1).pass_seconds(tree.num_nodes(), CostModel::base_context);
        clock += taken.draft_seconds + taken.forward_seconds;
        tokens += taken.tokens;
        context += taken.tokens;
        ++steps[limits.method];
        drafted_steps[limits.method] += limits.depth > 0 ? 1 : 0;
        chooser.record(taken);
    }
    void run(int count) {
        for (int i = 0; i < count; ++i) step();
    }
    void forget() { clock = 0, tokens = 0, steps = {}, drafted_steps = {}; }
    [[nodiscard]] double rate() const { return static_cast<double>(tokens) / clock; }
};

TEST(DraftChooser, ComesNearTheBetterMethodAlone) {
    struct Case {
        std::array<double, 2> acceptance, draft_seconds;
        std::int64_t best;
    };
    for (const Case& one : {Case{{0.9, 0.5}, {0.3, 0.1}, 0}, Case{{0.9, 0.85}, {0.4, 0.05}, 1},
                            Case{{0.3, 0.8}, {0.5, 0.1}, 1}, Case{{0.8, 0.3}, {0.1, 0.3}, 0}}) {
        TwoDrafters world{.acceptance = one.acceptance, .draft_seconds = one.draft_seconds};
        // The better one alone: the other is the same.
        TwoDrafters alone{.acceptance = {one.acceptance[one.best], one.acceptance[one.best]},
                          .draft_seconds = {one.draft_seconds[one.best], one.draft_seconds[one.best]}};
        world.run(2000);
        alone.run(2000);
        EXPECT_GT(world.rate(), 0.95 * alone.rate()) << one.best << ", " << one.acceptance[0];
        EXPECT_GT(world.steps[one.best], 1600) << one.best << ", " << one.acceptance[0];
    }
}

TEST(DraftChooser, PausesWhereNeitherPays) {
    TwoDrafters world{.acceptance = {0.1, 0.05}, .draft_seconds = {0.5, 0.3}};
    world.run(3000);
    EXPECT_GT(world.rate(), 0.97);
    world.forget();
    world.run(3000);
    EXPECT_GT(world.rate(), 0.98);
    EXPECT_LT(world.drafted_steps[0] + world.drafted_steps[1], 150);
}

// A method that paused when it was last used is tried again when the text has changed.
TEST(DraftChooser, APausedMethodComesBack) {
    TwoDrafters world{.acceptance = {0.7, 0.0}, .draft_seconds = {0.3, 0.1}};
    world.run(2000);
    EXPECT_GT(world.steps[0], 1500);
    world.acceptance[1] = 0.9;
    world.context *= 2;
    world.run(6000);
    world.forget();
    world.run(1000);
    EXPECT_GT(world.drafted_steps[1], 800);
}

// New items wait for a draft model only while it may be the better one.
TEST(DraftChooser, FeedsTheDraftModelThatItUses) {
    TwoDrafters world{.acceptance = {0.9, 0.2}, .draft_seconds = {0.05, 0.4}};
    EXPECT_TRUE(world.chooser.feeds()) << "not known yet";
    world.run(1000);
    EXPECT_FALSE(world.chooser.feeds());
    TwoDrafters other{.acceptance = {0.2, 0.9}, .draft_seconds = {0.4, 0.05}};
    other.run(1000);
    EXPECT_TRUE(other.chooser.feeds());
}

}  // namespace
}  // namespace longhaul::engine
