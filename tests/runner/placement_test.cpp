// A node's cores divided among its ranks, on synthetic hwloc topologies.
#include "runner/host/placement.hpp"

#include <gtest/gtest.h>

#include <set>

namespace longhaul::runner {
namespace {

CoreDomains one_domain(int count) {
    CoreDomains all(1);
    for (int i = 0; i < count; ++i) all[0].push_back(i);
    return all;
}

std::vector<Placement> divide_all(const CoreDomains& domains, int ranks) {
    std::vector<Placement> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(divide(domains, {rank, ranks}, 0));
    return all;
}

TEST(Placement, RanksShareTheCoresWithoutOverlap) {
    for (int ranks = 1; ranks <= 12; ++ranks) {
        std::set<int> used;
        std::size_t given = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const Placement placement = divide(one_domain(12), {rank, ranks}, 0);
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
        const Placement placement = divide(one_domain(2), {rank, 64}, 0);
        EXPECT_EQ(placement.threads, 1);
        EXPECT_EQ(placement.processors.size(), 1U);
        EXPECT_TRUE(placement.oversubscribed);
    }
}

TEST(Placement, MoreThreadsThanTheShare) {
    const Placement placement = divide(one_domain(4), {1, 2}, 3);
    EXPECT_EQ(placement.threads, 3);
    EXPECT_EQ(placement.processors, one_domain(4)[0]);
    EXPECT_TRUE(placement.oversubscribed);
    EXPECT_FALSE(divide(one_domain(4), {1, 2}, 1).oversubscribed);
}

TEST(Placement, SaysWhatItChose) {
    EXPECT_EQ(divide({{0, 1, 2, 3, 8, 10}}, {0, 1}, 0).describe(),
              "processors 0-3,8,10 (6 of 6 cores), 6 threads, 1 rank on the node");
    EXPECT_FALSE(usable_cores().empty());
}

TEST(Placement, ReadsCoresAndDomainsOfAMachine) {
    const CoreDomains two = usable_cores("numa:2 core:4 pu:2");
    EXPECT_EQ(two, (CoreDomains{{0, 2, 4, 6}, {8, 10, 12, 14}}));  // one of two siblings
    EXPECT_EQ(usable_cores("pack:2 numa:2 core:2 pu:1").size(), 4U);
    EXPECT_EQ(usable_cores("core:3 pu:1"), (CoreDomains{{0, 1, 2}}));
}

TEST(Placement, RanksStayInsideMemoryDomains) {
    const CoreDomains machine = usable_cores("numa:2 core:8 pu:1");
    for (const int ranks : {2, 4, 8, 16}) {
        for (const Placement& placement : divide_all(machine, ranks)) {
            EXPECT_EQ(placement.domains, 1) << ranks;
            EXPECT_EQ(placement.threads, 16 / ranks);
        }
    }
    EXPECT_EQ(divide(machine, {0, 1}, 0).domains, 2);
    EXPECT_EQ(divide(machine, {0, 1}, 0).describe(),
              "processors 0-15 (16 of 16 cores), 16 threads, 1 rank on the node, 2 memory domains");
}

// The batch system reserved a core of one domain: slices of equal length would cross the boundary.
TEST(Placement, RanksStayInsideUnequalDomains) {
    const std::vector<Placement> ranks = divide_all({{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14}}, 4);
    std::set<int> used;
    for (const Placement& placement : ranks) {
        EXPECT_EQ(placement.domains, 1);
        EXPECT_GE(placement.threads, 3);
        used.insert(placement.processors.begin(), placement.processors.end());
    }
    EXPECT_EQ(used.size(), 15U);
    EXPECT_EQ(ranks[1].processors, (std::vector<int>{4, 5, 6, 7}));
    EXPECT_EQ(ranks[2].processors, (std::vector<int>{8, 9, 10}));
}

// Equal shares matter more than staying inside a domain if a rank would get too few cores, because the other ranks wait
// for it.
TEST(Placement, CrossesDomainsRatherThanStarveARank) {
    EXPECT_EQ(divide({{0, 1, 2, 3, 4, 5}, {6, 7}}, {1, 2}, 0).processors, (std::vector<int>{4, 5, 6, 7}));
    EXPECT_EQ(divide({{0, 1, 2, 3, 4, 5}, {6, 7}}, {1, 2}, 0).domains, 2);
    for (const Placement& placement : divide_all(usable_cores("numa:2 core:8 pu:1"), 3))
        EXPECT_GE(placement.threads, 5);
}

}  // namespace
}  // namespace longhaul::runner
