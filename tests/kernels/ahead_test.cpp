// What attention asks memory for (kernels/cpu/ahead.hpp): each line once, in time, and nothing else. Asking changes no
// bit, so that no other test would see it fail.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <vector>

namespace {

std::vector<const std::byte*> asked;

void note(const void* line) {
    asked.push_back(static_cast<const std::byte*>(line));
}

}  // namespace

#define __builtin_prefetch(line, ...) note(line)  // NOLINT: what the header below calls
#include "kernels/cpu/ahead.hpp"
#undef __builtin_prefetch

namespace longhaul::kernels::cpu {
namespace {

struct Isa {
    static constexpr int width = 16;
};

/// Pages of 64 positions: `together` of them stand side by side, first their keys, then their values.
struct Pages {
    Pages(std::int64_t num_pages, std::int64_t together, std::int64_t part_bytes)
        : memory(static_cast<std::size_t>(2 * (num_pages + together) * part_bytes + 64)), part_bytes(part_bytes) {
        auto* first = memory.data();
        while (reinterpret_cast<std::uintptr_t>(first) % 64 != 0) ++first;
        for (std::int64_t p = 0; p < num_pages; ++p)
            list.push_back(first + (p / together * 2 * together + p % together) * part_bytes);
        job.part_bytes = part_bytes;
        job.values_offset = together * part_bytes;
    }
    [[nodiscard]] KvAhead chunk(std::int64_t first, std::int64_t num_pages) const {
        return {list.data() + first, num_pages, 0};
    }
    /// How often each line of bytes from..until of pages first..first + num_pages was asked for.
    [[nodiscard]] std::vector<int> times(std::int64_t first, std::int64_t num_pages, std::int64_t from,
                                         std::int64_t until) const {
        std::map<const std::byte*, int> of_line;
        for (const std::byte* line : asked) ++of_line[line];
        std::vector<int> all;
        for (std::int64_t at = from; at < until; at += 64) {
            const std::int64_t part = at / part_bytes;
            const auto page = static_cast<std::size_t>(first + part % num_pages);
            all.push_back(of_line[list[page] + (part >= num_pages ? job.values_offset : 0) + at % part_bytes]);
        }
        return all;
    }

    std::vector<std::byte> memory;
    std::int64_t part_bytes;
    std::vector<std::byte*> list;
    AttentionJob job{};
};

struct Layout {
    std::int64_t together;
    std::int64_t part_bytes;
    std::int64_t ahead;

    friend std::ostream& operator<<(std::ostream& os, const Layout& l) {
        return os << l.together << " pages together, parts of " << l.part_bytes << " bytes, " << l.ahead << " ahead";
    }
};

constexpr Layout layouts[] = {{8, 8192, 12288}, {4, 16384, 12288}, {1, 8192, 18432}, {2, 2560, 8192}};

/// A chunk of 8 pages whose first bytes were asked for, and the beginning of the next: in loops of 32 turns, 2 lines
/// each.
TEST(AheadTest, EachLineIsAskedForOnce) {
    for (const Layout& layout : layouts) {
        SCOPED_TRACE(::testing::Message() << layout);
        const Pages pages(16, layout.together, layout.part_bytes);
        const std::int64_t chunk_bytes = 16 * layout.part_bytes;
        asked.clear();
        const std::int64_t loops = chunk_bytes / (32 * 128);
        Ahead<Isa> ahead(pages.job, {pages.chunk(0, 8), layout.ahead, everything}, {pages.chunk(8, 8), 0, layout.ahead},
                         2, loops * 32);
        std::int64_t turns = 0;
        for (std::int64_t loop = 0; loop < loops; ++loop) {
            auto share = ahead.take(32, pages.list[0]);
            for (int turn = 0; turn < 32 && share.asks(); ++turn, ++turns) share.ask<2>();
        }
        std::size_t lines = 0;
        for (const auto& part : {pages.times(0, 8, layout.ahead, chunk_bytes), pages.times(8, 8, 0, layout.ahead)}) {
            for (const int times : part) ASSERT_EQ(times, 1) << "line " << lines << " of what is to be asked for";
            lines += part.size();
        }
        for (const int times : pages.times(0, 8, 0, layout.ahead)) ASSERT_EQ(times, 0);
        EXPECT_EQ(asked.size(), lines);
    }
}

/// Loops of the most different lengths, some that count for several turns: no line is left out, except at the very end
/// what the last steps of runs lost.
TEST(AheadTest, NoLineIsForgotten) {
    for (const Layout& layout : layouts) {
        SCOPED_TRACE(::testing::Message() << layout);
        const Pages pages(8, layout.together, layout.part_bytes);
        const std::int64_t chunk_bytes = 16 * layout.part_bytes;
        asked.clear();
        const std::vector<int> loops = {4, 64, 7, 32, 1, 60, 15, 33};
        std::int64_t num_turns = 0;
        for (int round = 0; round < 5; ++round) {
            for (const int turns : loops) num_turns += turns * (turns < 16 ? 4 : 1);
        }
        Ahead<Isa> ahead(pages.job, {pages.chunk(0, 8), 0, everything}, {}, 4, num_turns);
        for (int round = 0; round < 5; ++round) {
            for (const int turns : loops) {
                const int weight = turns < 16 ? 4 : 1;
                auto share = ahead.take(turns, pages.list[0], weight);
                for (int turn = 0; turn < turns && share.asks(); ++turn) weight == 4 ? share.ask<16>() : share.ask<4>();
            }
        }
        std::map<std::uintptr_t, int> lines;
        for (const std::byte* line : asked) ++lines[reinterpret_cast<std::uintptr_t>(line) / 64];
        ASSERT_LE(chunk_bytes, num_turns * 256) << "more than they can ask for";
        const std::int64_t num_runs = 16 / layout.together;
        for (std::int64_t at = 0; at < chunk_bytes - num_runs * 4 * 256; at += 64) {
            const std::int64_t part = at / layout.part_bytes;
            const std::byte* line = pages.list[static_cast<std::size_t>(part % 8)] +
                                    (part >= 8 ? pages.job.values_offset : 0) + at % layout.part_bytes;
            ASSERT_GE(lines[reinterpret_cast<std::uintptr_t>(line) / 64], 1) << "byte " << at;
        }
    }
}

TEST(AheadTest, NothingToAskForAsksForNothing) {
    asked.clear();
    AttentionJob job{};
    Ahead<Isa> ahead(job, {}, {}, 2, 100);
    ahead.get_ahead(4096);
    EXPECT_FALSE(ahead.take(32, nullptr).asks());
    EXPECT_TRUE(asked.empty());
}

}  // namespace
}  // namespace longhaul::kernels::cpu
