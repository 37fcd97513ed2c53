// The order of work, and how a rank's cores are chosen.
#include "runner/scheduler.hpp"

#include <gtest/gtest.h>

#include <set>

#include "runner/placement.hpp"

namespace longhaul::runner {
namespace {

WorkFacts facts_of(std::vector<std::int64_t> bytes, std::int64_t samples = 1) {
    WorkFacts facts;
    facts.num_inputs = static_cast<std::int64_t>(bytes.size());
    facts.samples = samples;
    facts.done = [](const ItemKey&) { return false; };
    facts.checkpointed_tokens = [](const ItemKey&) { return -1; };
    facts.prompt_bytes = [bytes](std::int64_t index) { return bytes[static_cast<std::size_t>(index)]; };
    return facts;
}

using Order = std::vector<std::int64_t>;

TEST(OrderOfWork, LongestFirstAndThenTheInput) {
    EXPECT_EQ(order_of_work(facts_of({5, 9, 5, 7})), (Order{1, 3, 0, 2}));
}

TEST(OrderOfWork, CheckpointedFirstTheFurthestOnFirst) {
    WorkFacts facts = facts_of({5, 9, 5, 7});
    facts.checkpointed_tokens = [](const ItemKey& key) { return key.index == 0 ? 0 : key.index == 2 ? 40 : -1; };
    EXPECT_EQ(order_of_work(facts), (Order{2, 0, 1, 3}));
}

TEST(OrderOfWork, DoneItemsAreLeftOut) {
    WorkFacts facts = facts_of({5, 9, 5, 7}, 2);
    facts.done = [](const ItemKey& key) { return key.index != 1 || key.sample == 0; };
    EXPECT_EQ(order_of_work(facts), (Order{3}));
    facts.done = [](const ItemKey&) { return true; };
    EXPECT_TRUE(order_of_work(facts).empty());
}

TEST(OrderOfWork, SamplesOfAPromptStandTogether) {
    EXPECT_EQ(order_of_work(facts_of({1, 2}, 3)), (Order{3, 4, 5, 0, 1, 2}));
}

std::vector<int> cores(int count) {
    std::vector<int> all(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = i;
    return all;
}

TEST(Placement, RanksShareTheCoresWithoutOverlap) {
    for (int ranks = 1; ranks <= 12; ++ranks) {
        std::set<int> used;
        std::size_t given = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const Placement placement = divide(cores(12), {rank, ranks}, 0);
            EXPECT_EQ(placement.threads, static_cast<int>(placement.processors.size()));
            EXPECT_FALSE(placement.oversubscribed);
            used.insert(placement.processors.begin(), placement.processors.end());
            given += placement.processors.size();
        }
        EXPECT_EQ(used.size(), 12U) << ranks;
        EXPECT_EQ(given, 12U) << ranks;
    }
}

TEST(Placement, MoreRanksThanCores) {
    for (int rank = 0; rank < 64; ++rank) {
        const Placement placement = divide(cores(2), {rank, 64}, 0);
        EXPECT_EQ(placement.threads, 1);
        EXPECT_EQ(placement.processors.size(), 1U);
        EXPECT_TRUE(placement.oversubscribed);
    }
}

TEST(Placement, MoreThreadsThanTheShare) {
    const Placement placement = divide(cores(4), {1, 2}, 3);
    EXPECT_EQ(placement.threads, 3);
    EXPECT_EQ(placement.processors, cores(4));
    EXPECT_TRUE(placement.oversubscribed);
    EXPECT_FALSE(divide(cores(4), {1, 2}, 1).oversubscribed);
}

TEST(Placement, SaysWhatItChose) {
    EXPECT_EQ(divide({0, 1, 2, 3, 8, 10}, {0, 1}, 0).describe(),
              "processors 0-3,8,10 (6 of 6 cores), 6 threads, 1 rank on the node");
    EXPECT_FALSE(usable_cores().empty());
}

}  // namespace
}  // namespace longhaul::runner
