// The work queue hands out every output exactly once, no matter which threads take work, and when.
#include "kernels/cpu/work_queue.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace longhaul::kernels::cpu {
namespace {

std::vector<int> times_dealt(WorkQueue& queue, std::int64_t count, int team, int workers, std::int64_t least) {
    queue.fill(count, team, least);
    std::vector<std::vector<int>> seen(static_cast<std::size_t>(workers),
                                       std::vector<int>(static_cast<std::size_t>(count), 0));
    std::vector<std::thread> threads;
    for (int t = 0; t < workers; ++t) {
        threads.emplace_back([&, t] {
            queue.work(t, [&](std::int64_t first, std::int64_t end, const WorkQueue::Share&) {
                EXPECT_LT(first, end);
                for (std::int64_t i = first; i < end; ++i)
                    ++seen[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
            });
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int> times(static_cast<std::size_t>(count), 0);
    for (const auto& of_thread : seen) {
        for (std::size_t i = 0; i < times.size(); ++i) times[i] += of_thread[i];
    }
    return times;
}

TEST(WorkQueue, DealsEveryOutputOnce) {
    WorkQueue queue(4);
    for (const std::int64_t count : {0, 1, 5, 6, 7, 100, 2001}) {
        for (const int team : {1, 2, 3, 4}) {
            for (const std::int64_t least : {1, 4, 6}) {
                const std::vector<int> times = times_dealt(queue, count, team, team, least);
                EXPECT_EQ(times, std::vector<int>(static_cast<std::size_t>(count), 1))
                    << count << " outputs, " << team << " threads, pieces of " << least;
            }
        }
    }
}

TEST(WorkQueue, TheOthersDoThePartOfAThreadThatNeverComes) {
    WorkQueue queue(3);
    EXPECT_EQ(times_dealt(queue, 500, 3, 1, 6), std::vector<int>(500, 1));
}

TEST(WorkQueue, TellsWhereThePartOfAPieceEnds) {
    WorkQueue queue(2);
    queue.fill(100, 2, 6);
    std::vector<std::int64_t> ends;
    queue.work(1, [&](std::int64_t first, std::int64_t end, const WorkQueue::Share& share) {
        EXPECT_LE(end, share.end);
        EXPECT_EQ(share.index, first < 50 ? 0 : 1) << "the piece that begins at " << first;
        EXPECT_EQ(share.end, first < 50 ? 50 : 100) << "the piece that begins at " << first;
        ends.push_back(share.end);
    });
    EXPECT_EQ(ends.front(), 100);
    EXPECT_EQ(ends.back(), 50);  // the other thread's share, which no other thread took
}

TEST(WorkQueue, GivesLongPiecesFirstAndNoneShorterThanAsked) {
    WorkQueue queue(1);
    queue.fill(100, 1, 6);
    std::vector<std::int64_t> pieces;
    queue.work(0,
               [&](std::int64_t first, std::int64_t end, const WorkQueue::Share&) { pieces.push_back(end - first); });
    EXPECT_EQ(pieces.front(), 24);
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
        EXPECT_GE(pieces[i], 6);
        EXPECT_GE(pieces[i], pieces[i + 1]);
    }
}

}  // namespace
}  // namespace longhaul::kernels::cpu
