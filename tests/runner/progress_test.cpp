// Progress: shares, rates and remaining times, and the line that shows them.
#include "runner/run/progress.hpp"
#include "runner/host/message_text.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runner/host/watchdog.hpp"

namespace longhaul::runner {
namespace {

ReplicaTotals totals_of(ReplicaTotals sum) {
    sum.enter(ReplicaTotals::State::decode);
    return sum;
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

// Items that wait have tokens too: a run whose max-tokens was raised from 900 to 1,000 is nearly done at its start.
TEST(Progress, KeptTokensOfWaitingItemsCount) {
    ProgressMeter meter(
        {.items = 10, .max_tokens = 1000, .done_before = 0, .failed_before = 0, .kept_tokens = 10 * 900});
    ReplicaTotals sum;
    EXPECT_DOUBLE_EQ(meter.update(totals_of(sum), 0).share, 0.9);
    sum.in_flight = 2;
    sum.kept_tokens = 2 * 900;
    sum.unfinished_tokens = 2 * 950;
    sum.emitted = 2 * 50;
    const JobProgress progress = meter.update(totals_of(sum), 5);
    EXPECT_DOUBLE_EQ(progress.share, 0.91);
    EXPECT_DOUBLE_EQ(progress.eta_seconds, 900 / 20.0);
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
              "12 of 1,200 items, 31.4 %, 812 tokens/s, acceptance 54 %, 2.31 tokens per call, 3 in flight, 4 min 10 s "
              "left");
    JobProgress reading;
    reading.items = reading.in_flight = 1;
    reading.prefilling = true;
    reading.prefilled = 108384;
    EXPECT_EQ(progress_line(reading),
              "0 of 1 items, 0.0 %, 0 tokens/s, reading prompts: 108,384 tokens so far, 1 in flight");
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
    double now = 100;
    Watchdog watchdog(2, [&](double seconds) {
        ++barks;
        EXPECT_GT(seconds, 2);
    });
    const auto wait = [&](double seconds) {
        for (double end = now + seconds; now < end; now += 0.25) watchdog.check(now);
    };
    for (int i = 0; i < 10; ++i) {
        wait(1.75);
        watchdog.feed();
    }
    EXPECT_EQ(barks, 0);
    wait(2.75);
    EXPECT_GT(barks, 0);
}

TEST(Watchdog, ZeroSecondsAreNever) {
    Watchdog off(0, [&](double) { FAIL(); });
    for (double now = 0; now < 1000; now += 0.25) off.check(now);
}

// Ctrl-Z or `scontrol suspend` for an hour: the watchdog's thread wakes up before the main thread has fed it.
TEST(Watchdog, ASuspendedProcessIsNoHang) {
    int barks = 0;
    double now = 100;
    Watchdog watchdog(2, [&](double) { ++barks; });
    for (int i = 0; i < 4; ++i) watchdog.check(now += 0.25);
    for (const double night : {3.0, 3600.0}) {
        watchdog.check(now += night);
        watchdog.feed();
        watchdog.check(now += 0.25);
    }
    EXPECT_EQ(barks, 0);
    for (int i = 0; i < 10; ++i) watchdog.check(now += 0.25);
    EXPECT_GT(barks, 0);  // the opposite case: awake, and not fed
}

TEST(Silence, BeginsWithTheFirstBeatAndEndsWithEach) {
    Silence silence;
    for (const double now : {5.0, 5.4, 5.8}) silence.pass(now);
    EXPECT_EQ(silence.seconds(), 0);
    silence.note(0);
    for (const double now : {6.2, 6.6, 7.0}) {
        silence.pass(now);
        silence.note(0);
    }
    EXPECT_NEAR(silence.seconds(), 1.2, 1e-9);
    silence.note(1);
    EXPECT_EQ(silence.seconds(), 0);
    // Polled only once in ten seconds, it counts no more than longest_gap: the rest of the gap was the poller's own.
    silence.pass(17.0);
    EXPECT_NEAR(silence.seconds(), Silence::longest_gap, 1e-9);
}

}  // namespace
}  // namespace longhaul::runner
