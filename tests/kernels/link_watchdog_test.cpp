// The watchdog of a link to other GPUs: a lost rank ends every wait, with one reason, and a slow rank ends none.
#include "kernels/cuda/link_watchdog.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

using namespace std::chrono_literals;

/// A link whose other rank answers, or not.
class FakeLink final : public WatchedLink {
  public:
    std::string fault() override { return has_fault ? "unhandled system error" : ""; }
    void mark() override { ++marks; }
    bool passed_mark() override { return answers; }
    void abort() noexcept override {
        const std::lock_guard lock(mutex_);
        ++aborts;
        ended_.notify_all();
    }
    /// As a call or a kernel of the library: returns when the other rank answers or the link is aborted.
    int wait() {
        std::unique_lock lock(mutex_);
        ended_.wait(lock, [&] { return answers || aborts > 0; });
        return 7;
    }

    std::atomic<bool> has_fault = false, answers = false;
    std::atomic<int> marks = 0, aborts = 0;

  private:
    std::mutex mutex_;
    std::condition_variable ended_;
};

constexpr LinkWatchdog::Limits impatient{.poll = 1ms, .collective = 20ms}, patient{.poll = 1ms, .collective = 1h};

std::string failure(const auto& action) {
    try {
        action();
    } catch (const CudaError& error) {
        return error.what();
    }
    return "";
}

template <typename Condition>
void wait_until(const Condition& condition) {
    while (!condition()) std::this_thread::sleep_for(1ms);
}

// The stream waits in a collective that the other rank never joins; the workspace waits for the stream.
TEST(LinkWatchdog, AWorkspaceThatGrowsDoesNotWaitForALostRank) {
    FakeLink link;
    LinkWatchdog watchdog(link, impatient);
    const Stream stream;
    Workspace workspace;
    static_cast<void>(workspace.get<float>(stream, 10));
    emulation::ask(stream.native(), [&] { link.wait(); });
    watchdog.queued();
    static_cast<void>(workspace.get<float>(stream, 100'000));  // returns
    EXPECT_EQ(link.aborts, 1);
    EXPECT_EQ(failure([&] { watchdog.check(); }), "NCCL: no answer from the other ranks for 0 s");
    EXPECT_EQ(failure([&] { watchdog.call(1s, [] { return 0; }); }), "NCCL: no answer from the other ranks for 0 s");
}

TEST(LinkWatchdog, ACallThatDoesNotReturnIsEnded) {
    FakeLink link;
    LinkWatchdog watchdog(link, patient);
    EXPECT_EQ(failure([&] { watchdog.call(20ms, [&] { return link.wait(); }); }),
              "NCCL: no answer from the other ranks to a call");
    EXPECT_EQ(link.aborts, 1);
}

TEST(LinkWatchdog, AnErrorOfTheLibraryEndsTheLinkBetweenCalls) {
    FakeLink link;
    LinkWatchdog watchdog(link, patient);
    const int result = watchdog.call(1h, [&] {
        EXPECT_EQ(link.aborts, 0);
        return 5;
    });
    EXPECT_EQ(result, 5);
    const std::string reason = failure([&] {
        watchdog.call(1h, [&] {
            link.has_fault = true;
            std::this_thread::sleep_for(20ms);
            EXPECT_EQ(link.aborts, 0) << "the call uses what an abort frees";
            return 0;
        });
    });
    EXPECT_EQ(reason, "NCCL: unhandled system error");
    wait_until([&] { return link.aborts == 1; });
}

TEST(LinkWatchdog, SlowRanksAreWaitedForAndIdleLinksAreLeftAlone) {
    FakeLink link;
    LinkWatchdog watchdog(link, {.poll = 1ms, .collective = 10s});
    std::this_thread::sleep_for(10ms);
    EXPECT_EQ(link.marks, 0) << "nothing was queued";
    watchdog.queued();
    wait_until([&] { return link.marks == 1; });
    watchdog.queued();
    std::this_thread::sleep_for(10ms);
    EXPECT_EQ(link.marks, 1) << "one mark at a time";
    link.answers = true;
    wait_until([&] { return link.marks == 2; });
    EXPECT_EQ(watchdog.call(1h, [&] { return link.wait(); }), 7);
    watchdog.check();
    EXPECT_EQ(link.aborts, 0);
}

}  // namespace
}  // namespace longhaul::kernels::cuda
