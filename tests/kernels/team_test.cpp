// Thread teams: kernels/team.hpp.
#include "kernels/team.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <system_error>
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

/// No member passes a barrier before all have reached it: each reads what the others wrote just before.
void pass_barriers(int size, int rounds) {
    std::vector<int> written(static_cast<std::size_t>(size));  // not atomic: the barrier orders the accesses
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
    for (const int size : {1, 2, 4, 5, 7}) pass_barriers(size, 200);
    pass_barriers(16, 20);
    pass_barriers(64, 5);
    pass_barriers(2, 40'000);
    for (int run = 0; run < 100; ++run) pass_barriers(1 + run % 5, 2);  // many runs, with changing numbers of members
}

TEST(Team, ThreadsThatFellAsleepWakeUp) {
    for (int run = 0; run < 5; ++run) {
        EXPECT_EQ(calls_of(2), std::vector<int>(2, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
}

TEST(Team, CallsThatMeetAThreadFallingAsleepAreNotLost) {
    set_team_rules({.processors = {}, .yield_cores = true});  // members sleep after each run
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

std::vector<int> allowed_processors() {
    cpu_set_t set;
    std::vector<int> processors;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &set)) processors.push_back(i);
    }
    return processors;
}

TEST(Team, MembersStayWhereTheyAreToldToAndTheCallerStaysFree) {
    const std::vector<int> all = allowed_processors();
    ASSERT_FALSE(all.empty());
    for (const int processor : {all.front(), all.back()}) {
        std::thread([&] {  // with its own team
            set_team_rules({.processors = {all.front(), processor}, .yield_cores = true});
            Team::mine().run(2, [&](Member& member) {
                if (member.index() == 0) return;
                EXPECT_EQ(allowed_processors(), std::vector<int>{processor});
            });
            EXPECT_EQ(allowed_processors(), all) << "a thread that the caller starts inherits this";
        })
            .join();
    }
    set_team_rules({});
}

// The system may put all members on one processor while other programs keep the rest busy.
TEST(Team, MembersMayShareAProcessor) {
    const std::vector<int> all = allowed_processors();
    ASSERT_FALSE(all.empty());
    const int processor = all.front();
    std::thread([&] {  // with its own team
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(static_cast<std::size_t>(processor), &here);
        ASSERT_EQ(sched_setaffinity(0, sizeof here, &here), 0);
        set_team_rules({.processors = {processor, processor, processor}});  // as many as threads: not oversubscribed
        for (int run = 0; run < 20; ++run) EXPECT_EQ(calls_of(3), std::vector<int>(3, 1));
        pass_barriers(3, 20);
    })
        .join();
    set_team_rules({});
}

void run_on(const std::vector<int>& processors) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

// They look for other processors, and may be put back there.
TEST(Team, MembersThatMetKeepTheirAffinity) {
    const std::vector<int> all = allowed_processors();
    ASSERT_FALSE(all.empty());
    for (int run = 0; run < 20; ++run) {
        Team::mine().run(2, [&](Member& /*member*/) { run_on({all.front()}); });
        Team::mine().run(2, [](Member& /*member*/) {});  // both note where they are
        std::array<std::vector<int>, 2> after;
        Team::mine().run(2, [&](Member& member) {
            run_on(all);
            for (int round = 0; round < 50; ++round) member.barrier();
            after[static_cast<std::size_t>(member.index())] = allowed_processors();
        });
        for (const std::vector<int>& processors : after) ASSERT_EQ(processors, all) << run;
    }
}

/// Limits the address space to what the process uses now plus 4 MiB, too little for a thread's stack.
class LittleMemory {
  public:
    LittleMemory() {
        getrlimit(RLIMIT_AS, &before_);
        std::ifstream statm("/proc/self/statm");
        rlim_t pages = 0;
        statm >> pages;
        rlimit now = before_;
        now.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{4} << 20);
        setrlimit(RLIMIT_AS, &now);
    }
    ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
    LittleMemory(const LittleMemory&) = delete;
    LittleMemory& operator=(const LittleMemory&) = delete;

  private:
    rlimit before_{};
};

TEST(Team, ThreadsThatCannotBeHadAreAnErrorAndNothingIsDone) {
    std::thread([] {
        int calls = 0;
        {
            const LittleMemory limit;
            EXPECT_THROW(Team::mine().run(100, [&](Member&) { ++calls; }), std::system_error);
        }
        EXPECT_EQ(calls, 0);
        for (const int size : {2, 100, 3})
            EXPECT_EQ(calls_of(size), std::vector<int>(static_cast<std::size_t>(size), 1));
    }).join();
}

}  // namespace
}  // namespace longhaul::kernels
