// Progress: shares, rates and times left, and the line that shows them.
#include "runner/progress.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runner/watchdog.hpp"

namespace longhaul::runner {
namespace {

LaunchTotals totals_of(ReplicaTotals sum) {
    sum.state = static_cast<std::int64_t>(ReplicaTotals::State::decode);
    return {.sum = sum, .working = 1};
}

TEST(Progress, OneLongSequenceHasShareAndTimeLeft) {
    ProgressMeter meter({.items = 1, .max_tokens = 20000, .done_before = 0, .failed_before = 0});
    ReplicaTotals sum;
    sum.in_flight = 1;
    meter.update(totals_of(sum), 0);
    sum.unfinished_tokens = sum.emitted = 5000;
    const JobProgress progress = meter.update(totals_of(sum), 10);
    EXPECT_DOUBLE_EQ(progress.share, 0.25);
    EXPECT_DOUBLE_EQ(progress.tokens_per_second, 500);
    EXPECT_DOUBLE_EQ(progress.eta_seconds, 30);
}

TEST(Progress, ResumedTokensAreShareButNotSpeed) {
    ProgressMeter meter({.items = 2, .max_tokens = 1000, .done_before = 1, .failed_before = 0});
    ReplicaTotals sum;
    sum.in_flight = 1;
    sum.unfinished_tokens = 500;
    meter.update(totals_of(sum), 0);
    sum.unfinished_tokens = 600;
    sum.emitted = 100;
    const JobProgress progress = meter.update(totals_of(sum), 5);
    EXPECT_DOUBLE_EQ(progress.share, 0.8);
    EXPECT_DOUBLE_EQ(progress.tokens_per_second, 20);
    EXPECT_DOUBLE_EQ(progress.eta_seconds, 20);
}

TEST(Progress, ItemsThatEndEarlyShortenTheRest) {
    ProgressMeter meter({.items = 20, .max_tokens = 1000, .done_before = 0, .failed_before = 0});
    ReplicaTotals sum;
    meter.update(totals_of(sum), 0);
    sum.done_items = 10;
    sum.done_tokens = sum.emitted = 500;  // 50 each
    const JobProgress progress = meter.update(totals_of(sum), 10);
    EXPECT_DOUBLE_EQ(progress.share, 0.5);
    EXPECT_DOUBLE_EQ(progress.eta_seconds, 10);
}

TEST(Progress, RateIsThatOfTheLastHalfMinute) {
    ProgressMeter meter({.items = 1, .max_tokens = 1000000, .done_before = 0, .failed_before = 0});
    ReplicaTotals sum;
    double seconds = 0;
    for (; seconds < 100; seconds += 1) {
        sum.emitted += 1000;
        meter.update(totals_of(sum), seconds);
    }
    JobProgress progress;
    for (; seconds < 140; seconds += 1) {
        sum.emitted += 10;
        progress = meter.update(totals_of(sum), seconds);
    }
    EXPECT_NEAR(progress.tokens_per_second, 10, 1e-9);
}

TEST(Progress, NothingDraftedIsNoAcceptance) {
    ProgressMeter meter({.items = 1, .max_tokens = 10, .done_before = 0, .failed_before = 0});
    ReplicaTotals sum;
    sum.in_flight = 1;
    EXPECT_LT(meter.update(totals_of(sum), 0).acceptance, 0);
    sum.drafted = 10;
    sum.accepted = 4;
    EXPECT_DOUBLE_EQ(meter.update(totals_of(sum), 1).acceptance, 0.4);
}

TEST(ProgressLine, Words) {
    JobProgress progress;
    progress.items = 1200;
    progress.done = 12;
    progress.in_flight = 3;
    progress.share = 0.314;
    progress.tokens_per_second = 812;
    progress.acceptance = 0.54;
    progress.block_efficiency = 2.31;
    progress.eta_seconds = 250;
    EXPECT_EQ(progress_line(progress),
              "12 of 1,200 items, 31.4 %, 812 tokens/s, acceptance 54 %, 2.31 tokens a call, 3 in flight, 4 min 10 s "
              "left");
    EXPECT_EQ(duration_text(59.6), "1 min 0 s");
    EXPECT_EQ(duration_text(7300), "2 h 1 min");
    EXPECT_EQ(duration_text(200000), "2 d 7 h");
    EXPECT_EQ(grouped(0), "0");
    EXPECT_EQ(grouped(999), "999");
    EXPECT_EQ(grouped(1234567), "1,234,567");
}

TEST(Pulse, CallsAtIntervalsAndNeverAfterItsEnd) {
    std::atomic<int> calls{0};
    {
        Pulse pulse;
        pulse.every(0.005, [&] { ++calls; });
        pulse.start();
        for (int i = 0; i < 2000 && calls < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int at_end = calls;
    EXPECT_GE(at_end, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(calls, at_end);
}

TEST(Watchdog, BarksOnlyAtSilence) {
    int barks = 0;
    Watchdog watchdog(0.05, [&](double) { ++barks; });
    for (int i = 0; i < 10; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        watchdog.feed();
        watchdog.check();
    }
    EXPECT_EQ(barks, 0);
    for (int i = 0; i < 200 && barks == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        watchdog.check();
    }
    EXPECT_EQ(barks, 1);
    Watchdog off(0, [&](double) { ++barks; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    off.check();
    EXPECT_EQ(barks, 1);
}

}  // namespace
}  // namespace longhaul::runner
