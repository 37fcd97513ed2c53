// The rules by which two accesses to shared memory are a race. In kernels: races_of_kernels_test.cpp.
#include "tests/cuda_emulation/race_check.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace longhaul::kernels::cuda {
namespace {

using emulation::Access;
using emulation::Moment;
using emulation::SharedShadow;

/// Whether the second access races with the first.
bool races(Access one, const Moment& then, Access other, const Moment& now) {
    SharedShadow shadow;
    EXPECT_EQ(shadow.note(0, 4, one, then, nullptr), "");
    const bool found = !shadow.note(3, 2, other, now, nullptr).empty();
    EXPECT_EQ(shadow.note(8, 4, other, now, nullptr), "") << "other bytes";
    shadow.begin_block();
    EXPECT_EQ(shadow.note(0, 4, other, now, nullptr), "") << "another block";
    return found;
}

TEST(SharedShadow, TwoAccessesOneOfThemAWriteNeedABarrier) {
    const Moment then{.thread = 1, .block_barriers = 5, .warp_barriers = 7};
    for (const std::uint32_t thread : {1U, 2U, 40U}) {
        for (const std::uint32_t block_barriers : {5U, 6U}) {
            for (const std::uint32_t warp_barriers : {7U, 8U}) {
                const Moment now{thread, block_barriers, warp_barriers};
                const bool same_warp = thread < 32;
                const bool unordered = thread != 1 && block_barriers == 5 && (!same_warp || warp_barriers == 7);
                EXPECT_EQ(races(Access::write, then, Access::write, now), unordered);
                EXPECT_EQ(races(Access::write, then, Access::read, now), unordered);
                EXPECT_EQ(races(Access::read, then, Access::write, now), unordered);
                EXPECT_FALSE(races(Access::read, then, Access::read, now));
            }
        }
    }
}

TEST(SharedShadow, AReadByManyIsRememberedForAll) {
    for (const std::uint32_t reader : {3U, 4U, 70U}) {
        SharedShadow shadow;
        for (const std::uint32_t thread : {3U, 4U, 70U})
            EXPECT_EQ(shadow.note(0, 1, Access::read, {thread}, nullptr), "");
        EXPECT_NE(shadow.note(0, 1, Access::write, {reader}, nullptr), "") << "two others read it";
    }
}

TEST(SharedShadow, WhatMayStillBeCopiedIsNotAccessed) {
    const Moment asks{.thread = 1, .block_barriers = 1}, later{.thread = 2, .block_barriers = 2};
    EXPECT_TRUE(races(Access::copy_begins, asks, Access::read, later)) << "a barrier without the wait";
    EXPECT_TRUE(races(Access::copy_begins, asks, Access::write, asks));
    EXPECT_FALSE(races(Access::copy_begins, asks, Access::copy_arrives, asks));
    EXPECT_TRUE(races(Access::read, {.thread = 2, .block_barriers = 1}, Access::copy_begins, asks)) << "is still read";
    SharedShadow shadow;
    for (const Access access : {Access::copy_begins, Access::copy_arrives})
        EXPECT_EQ(shadow.note(0, 16, access, asks, nullptr), "");
    EXPECT_NE(shadow.note(0, 4, Access::read, {.thread = 2, .block_barriers = 1}, nullptr), "")
        << "the wait, no barrier";
    EXPECT_EQ(shadow.note(0, 4, Access::read, later, nullptr), "");
}

}  // namespace
}  // namespace longhaul::kernels::cuda
