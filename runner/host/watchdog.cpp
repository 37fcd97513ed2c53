#include "runner/host/watchdog.hpp"

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
    // Block all signals in the new thread: they must reach the main thread and interrupt its waits.
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

double steady_seconds() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Silence::pass(double now) noexcept {
    if (beat_ != no_beat) seconds_ += std::min(now - last_look_, longest_gap);
    last_look_ = now;
}

void Silence::note(std::int64_t beat) noexcept {
    if (beat == beat_) return;
    beat_ = beat;
    seconds_ = 0;
}

Watchdog::Watchdog(double seconds, std::function<void(double)> on_hang)
    : seconds_(seconds), on_hang_(std::move(on_hang)) {}

void Watchdog::check(double now) {
    silence_.pass(now);
    silence_.note(meals_.load(std::memory_order_relaxed));
    if (seconds_ > 0 && silence_.seconds() > seconds_) on_hang_(silence_.seconds());
}

}  // namespace longhaul::runner
