// The order of work.
#include "runner/launch/scheduler.hpp"

#include <gtest/gtest.h>

namespace longhaul::runner {
namespace {

WorkFacts facts_of(std::vector<std::int64_t> bytes, std::int64_t samples = 1) {
    WorkFacts facts;
    facts.num_inputs = static_cast<std::int64_t>(bytes.size());
    facts.samples = samples;
    facts.done = [](const ItemKey&) { return false; };
    facts.kept_tokens = [](const ItemKey&) { return -1; };
    facts.prompt_bytes = [bytes](std::int64_t index) { return bytes[static_cast<std::size_t>(index)]; };
    return facts;
}

using Order = std::vector<std::int64_t>;

TEST(OrderOfWork, LongestFirstAndThenTheInput) {
    EXPECT_EQ(order_of_work(facts_of({5, 9, 5, 7})), (Order{1, 3, 0, 2}));
}

TEST(OrderOfWork, CheckpointedFirstTheFurthestOnFirst) {
    WorkFacts facts = facts_of({5, 9, 5, 7});
    facts.kept_tokens = [](const ItemKey& key) { return key.index == 0 ? 0 : key.index == 2 ? 40 : -1; };
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

}  // namespace
}  // namespace longhaul::runner
