// The shared work counter under mpirun, without an engine: `mpirun -n N board_test`. Rank 0 owns the counter and is in
// a long simulated prefill that only pokes the board now and then, like the engine's loop; meanwhile the other ranks
// take all the work. Prints its measurements; exit code 0 if every number was handed out exactly once.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "runner/host/world.hpp"
#include "runner/launch/scheduler.hpp"

namespace {

using namespace longhaul::runner;
using Clock = std::chrono::steady_clock;

// Over TCP a take needs the owner to poke about six times: 24 takes need about three seconds of pokes every 20 ms.
constexpr std::int64_t work = 24;
constexpr double prefill_seconds = 8;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Rank 0: alternates between computing for 20 ms and a poke; takes nothing before its prefill is over.
void long_prefill(Board& board, ReplicaTotals& totals) {
    const Clock::time_point start = Clock::now();
    while (seconds_since(start) < prefill_seconds) {
        const Clock::time_point layer = Clock::now();
        volatile double sum = 0;
        while (seconds_since(layer) < 0.02) sum = sum + 1;
        ++totals.beat;
        board.poke(totals);
    }
}

}  // namespace

int main() {
    const World world;
    std::vector<std::int64_t> mine;
    double taken_seconds = 0;
    bool in_time = true, stop_seen = false;
    {
        Board board(world.comm(), 0.02);
        ReplicaTotals totals;
        const Clock::time_point start = Clock::now();
        if (world.rank() == 0) long_prefill(board, totals);
        for (std::int64_t number = board.take_next(); number < work; number = board.take_next()) {
            mine.push_back(number);
            totals.done_items = static_cast<std::int64_t>(mine.size());
            board.poke(totals);
        }
        taken_seconds = seconds_since(start);
        // Finished while the owner was still busy; the times leave a margin for slow machines.
        if (world.rank() != 0) in_time = taken_seconds < prefill_seconds;
        if (world.rank() == world.size() - 1) board.request_stop(StopReason::request);
        const auto poke = [&] {
            ++totals.beat;
            board.poke(totals);
            stop_seen = stop_seen || board.stop_reason() == StopReason::request;
        };
        for (int i = 0; i < 2000 && !stop_seen; ++i) {
            poke();
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        world.wait_for_all(poke);
        board.post(totals);
        MPI_Barrier(world.comm());
        if (world.is_first()) {
            const std::vector<ReplicaTotals> slots = board.totals();
            std::int64_t done = 0;
            for (const ReplicaTotals& slot : slots) done += slot.done_items;
            if (done != work) {
                std::printf("FAIL: the slots say %lld items of %lld\n", static_cast<long long>(done),
                            static_cast<long long>(work));
                stop_seen = false;
            }
        }
    }
    const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(std::int64_t));
    const std::vector<std::string> all = world.gather(bytes);
    int bad = in_time && stop_seen ? 0 : 1;
    std::printf("rank %d took %zu in %.2f s%s%s\n", world.rank(), mine.size(), taken_seconds,
                in_time ? "" : "; FAIL: it waited for the owner", stop_seen ? "" : "; FAIL: no stop word");
    std::fflush(stdout);
    if (world.is_first()) {
        std::multiset<std::int64_t> numbers;
        for (const std::string& part : all) {
            const auto* values = reinterpret_cast<const std::int64_t*>(part.data());
            numbers.insert(values, values + part.size() / sizeof(std::int64_t));
        }
        const std::set<std::int64_t> distinct(numbers.begin(), numbers.end());
        if (numbers.size() != work || distinct.size() != work || *distinct.rbegin() != work - 1) {
            std::printf("FAIL: %zu numbers, %zu different\n", numbers.size(), distinct.size());
            bad = 1;
        }
    }
    int any = 0;
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, world.comm());
    return any;
}
