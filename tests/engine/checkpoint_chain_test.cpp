// Chains of checkpoint rounds: which of them an item can be restored from, for arbitrary links.
#include "engine/checkpoint/chain.hpp"
#include "engine/checkpoint/file_name.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace longhaul::engine {
namespace {

detail::CommitInfo numbered_commit(std::int64_t round) {
    detail::CommitInfo commit;
    commit.name = commit_name(0, 0, round);
    commit.round = round;
    return commit;
}

TEST(CheckpointChain, AgreesWithPlainRecursionOnRandomLinks) {
    std::uint64_t state = 12345;
    const auto random = [&](std::uint64_t below) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        return (state >> 33) % below;
    };
    int chains = 0;
    for (int trial = 0; trial < 3000; ++trial) {
        const std::size_t count = 1 + random(8);
        std::vector<detail::CommitInfo> commits;
        std::vector<detail::Link> links;
        for (std::size_t i = 0; i < count; ++i) {
            commits.push_back(numbered_commit(static_cast<std::int64_t>(i)));
            commits.back().damaged = random(10) == 0;
            detail::Link link{.commit_index = i, .previous_commit = ""};
            const std::uint64_t previous = random(count + 2);
            if (previous < count + 1) link.previous_commit = commit_name(0, 0, static_cast<std::int64_t>(previous));
            link.first_token = link.previous_commit.empty() ? 0 : static_cast<std::int64_t>(random(3));
            link.end_token = link.first_token + static_cast<std::int64_t>(random(3));
            links.push_back(link);
        }
        // Whole within `depth` rounds: a chain of `count` links cannot need more.
        const std::function<bool(std::size_t, std::size_t)> whole = [&](std::size_t i, std::size_t depth) -> bool {
            if (depth == 0 || commits[i].damaged) return false;
            if (links[i].previous_commit.empty()) return links[i].first_token == 0;
            for (std::size_t j = 0; j < count; ++j) {
                if (commits[j].name == links[i].previous_commit) {
                    return links[j].end_token == links[i].first_token && whole(j, depth - 1);
                }
            }
            return false;
        };
        std::int64_t best = -1;
        for (std::size_t i = 0; i < count; ++i) {
            if (whole(i, count)) best = std::max(best, links[i].end_token);
        }
        const detail::Chain chain = detail::find_chain(links, commits);
        ASSERT_EQ(chain.links.empty(), best < 0) << trial;
        if (best < 0) continue;
        ++chains;
        EXPECT_EQ(links[chain.links.back()].end_token, best);
        EXPECT_TRUE(links[chain.links.front()].previous_commit.empty());
    }
    EXPECT_GT(chains, 500);
}

TEST(CheckpointChain, LongChainsDoNotRecurse) {
    constexpr std::int64_t count = 200000;
    std::vector<detail::CommitInfo> commits;
    std::vector<detail::Link> links;
    for (std::int64_t i = 0; i < count; ++i) {
        commits.push_back(numbered_commit(i));
        const std::int64_t order = count - 1 - i;  // newest link first, so that all others are followed from it
        links.push_back({.commit_index = static_cast<std::size_t>(order),
                         .previous_commit = order == 0 ? "" : commit_name(0, 0, order - 1),
                         .first_token = order,
                         .end_token = order + 1});
    }
    EXPECT_EQ(detail::find_chain(links, commits).links.size(), static_cast<std::size_t>(count));
}

}  // namespace
}  // namespace longhaul::engine
