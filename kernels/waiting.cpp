#include "kernels/waiting.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <chrono>
#include <limits>
#include <thread>

namespace longhaul::kernels {

int processors_allowed() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0)
        return std::numeric_limits<int>::max();  // more CPUs than a cpu_set_t holds
    return CPU_COUNT(&set);
}

ThreadCounts& thread_counts() {
    static ThreadCounts all;
    return all;
}

void Wait::give_up_core() const {
    if (oversubscribed_) {
        sched_yield();
        return;
    }
    // Without it, timers may be 50 microseconds late.
    thread_local const int precise_timers = ::prctl(PR_SET_TIMERSLACK, 1UL);
    static_cast<void>(precise_timers);
    std::this_thread::sleep_for(std::chrono::microseconds(10));
}

}  // namespace longhaul::kernels
