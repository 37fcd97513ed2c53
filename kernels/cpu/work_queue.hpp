// Work stealing for the outputs of matmul and the pieces of attention. Each thread starts with an equal part, whose
// weights are in memory close to it, and helps the others when it is done: shared machines take a core away for
// milliseconds, and every matmul would wait for the slower thread (measured on 2 cores with busy neighbours: an eighth
// of the time).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace longhaul::kernels::cpu {

class WorkQueue {
  public:
    explicit WorkQueue(int threads) : parts_(std::make_unique<Part[]>(threads)) {}

    /// Called before the team runs: 0..count for `team` threads (at most those of the queue), at min_units `min_units`
    /// at a time.
    void fill(std::int64_t count, int team, std::int64_t min_units) {
        fill_parts(team, min_units, [&](std::int64_t part) { return part * count / team; });
    }

    /// fill() with parts of any size: part `t` begins at begin_of(t).
    template <class BeginOf>
    void fill_parts(int team, std::int64_t min_units, const BeginOf& begin_of) {
        team_ = team;
        min_units_ = min_units;
        for (int t = 0; t < team_; ++t) {
            parts_[t].next.store(begin_of(t), std::memory_order_relaxed);
            parts_[t].end = begin_of(t + 1);
        }
    }

    /// A part of the work, as one thread starts with: first..end.
    struct Share {
        std::int64_t index, end;
    };

    /// Calls run(first, end, the Share they belong to) until nothing is left. Called by each `thread` of the team.
    template <class Run>
    void work(int thread, const Run& run) {
        for (int t = 0; t < team_; ++t) {
            const int index = (thread + t) % team_;
            Part& part = parts_[index];
            std::int64_t first = part.next.load(std::memory_order_relaxed);
            while (first < part.end) {
                // Long pieces first, which read memory in long streams; short pieces last, so that all threads end
                // together.
                const std::int64_t piece = std::max(min_units_, (part.end - first) / 4 / min_units_ * min_units_);
                const std::int64_t end = std::min(first + piece, part.end);
                if (!part.next.compare_exchange_weak(first, end, std::memory_order_relaxed)) continue;
                run(first, end, Share{index, part.end});
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
    std::int64_t min_units_ = 1;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace longhaul::kernels::cpu
