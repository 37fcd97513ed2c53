// The background thread of a rank (heartbeat, lease renewal, fsync) and the watchdog that runs in it. Without fault
// tolerance in MPI, a rank that hangs blocks all others in a collective forever. `Silence` measures how long a peer
// shows no sign of life; the watchdog, the scheduler's Board and rank 0's check of all ranks use it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace longhaul::runner {

/// Runs tasks periodically in one thread, from `start` to destruction.
class Pulse {
  public:
    Pulse() = default;
    ~Pulse();
    Pulse(const Pulse&) = delete;
    Pulse& operator=(const Pulse&) = delete;

    /// Adds a task; call it before `start`. A task must not throw.
    void every(double seconds, std::function<void()> task);
    void start();
    void stop();  ///< joins the thread; no task runs afterwards

  private:
    using Clock = std::chrono::steady_clock;
    struct Task {
        std::chrono::duration<double> interval;
        std::function<void()> call;
        Clock::time_point due;
    };

    void loop();

    std::vector<Task> tasks_;
    std::thread thread_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
};

/// Seconds of a monotonic clock.
double steady_seconds() noexcept;

/// Seconds without a sign of life of a peer, measured in the running time of this process. A long gap between two calls
/// of `pass` is this process's own pause (a suspended launch, a long layer) and says little about the peer, so it
/// counts as `longest_gap` at most. Call `pass` more often than that.
class Silence {
  public:
    static constexpr double longest_gap = 0.5;  ///< seconds

    /// Advances the time; `now` in seconds of any steady clock.
    void pass(double now) noexcept;
    /// Passes the peer's beat, a number that changes while the peer is alive. Measuring starts at the first beat.
    void note(std::int64_t beat) noexcept;
    [[nodiscard]] double seconds() const noexcept { return seconds_; }

  private:
    static constexpr std::int64_t no_beat = -1;

    double last_look_ = 0, seconds_ = 0;
    std::int64_t beat_ = no_beat;
};

/// Ends the launch if `feed` was not called for too long.
class Watchdog {
  public:
    static constexpr double check_interval = 0.4;  ///< seconds, maximum; below Silence::longest_gap

    /// `seconds` = 0 disables the watchdog. `on_hang` gets the seconds without a call of `feed`; it must not return.
    Watchdog(double seconds, std::function<void(double)> on_hang);

    void feed() noexcept { meals_.fetch_add(1, std::memory_order_relaxed); }
    /// Call it from one other thread, at least every `check_interval` and several times within `seconds`.
    void check(double now = steady_seconds());

  private:
    double seconds_;
    std::function<void(double)> on_hang_;
    std::atomic<std::int64_t> meals_{0};
    Silence silence_;
};

}  // namespace longhaul::runner
