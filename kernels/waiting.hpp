// How a thread waits for another thread or process that is about to finish: it polls for a fraction of a millisecond,
// then sleeps for moments between polls.
//
// Why not sched_yield: where another program keeps the processors busy, each yield gives that program a whole time
// slice, and two threads that yield in turn get through one operation per slice. A thread that has slept runs again at
// once. Measured beside two busy programs on two cores: tests/bench/busy_machine.py.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>

namespace longhaul::kernels {

/// Processors in the affinity mask of the calling thread.
int processors_allowed();

/// The threads of this process that wait for each other, and the processors they run on. With more threads than
/// processors, a waiting thread would keep another one from running: it yields at once.
struct ThreadCounts {
    std::atomic<bool> always_yield = false;
    std::atomic<int> processors = processors_allowed(), threads = 0;

    [[nodiscard]] bool oversubscribed() const {
        return always_yield.load(std::memory_order_relaxed) ||
               threads.load(std::memory_order_relaxed) > processors.load(std::memory_order_relaxed);
    }
};
ThreadCounts& thread_counts();

/// One wait: `for (Wait wait; !ready();) wait.pause();`
class Wait {
  public:
    /// Between two polls.
    void pause() {
        if (!spin(awake_polls)) give_up_core();
    }
    /// The same without giving up the processor; false if there were `max_polls` polls.
    bool spin(std::int64_t max_polls) {
        if (oversubscribed_ || ++polls_ >= max_polls) return false;
        if (polls_ > eager_polls) _mm_pause();  // leaves more of the core to its other hardware thread
        return true;
    }
    /// Gives up the processor.
    void give_up_core() const;
    /// Whether pause() gives up the processor.
    [[nodiscard]] bool is_long() const { return oversubscribed_ || polls_ >= awake_polls; }

  private:
    static constexpr std::int64_t eager_polls = 1 << 12;  ///< microseconds
    static constexpr std::int64_t awake_polls = 1 << 14;  ///< a fraction of a millisecond

    bool oversubscribed_ = thread_counts().oversubscribed();
    std::int64_t polls_ = 0;
};

}  // namespace longhaul::kernels
