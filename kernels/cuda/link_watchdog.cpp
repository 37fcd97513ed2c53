#include "kernels/cuda/link_watchdog.hpp"

#include <exception>

namespace longhaul::kernels::cuda {
namespace {

std::string seconds_text(LinkWatchdog::Duration duration) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

}  // namespace

LinkWatchdog::LinkWatchdog(WatchedLink& link, const Limits& limits)
    : link_(link), limits_(limits), thread_([this] { watch(); }) {}

LinkWatchdog::~LinkWatchdog() {
    {
        const std::lock_guard lock(state_);
        stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
}

LinkWatchdog::Call::Call(LinkWatchdog& watchdog, Duration limit) : watchdog_(watchdog), lock_(watchdog.calls_) {
    watchdog.check();
    const std::lock_guard lock(watchdog.state_);
    watchdog.end_of_call_ = Clock::now() + limit;
}

LinkWatchdog::Call::~Call() {
    const std::lock_guard lock(watchdog_.state_);
    watchdog_.end_of_call_ = never_;
}

void LinkWatchdog::queued() {
    const std::lock_guard lock(state_);
    ++num_queued_;
}

void LinkWatchdog::check() const {
    const std::lock_guard lock(state_);
    if (!reason_.empty()) throw CudaError("NCCL: " + reason_);
}

void LinkWatchdog::watch() {
    std::unique_lock lock(state_);
    while (!stop_.wait_for(lock, limits_.poll, [&] { return stopping_; })) {
        lock.unlock();
        const std::string found = trouble();
        lock.lock();
        if (reason_.empty()) reason_ = found;
        if (reason_.empty()) continue;
        lock.unlock();
        const bool done = abort();
        lock.lock();
        if (done) return;
    }
}

bool LinkWatchdog::call_is_overdue() const {
    const std::lock_guard lock(state_);
    return Clock::now() > end_of_call_;
}

std::string LinkWatchdog::trouble() {
    try {
        if (std::string fault = link_.fault(); !fault.empty()) return fault;
        if (call_is_overdue()) return "no answer from the other ranks to a call";
        if (waits_for_mark_) {
            if (link_.passed_mark()) {
                waits_for_mark_ = false;
            } else if (Clock::now() - marked_at_ > limits_.collective) {
                return "no answer from the other ranks for " + seconds_text(limits_.collective);
            }
            return "";
        }
        std::int64_t num_queued = 0;
        {
            const std::lock_guard lock(state_);
            num_queued = num_queued_;
        }
        if (num_queued == num_marked_) return "";
        link_.mark();
        num_marked_ = num_queued;
        waits_for_mark_ = true;
        marked_at_ = Clock::now();
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

bool LinkWatchdog::abort() {
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock.owns_lock() && !call_is_overdue()) return false;
    link_.abort();
    return true;
}

}  // namespace longhaul::kernels::cuda
