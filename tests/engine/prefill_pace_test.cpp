// Prompt rows per pass, adapted to the measured time of earlier passes.
#include "engine/replica/prefill_pace.hpp"

#include <gtest/gtest.h>

namespace longhaul::engine {
namespace {

/// The number of rows after `passes` full passes on a device of `flops` operations per second.
std::int64_t rows_after(int passes, double row_flops, double flops, std::int64_t ceiling) {
    PrefillPace pace(row_flops, ceiling);
    for (int i = 0; i < passes; ++i) {
        pace.took(pace.rows(), static_cast<double>(pace.rows()) * row_flops / flops);
    }
    return pace.rows();
}

TEST(PrefillPace, ReachesHalfASecondToASecondOnAnyDevice) {
    constexpr double row_flops = 1.6e10;  // 8 billion parameters
    EXPECT_EQ(rows_after(0, row_flops, 0, 1 << 20), 16);
    for (const double flops : {1e12, 2e13, 5e14}) {
        const std::int64_t rows = rows_after(20, row_flops, flops, 1 << 20);
        const double seconds = static_cast<double>(rows) * row_flops / flops;
        EXPECT_GE(seconds, 0.35) << flops << ": whole blocks may be somewhat less than wanted";
        EXPECT_LE(seconds, 1.0) << flops;
    }
    EXPECT_EQ(rows_after(4, row_flops, 5e14, 2048), 2048) << "soon";
}

TEST(PrefillPace, StaysWithinItsBounds) {
    EXPECT_EQ(PrefillPace(1e6, 256).rows(), 256);
    EXPECT_EQ(PrefillPace(1e6, 7).rows(), 7);
    EXPECT_EQ(PrefillPace(1e12, 7).rows(), 7);
    EXPECT_EQ(rows_after(5, 1e9, 1e7, 256), 16) << "minutes a row";
    EXPECT_EQ(rows_after(5, 1e6, 1e15, 300), 300);
}

TEST(PrefillPace, LargeNumbersAreWholeBlocks) {
    const std::int64_t rows = rows_after(20, 1.6e10, 3e13, 4096);
    EXPECT_EQ(rows % 512, 0);
    EXPECT_GE(rows, 512);
}

// Rows in a longer context cost more. The short last chunk of a prompt says nothing about a full one.
TEST(PrefillPace, FollowsWhatRowsCost) {
    PrefillPace pace(1e9, 2048);
    pace.took(2048, 0.1);
    const std::int64_t before = pace.rows();
    pace.took(3, 0.01);
    EXPECT_EQ(pace.rows(), before);
    pace.took(before, 0.8);
    EXPECT_EQ(pace.rows(), before);
    pace.took(before, 2.8);
    EXPECT_EQ(pace.rows(), before / 4 / 16 * 16);
}

// A fixed cost per pass (KV crossing a link, drafts) may take up to half of a pass's time; it must not reduce the rows
// further.
TEST(PrefillPace, WhatAnyPassCostsIsNoReasonForFewRows) {
    for (const double fixed : {0.3, 0.7, 1.5, 3.0}) {
        for (const double row_flops : {1e6, 1.6e10}) {  // start from many rows and from few
            PrefillPace pace(row_flops, 2048);
            for (int i = 0; i < 30; ++i) pace.took(pace.rows(), fixed + 2e-4 * static_cast<double>(pace.rows()));
            EXPECT_GE(pace.rows(), 1024) << fixed << " s, " << row_flops;
        }
    }
    PrefillPace slow(1e6, 2048);
    for (int i = 0; i < 30; ++i) slow.took(slow.rows(), 1.5 + 0.01 * static_cast<double>(slow.rows()));
    EXPECT_GE(slow.rows(), 64);
    EXPECT_LE(slow.rows(), 300);
}

}  // namespace
}  // namespace longhaul::engine
