// Outputs dealt out while they are computed. Each thread begins with an equal part of its own, near which its weights
// lie, and helps the others when that is done: shared machines take a core away for milliseconds, and every product
// would wait for the slower thread (measured on 2 cores with busy neighbours: an eighth of the time).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace longhaul::kernels::cpu {

class WorkQueue {
  public:
    explicit WorkQueue(int threads) : parts_(std::make_unique<Part[]>(threads)) {}

    /// Before the team is called: 0..count for `team` threads, at most those of the queue, at least `least` at a time.
    void fill(std::int64_t count, int team, std::int64_t least) {
        fill_parts(team, least, [&](std::int64_t part) { return part * count / team; });
    }

    /// The same where part `t` begins at begin_of(t).
    template <class BeginOf>
    void fill_parts(int team, std::int64_t least, const BeginOf& begin_of) {
        team_ = team;
        least_ = least;
        for (int t = 0; t < team_; ++t) {
            parts_[t].next.store(begin_of(t), std::memory_order_relaxed);
            parts_[t].end = begin_of(t + 1);
        }
    }

    /// Calls run(first, end, end of the part they belong to) until nothing is left, in thread `thread` of the team.
    template <class Run>
    void work(int thread, const Run& run) {
        for (int t = 0; t < team_; ++t) {
            Part& part = parts_[(thread + t) % team_];
            std::int64_t first = part.next.load(std::memory_order_relaxed);
            while (first < part.end) {
                // Long pieces first: they read memory in long streams; short ones last: then all end together.
                const std::int64_t piece = std::max(least_, (part.end - first) / 4 / least_ * least_);
                const std::int64_t end = std::min(first + piece, part.end);
                if (!part.next.compare_exchange_weak(first, end, std::memory_order_relaxed)) continue;
                run(first, end, part.end);
                first = part.next.load(std::memory_order_relaxed);
            }
        }
    }

  private:
    struct alignas(64) Part {
        std::atomic<std::int64_t> next = 0;
        std::int64_t end = 0;
    };
    int team_ = 1;
    std::int64_t least_ = 1;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace longhaul::kernels::cpu
