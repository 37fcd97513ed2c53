// Question: what do calling a thread team and passing a barrier cost, compared with GCC's OpenMP?
// Machine: any with as many free cores as threads. The distance between the cores decides the result: the round trip of
// a cache line between two cores is measured and printed in the same run (two threads).
// Build: cmake --build build --target team_bench
// Command: team_bench [THREADS, 2]
// Answer: microseconds of a call without work, and of a barrier inside it; medians of alternating rounds.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/team.hpp"

namespace {

using longhaul::kernels::Member;
using longhaul::kernels::Team;
using Clock = std::chrono::steady_clock;

constexpr int calls = 2'000;
constexpr int rounds = 15;

/// Microseconds of one of `count` runs; the first ones wake the threads.
template <class Run>
double microseconds(int count, const Run& run) {
    // By then the other library's threads, which spin for some milliseconds, are asleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; i < 100; ++i) run();
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) run();
    return std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / count;
}

double there_and_back() {
    alignas(64) std::atomic<int> turn = 0;
    double result = 0;
    Team::mine().run(2, [&](Member& member) {
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) {
            while (turn.load(std::memory_order_acquire) != 2 * i + member.index()) continue;
            turn.store(2 * i + member.index() + 1, std::memory_order_release);
        }
        if (member.index() == 0) result = std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / calls;
    });
    return result;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
    std::atomic<int> work = 0;
    std::vector<double> line, team_call, team_barrier, omp_call, omp_barrier;
    for (int round = 0; round < rounds; ++round) {
        team_call.push_back(microseconds(calls, [&] { Team::mine().run(threads, [&](Member&) { work.load(); }); }));
        team_barrier.push_back(microseconds(calls, [&] {
            Team::mine().run(threads, [&](Member& member) {
                work.load();
                member.barrier();
            });
        }));
        line.push_back(there_and_back());
        omp_call.push_back(microseconds(calls, [&] {
#pragma omp parallel num_threads(threads)
            work.load();
        }));
        omp_barrier.push_back(microseconds(calls, [&] {
#pragma omp parallel num_threads(threads)
            {
                work.load();
#pragma omp barrier
            }
        }));
    }
    std::printf("%d threads; a line there and back %.3f us\n", threads, median(line));
    std::printf("%-22s %8s %8s %8s\n", "microseconds", "team", "OpenMP", "ratio");
    const auto print = [](const char* name, double team, double omp) {
        std::printf("%-22s %8.3f %8.3f %8.2f\n", name, team, omp, omp / team);
    };
    print("call", median(team_call), median(omp_call));
    print("call with a barrier", median(team_barrier), median(omp_barrier));
}
