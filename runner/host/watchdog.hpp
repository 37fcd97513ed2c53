// The threads of a rank that do not generate: one that does small things now and then (heartbeat, lease, fsync), and in
// it the watchdog. In MPI without fault tolerance a rank that hangs blocks the others in a collective for ever. Whoever
// waits for another's sign of life (here, on the board, among the ranks) measures the silence in the same way.
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

/// Runs tasks at their intervals in one thread, from `start` to destruction.
class Pulse {
  public:
    Pulse() = default;
    ~Pulse();
    Pulse(const Pulse&) = delete;
    Pulse& operator=(const Pulse&) = delete;

    /// Before `start`. A task must not throw.
    void every(double seconds, std::function<void()> task);
    void start();
    void stop();  ///< joins; tasks are not called again

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

/// Seconds of a clock that never goes back.
double steady_seconds() noexcept;

/// How long somebody has given no sign of life, in time that this process saw pass. A long gap between two looks was
/// this process's own (the whole launch suspended, a layer that took long) and says little of the other: it counts as
/// `longest_gap`. So look more often than that.
class Silence {
  public:
    static constexpr double longest_gap = 0.5;  ///< seconds

    /// Time has passed; `now` in seconds of any steady clock.
    void pass(double now) noexcept;
    /// The other's beat, which changes while it lives; the silence begins with the first.
    void note(std::int64_t beat) noexcept;
    [[nodiscard]] double seconds() const noexcept { return seconds_; }

  private:
    static constexpr std::int64_t no_beat = -1;

    double last_look_ = 0, seconds_ = 0;
    std::int64_t beat_ = no_beat;
};

/// Ends the launch when nobody called `feed` for too long.
class Watchdog {
  public:
    static constexpr double check_interval = 0.4;  ///< seconds, at most: below Silence::longest_gap

    /// 0 seconds: never. `on_hang` gets the seconds that passed; it must not return.
    Watchdog(double seconds, std::function<void(double)> on_hang);

    void feed() noexcept { meals_.fetch_add(1, std::memory_order_relaxed); }
    /// From one other thread, every `check_interval` or more often, and a few times within `seconds`.
    void check(double now = steady_seconds());

  private:
    double seconds_;
    std::function<void(double)> on_hang_;
    std::atomic<std::int64_t> meals_{0};
    Silence silence_;
};

}  // namespace longhaul::runner
