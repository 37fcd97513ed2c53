// The KV page pool: it hands out as many pages as its limit allows, contiguous in memory.
#include "engine/kv/kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {
namespace {

std::vector<std::byte*> take(PagePool& pool, std::size_t count) {
    std::vector<std::byte*> pages(count);
    std::generate(pages.begin(), pages.end(), [&] { return pool.take(); });
    return pages;
}

class PagePoolTest : public ::testing::Test {
  protected:
    std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    kernels::KvLayout layout_{.dtype = kernels::DType::bf16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 16};
    std::int64_t page_bytes_ = static_cast<std::int64_t>(device_->kv_page_bytes(layout_));
};

TEST_F(PagePoolTest, HandsOutPagesUpToItsCeiling) {
    PagePool pool(*device_, layout_, 5 * page_bytes_ + page_bytes_ / 2);
    EXPECT_EQ(pool.max_pages(), 5);
    std::set<std::byte*> pages;
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(pool.pages_in_use(), i);
        pages.insert(pool.take());
    }
    EXPECT_EQ(pages.size(), 5U) << "no page twice";
    EXPECT_FALSE(pages.contains(nullptr));
    EXPECT_EQ(pool.take(), nullptr);
    EXPECT_EQ(pool.pages_in_use(), 5);
    std::byte* const back = *pages.begin();
    pool.give_back(back);
    EXPECT_EQ(pool.pages_in_use(), 4);
    EXPECT_EQ(pool.take(), back);
}

// The system can back contiguous pages with huge pages: attention over long sequences needs its address translations to
// stay in the TLB.
TEST_F(PagePoolTest, PagesStandSideBySide) {
    PagePool pool(*device_, layout_, 100 * page_bytes_);
    std::vector<std::byte*> pages = take(pool, 100);
    std::sort(pages.begin(), pages.end());
    for (std::size_t i = 1; i < pages.size(); ++i) EXPECT_EQ(pages[i] - pages[i - 1], page_bytes_);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.front()) % 64, 0U);
    EXPECT_EQ(page_bytes_ % 64, 0);
}

// A device that reads one head through all pages finds its parts contiguous, in slabs of whole page groups.
TEST_F(PagePoolTest, PagesOfAGroupStandInEachOthersGaps) {
    layout_.pages_together = 4;
    PagePool pool(*device_, layout_, 10 * page_bytes_);
    const std::vector<std::byte*> pages = take(pool, 10);
    EXPECT_EQ(pool.take(), nullptr);
    const std::int64_t part_bytes = page_bytes_ / 4;  // keys or values of one of two layers
    for (const std::int64_t group : {0, 4, 8}) {
        EXPECT_EQ(pages[static_cast<std::size_t>(group)] - pages[0], group * page_bytes_);
        for (std::int64_t i = group + 1; i < std::min<std::int64_t>(group + 4, 10); ++i) {
            EXPECT_EQ(pages[static_cast<std::size_t>(i)] - pages[static_cast<std::size_t>(i - 1)], part_bytes);
        }
    }
}

// A model's sequences get the device's preferred layout; on a CPU, several pages of a head are contiguous.
TEST(ModelPages, StandAsTheDeviceLikesThem) {
    ModelConfig config;
    config.vocab_size = config.hidden_size = 64;
    config.intermediate_size = 64;
    config.num_layers = config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 32;
    config.max_positions = 512;
    const auto group = make_local_group();
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::avx2, 1);
    const auto model = Model::random(config, Precision::bf16, *device, *group, 1);
    EXPECT_GT(model->kv_layout().pages_together, 1);
    EXPECT_EQ(model->kv_layout().pages_together, device->kv_pages_together(model->kv_layout()));
}

// Pages of finished sequences are reused lowest address first.
TEST_F(PagePoolTest, TheLowestPageComesFirst) {
    PagePool pool(*device_, layout_, 5 * page_bytes_);
    const std::vector<std::byte*> pages = take(pool, 5);
    for (const std::size_t i : {3U, 0U, 4U, 1U}) pool.give_back(pages[i]);
    for (const std::size_t i : {0U, 1U, 3U, 4U}) EXPECT_EQ(pool.take(), pages[i]);
}

TEST_F(PagePoolTest, ACeilingBelowAPageHoldsNone) {
    PagePool pool(*device_, layout_, page_bytes_ - 1);
    EXPECT_EQ(pool.take(), nullptr);
}

TEST_F(PagePoolTest, ASequenceThatDoesNotFitTakesNothing) {
    PagePool pool(*device_, layout_, 2 * page_bytes_);
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(64));
    EXPECT_FALSE(kv.reserve(64 * 3));
    EXPECT_EQ(pool.pages_in_use(), 1);
    EXPECT_TRUE(kv.reserve_scratch(1));
    EXPECT_EQ(pool.pages_in_use(), 2);
}

/// Two groups of layers: one that sees all positions, and one with a window of 100.
class KvPoolTest : public PagePoolTest {
  protected:
    std::vector<kernels::KvLayout> layouts_ = [&] {
        std::vector<kernels::KvLayout> both(2, layout_);
        both[1].group = 1;
        both[1].window = 100;
        return both;
    }();
};

TEST_F(KvPoolTest, PagesOfAWindowAreUsedAgain) {
    KvPool pool(*device_, layouts_, KvMemory{1000 * page_bytes_}, {.sequences = 2, .ahead = 60, .scratch_slots = 64});
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(130));
    EXPECT_EQ(kv.pages_held()[1], 3) << "a short text has the pages of all its positions";
    ASSERT_TRUE(kv.reserve(1000));
    ASSERT_TRUE(kv.reserve_scratch(10, 200));
    constexpr std::int64_t ring = 4;  // 160 positions may begin anywhere in a page
    EXPECT_EQ(kv.pages_held()[0], 16 + 4);
    EXPECT_EQ(kv.pages_held()[1], ring + 1) << "gathered slots are in the first group";
    const auto pages = kv.pages(1);
    ASSERT_EQ(std::ssize(pages), 16);
    for (std::size_t i = 0; i + ring < pages.size(); ++i) {
        EXPECT_EQ(pages[i], pages[i + ring]);
        EXPECT_EQ(std::count(pages.begin(), pages.begin() + ring, pages[i]), 1);
    }
    EXPECT_TRUE(pool.pages_for(1000, {.of_tree = 10, .all = 210}).fit_in(kv.pages_held()));
    EXPECT_EQ(sequence_bytes(*device_, layouts_, 1000, 0, 60), (16 + ring) * page_bytes_);
}

/// A position may be written as long as the pages of the windows before its reader's end stay.
TEST_F(KvPoolTest, TellsWhatAWriteWouldOverwrite) {
    KvPool pool(*device_, layouts_, KvMemory{1000 * page_bytes_}, {.sequences = 1, .ahead = 60});
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(2000));
    for (const std::int64_t margin : {0, 40}) {
        std::int64_t first = 500;
        while (!kv.overwrites(first, 500, margin)) ++first;
        const auto pages = kv.pages(1);
        EXPECT_EQ(pages[first / 64], pages[(500 - 100 - margin) / 64]) << "the first page that is still read";
    }
    KvPool keeps_all(*device_, layouts_, 1000 * page_bytes_);
    EXPECT_FALSE(KvSequence(keeps_all).overwrites(1'000'000, 500, 40));
}

TEST_F(KvPoolTest, MemoryIsForTheWindowsFirst) {
    const WindowUse use{.sequences = 3, .ahead = 60, .scratch_slots = 64};
    const KvPool pool(*device_, layouts_, KvMemory{100 * page_bytes_}, use);
    EXPECT_EQ(pool.max_pages()[1], 3 * (4 + 1));
    EXPECT_EQ(pool.max_pages()[0], 100 - 15);
    EXPECT_EQ(KvPool(*device_, layouts_, KvMemory{20 * page_bytes_}, use).max_pages()[1], 10) << "at most a half";
    EXPECT_EQ(KvPool(*device_, layouts_, KvMemory{8 * page_bytes_}, use).max_pages()[1], 5) << "but for one sequence";
    EXPECT_EQ(KvPool(*device_, layouts_, KvMemory{8 * page_bytes_}, use).max_pages()[0], 3);
}

/// Two kinds of RoPE, and windows that are as long as the context.
TEST_F(KvPoolTest, GroupsWithoutWindowsShareTheMemory) {
    layouts_[1].window = 0;
    const KvPool pool(*device_, layouts_, KvMemory{100 * page_bytes_, 7 * page_bytes_}, {.sequences = 3, .ahead = 60});
    EXPECT_EQ(pool.max_pages()[0], 50);
    EXPECT_EQ(pool.max_pages()[1], 50);
}

TEST_F(KvPoolTest, AFailedReservationChangesNothing) {
    KvPool pool(*device_, layouts_, KvMemory{20 * page_bytes_}, {.sequences = 1, .ahead = 60, .scratch_slots = 64});
    KvSequence kv(pool);
    EXPECT_FALSE(kv.reserve(20 * 64));
    EXPECT_EQ(pool.pages_in_use()[0], 0);
    EXPECT_EQ(pool.pages_in_use()[1], 0);
    EXPECT_TRUE(kv.reserve(10 * 64));
}

}  // namespace
}  // namespace longhaul::engine
