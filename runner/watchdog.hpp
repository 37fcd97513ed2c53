// The threads of a rank that do not generate: one that does small things now and then (heartbeat, lease, fsync), and in
// it the watchdog. In MPI without fault tolerance a rank that hangs blocks the others in a collective for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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

/// Ends the launch when nobody called `feed` for too long.
class Watchdog {
  public:
    /// 0 seconds: never. `on_hang` gets the seconds that passed; it must not return.
    Watchdog(double seconds, std::function<void(double)> on_hang);

    void feed() noexcept { last_fed_.store(now(), std::memory_order_relaxed); }
    /// From another thread, a few times within `seconds`.
    void check();

  private:
    static double now() noexcept;

    double seconds_;
    std::function<void(double)> on_hang_;
    std::atomic<double> last_fed_;
    double last_checked_;
};

}  // namespace longhaul::runner
