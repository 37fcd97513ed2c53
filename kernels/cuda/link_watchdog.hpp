// Ends the collectives of a link when another rank is lost. The library's calls and the kernels they queue wait for the
// other ranks without a limit, and so does everything that waits for the stream: downloads, workspaces that grow. A
// thread watches them, and aborts the link after an error of the library or when nothing has moved for too long. All
// waits then return, and the next call on the link throws the reason.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// What the watchdog needs of a link. Called from its thread, while another thread may be in a call or a wait.
class WatchedLink {
  public:
    virtual ~WatchedLink() = default;
    /// The library's asynchronous error; "" if there is none.
    virtual std::string fault() = 0;
    /// Marks the end of everything queued on the stream so far.
    virtual void mark() = 0;
    /// Whether the stream has passed the last mark.
    virtual bool passed_mark() = 0;
    /// Ends all waits for other ranks. Called once; the link is of no use afterwards.
    virtual void abort() noexcept = 0;
};

class LinkWatchdog {
  public:
    using Duration = std::chrono::milliseconds;
    struct Limits {
        Duration poll{100};
        Duration collective{600'000};  ///< a pass over many rows of a large model may take minutes
    };

    /// `link` must outlive the watchdog.
    LinkWatchdog(WatchedLink& link, const Limits& limits);
    ~LinkWatchdog();
    LinkWatchdog(const LinkWatchdog&) = delete;
    LinkWatchdog& operator=(const LinkWatchdog&) = delete;

    /// Runs `function`, which calls the library, unless the link was aborted. If it has not returned after `limit`, the
    /// link is aborted during the call. Throws CudaError with the reason if the link was aborted before or meanwhile.
    template <typename Function>
    auto call(Duration limit, Function function) {
        const Call guard(*this, limit);
        auto result = function();
        check();
        return result;
    }
    /// Reports that collectives were queued.
    void queued();
    /// Throws CudaError with the reason if the link was aborted.
    void check() const;

  private:
    using Clock = std::chrono::steady_clock;

    /// Scope of a call to the library, during which the link is not aborted until the limit has passed.
    class Call {
      public:
        Call(LinkWatchdog& watchdog, Duration limit);
        ~Call();
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

      private:
        LinkWatchdog& watchdog_;
        std::unique_lock<std::mutex> lock_;
    };

    void watch();
    /// Why the link must be aborted; "" if all is well.
    std::string trouble();
    /// Returns false if a call to the library must end first.
    bool abort();
    [[nodiscard]] bool call_is_overdue() const;

    WatchedLink& link_;
    const Limits limits_;
    std::mutex calls_;  ///< held during a call to the library

    mutable std::mutex state_;
    std::condition_variable stop_;
    bool stopping_ = false;
    std::string reason_;                      ///< of the abort; "": the link works
    Clock::time_point end_of_call_ = never_;  ///< when the present call to the library is overdue
    std::int64_t num_queued_ = 0;

    // The watchdog's thread only.
    std::int64_t num_marked_ = 0;  ///< collectives queued before the last mark
    bool waits_for_mark_ = false;
    Clock::time_point marked_at_;

    static constexpr Clock::time_point never_ = Clock::time_point::max();
    std::thread thread_;  ///< last: uses all others
};

}  // namespace longhaul::kernels::cuda
