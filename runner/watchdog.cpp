#include "runner/watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>

namespace longhaul::runner {

Pulse::~Pulse() {
    stop();
}

void Pulse::every(double seconds, std::function<void()> task) {
    tasks_.push_back({std::chrono::duration<double>(seconds), std::move(task), Clock::time_point()});
}

void Pulse::start() {
    const Clock::time_point now = Clock::now();
    for (Task& task : tasks_) task.due = now + std::chrono::duration_cast<Clock::duration>(task.interval);
    // Signals go to the main thread, whose waiting they may interrupt.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { loop(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pulse::stop() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Pulse::loop() {
    for (;;) {
        Clock::time_point next = Clock::now() + std::chrono::seconds(1);
        for (const Task& task : tasks_) next = std::min(next, task.due);
        {
            std::unique_lock lock(mutex_);
            if (wake_.wait_until(lock, next, [this] { return stopping_; })) return;
        }
        for (Task& task : tasks_) {
            if (Clock::now() < task.due) continue;
            task.call();
            task.due = Clock::now() + std::chrono::duration_cast<Clock::duration>(task.interval);
        }
    }
}

Watchdog::Watchdog(double seconds, std::function<void(double)> on_hang)
    : seconds_(seconds), on_hang_(std::move(on_hang)), last_fed_(now()), last_checked_(now()) {}

double Watchdog::now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Watchdog::check() {
    const double time = now();
    // The whole process may have slept (a suspended laptop, SIGSTOP and SIGCONT): that is no hang of its main thread.
    if (time - last_checked_ > std::max(1.5, seconds_ / 2)) feed();
    last_checked_ = time;
    const double idle = time - last_fed_.load(std::memory_order_relaxed);
    if (seconds_ > 0 && idle > seconds_) on_hang_(idle);
}

}  // namespace longhaul::runner
