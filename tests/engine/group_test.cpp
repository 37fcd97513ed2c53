// Collectives of a group: sums are added as a balanced tree over the ranks, and every rank gets the same bits.
#include "engine/parallel/group.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/thread_group.hpp"

namespace longhaul::engine {
namespace {

template <typename Body>
void on_ranks(int size, Body body) {
    auto groups = testing::make_thread_groups(size);
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&body, &group] { body(*group); });
    for (auto& thread : threads) thread.join();
}

TEST(Group, AllReduceAddsAsABalancedTree) {
    // The sum of these values depends on the order: ((a+b)+(c+d)) differs from (((a+b)+c)+d).
    const float values[8] = {1.0F, 1e8F, -1e8F, 3.0F, 0.1F, 1e-3F, 7e7F, -7e7F};
    const auto tree4 = (values[0] + values[1]) + (values[2] + values[3]);
    const auto tree8 = tree4 + ((values[4] + values[5]) + (values[6] + values[7]));
    ASSERT_NE(tree4, ((values[0] + values[1]) + values[2]) + values[3]);
    for (const auto& [size, expected] : {std::pair{4, tree4}, std::pair{8, tree8}}) {
        on_ranks(size, [&](Group& group) {
            std::vector<float> data(5, values[group.rank()]);
            group.all_reduce(data.data(), 5);
            for (const float value : data) EXPECT_EQ(value, expected);
        });
    }
}

TEST(Group, GathersAndBroadcasts) {
    on_ranks(4, [](Group& group) {
        const float mine[2] = {static_cast<float>(group.rank()), 0.5F};
        float all[8];
        group.all_gather(mine, all, 2);
        for (int r = 0; r < 4; ++r) EXPECT_EQ(all[2 * r], static_cast<float>(r));
        std::vector<std::byte> bytes(group.is_first() ? 3 : 0, std::byte{7});
        group.broadcast(bytes);
        EXPECT_EQ(bytes, std::vector<std::byte>(3, std::byte{7}));
        const auto parts = group.gather(std::vector<std::byte>(static_cast<std::size_t>(group.rank()), std::byte{1}));
        ASSERT_EQ(parts.size(), group.is_first() ? 4U : 0U);
        for (std::size_t r = 0; r < parts.size(); ++r) EXPECT_EQ(parts[r].size(), r);
    });
}

TEST(Group, RefusesOtherSizes) {
    EXPECT_THROW(testing::make_thread_groups(3), std::logic_error);
    EXPECT_THROW(testing::make_thread_groups(16), std::logic_error);
}

}  // namespace
}  // namespace longhaul::engine
