// Threads that work together: kernels/team.hpp.
#include "kernels/team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace longhaul::kernels {
namespace {

/// How often each of `size` members was called in one run.
std::vector<int> calls_of(int size) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(size));
    Team::mine().run(size, [&](Member& member) {
        EXPECT_EQ(member.size(), size);
        ++calls[static_cast<std::size_t>(member.index())];
    });
    return {calls.begin(), calls.end()};
}

TEST(Team, EachMemberWorksOnce) {
    for (const int size : {1, 2, 5, 3, 8, 1, 2}) {
        EXPECT_EQ(calls_of(size), std::vector<int>(static_cast<std::size_t>(size), 1)) << size;
    }
}

TEST(Team, TheFirstMemberIsTheCallingThread) {
    const std::thread::id caller = std::this_thread::get_id();
    Team::mine().run(3, [&](Member& member) {
        EXPECT_EQ(std::this_thread::get_id() == caller, member.index() == 0) << member.index();
    });
}

TEST(Team, SharesCoverTheWhole) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        Team::mine().run(3, [&](Member& member) {
            const auto [first, end] = member.share_of(count);
            for (std::int64_t i = first; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const auto& visited : visits) EXPECT_EQ(visited, 1) << count;
    }
}

/// Nobody is beyond a barrier before all have come: each reads what the others wrote just before it.
void pass_barriers(int size, int rounds) {
    std::vector<int> written(static_cast<std::size_t>(size));  // not atomic: a barrier orders what is done around it
    std::atomic<int> wrong = 0;
    Team::mine().run(size, [&](Member& member) {
        for (int round = 1; round <= rounds; ++round) {
            written[static_cast<std::size_t>(member.index())] = round;
            member.barrier();
            for (const int other : written) wrong += other == round ? 0 : 1;
            member.barrier();
        }
    });
    EXPECT_EQ(wrong, 0) << size << " members";
}

TEST(Team, BarriersHoldEachBack) {
    for (const int size : {1, 2, 4, 7}) pass_barriers(size, 200);
    for (int run = 0; run < 100; ++run) pass_barriers(1 + run % 3, 2);  // in many runs, of members that come and go
}

TEST(Team, ThreadsThatFellAsleepWakeUp) {
    for (int run = 0; run < 5; ++run) {
        EXPECT_EQ(calls_of(2), std::vector<int>(2, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
}

TEST(Team, CallsThatMeetAThreadFallingAsleepAreNotLost) {
    set_team_rules({.processors = {}, .give_way = true});  // it goes to sleep after each run
    for (int run = 0; run < 5'000; ++run) ASSERT_EQ(calls_of(2), std::vector<int>(2, 1)) << run;
    pass_barriers(3, 50);
    set_team_rules({});
}

TEST(Team, InsideOfATeamAtWorkThereIsOneThread) {
    std::atomic<int> inner = 0;
    Team::mine().run(3, [&](Member& outer) {
        Team::mine().run(4, [&](Member& member) {
            EXPECT_EQ(member.size(), 1);
            member.barrier();
            ++inner;
        });
        outer.barrier();
    });
    EXPECT_EQ(inner, 3);
    EXPECT_EQ(calls_of(3), std::vector<int>(3, 1));
}

TEST(Team, EachCallingThreadHasItsOwn) {
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([] {
            for (int run = 0; run < 200; ++run) EXPECT_EQ(calls_of(2), std::vector<int>(2, 1));
            pass_barriers(2, 100);
        });
    }
    for (std::thread& caller : callers) caller.join();
}

TEST(Team, StaysWhereItIsToldTo) {
    std::thread([] {  // its affinity ends with it
        set_team_rules({.processors = {0, 0}, .give_way = true});
        Team::mine().run(2, [](Member&) { EXPECT_EQ(sched_getcpu(), 0); });
        set_team_rules({});
    })
        .join();
}

}  // namespace
}  // namespace longhaul::kernels
