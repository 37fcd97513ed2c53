// The plan of the GPU's attention: every row's chunks are processed once, in order, in units that several rows may
// share.
#include "kernels/cuda/attention_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace longhaul::kernels::cuda {
namespace {

/// Rows of some sequences: prompts, single tokens, trees with paths of any length.
struct RandomPass {
    explicit RandomPass(std::uint64_t seed) : generator(seed) {
        const std::int64_t num_sequences = below(4) + 1;
        for (std::int64_t s = 0; s < num_sequences; ++s) {
            pages.emplace_back(static_cast<std::size_t>(below(200)), nullptr);
            scratch.emplace_back(static_cast<std::size_t>(below(3) + 1), nullptr);
            add_rows(static_cast<std::int32_t>(s));
        }
        std::shuffle(rows.begin(), rows.end(), generator);
        for (std::size_t s = 0; s < pages.size(); ++s) sequences.push_back({pages[s], scratch[s]});
    }
    void add_rows(std::int32_t s) {
        const auto tokens = static_cast<std::int64_t>(pages.back().size()) * 64;
        const std::int64_t in_pages = tokens == 0 ? 0 : below(tokens);
        for (std::int64_t i = below(90); i >= 0; --i) {
            const std::int64_t depth = below(3) == 0 ? 600 : below(9) + 1;
            const bool prompt = s % 2 == 1 && tokens > 0;
            if (prompt) {
                const std::int64_t position = std::max<std::int64_t>(0, in_pages - i);
                rows.push_back({s, position, position + 1, nullptr});
            } else {
                rows.push_back({s, in_pages + depth - 1, in_pages, path.data()});
            }
        }
    }
    std::int64_t below(std::int64_t end) {
        return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(end));
    }
    [[nodiscard]] GroupRows pass() const { return {.sequences = sequences, .rows = rows, .slots = {}}; }

    std::mt19937_64 generator;
    std::vector<std::int32_t> path = std::vector<std::int32_t>(1000, 5);
    std::vector<std::vector<std::byte*>> pages;
    std::vector<std::vector<std::byte*>> scratch;
    std::vector<AttentionSequence> sequences;
    std::vector<AttentionRow> rows;
};

/// The chunks that the merging kernel attributes to an entry.
std::pair<int, int> chunks_of(const Plan& plan, const PlanRow& row, int entry) {
    if (entry >= row.num_common)
        return {row.first_own + entry - row.num_common, row.first_own + entry + 1 - row.num_common};
    return {entry * plan.unit_chunks, std::min((entry + 1) * plan.unit_chunks, row.first_own)};
}

class Checker {
  public:
    Checker(const Plan& plan, const PlanShape& shape) : plan_(plan), shape_(shape) {}

    void check_units(int first, int count, int size) {
        for (int u = first; u < first + count; ++u) check(plan_.units[static_cast<std::size_t>(u)], size);
    }
    /// Each entry of each row and head was written once, and the entries cover all chunks.
    void check_rows(const PlanRound& round) const {
        for (int r = round.first_row; r < round.first_row + round.num_rows; ++r) {
            const PlanRow& row = plan_.rows[static_cast<std::size_t>(r)];
            int next = 0;
            for (int entry = 0; entry < row.num_entries; ++entry) {
                const auto [begin, end] = chunks_of(plan_, row, entry);
                ASSERT_EQ(begin, next);
                ASSERT_GT(end, begin);
                next = end;
                for (int head = 0; head < shape_.group_heads; ++head) {
                    const auto written = written_.find({row.first_entry + entry, head});
                    ASSERT_NE(written, written_.end()) << "row " << r << ", entry " << entry;
                    ASSERT_EQ(written->second, r);
                }
            }
            ASSERT_EQ(next, row.position / (shape_.chunk_pages * 64) + 1);
        }
    }
    void next_round() { written_.clear(); }

  private:
    void check(const PlanUnit& unit, int size) {
        ASSERT_GT(unit.num_queries, 0);
        ASSERT_LE(unit.num_queries, size);
        ASSERT_LT(unit.chunk_begin, unit.chunk_end);
        for (int i = 0; i < unit.num_queries; ++i) {
            const int query = unit.first_query + i;
            const int r = unit.first_row + query / shape_.group_heads;
            const PlanRow& row = plan_.rows[static_cast<std::size_t>(r)];
            ASSERT_EQ(row.pages, plan_.rows[static_cast<std::size_t>(unit.first_row)].pages);
            check_pages(unit, row);
            if (row.position < unit.chunk_begin * shape_.chunk_pages * std::int64_t{64}) continue;
            const auto [begin, end] = chunks_of(plan_, row, unit.entry);
            ASSERT_EQ(begin, unit.chunk_begin);
            ASSERT_LE(end, unit.chunk_end);  // a tile reaches as far as its last row
            ASSERT_TRUE(
                written_.emplace(std::pair(row.first_entry + unit.entry, query % shape_.group_heads), r).second);
        }
    }
    /// Common pages are pages of every row of the unit; all others are gathered.
    void check_pages(const PlanUnit& unit, const PlanRow& row) const {
        const bool has_path = row.in_pages <= row.position;
        if (has_path) {
            ASSERT_LE(unit.common_end * std::int64_t{64}, row.in_pages);
        }
        if (unit.has_own != 0) {
            ASSERT_TRUE(has_path);
            ASSERT_EQ(unit.common_end, row.in_pages / 64);
        } else if (has_path) {
            ASSERT_LE(unit.chunk_end * shape_.chunk_pages, unit.common_end);
        }
    }

    const Plan& plan_;
    const PlanShape& shape_;
    std::map<std::pair<std::int64_t, int>, int> written_;  // (entry, head) -> row
};

void check_plan(const RandomPass& random, const PlanShape& shape) {
    const Plan plan = make_plan(random.pass(), shape);
    ASSERT_EQ(plan.rows.size(), random.rows.size());
    Checker checker(plan, shape);
    int next = 0;
    for (const PlanRound& round : plan.rounds) {
        ASSERT_EQ(round.first_row, next);
        next += round.num_rows;
        if (round.num_rows > 1) {
            ASSERT_LE(round.num_entries * shape.entry_bytes(), shape.max_bytes);
        }
        checker.check_units(round.first_narrow, round.num_narrow, shape.narrow_queries);
        checker.check_units(round.first_wide, round.num_wide, plan.wide_queries);
        checker.check_rows(round);
        checker.next_round();
    }
    ASSERT_EQ(next, static_cast<int>(plan.rows.size()));
}

TEST(AttentionPlan, CoversAllChunksOfAllRowsOnce) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed);
        RandomPass random(seed);
        PlanShape shape{.group_heads = static_cast<int>(random.below(9)) + 1,
                        .num_kv_heads = 2,
                        .head_dim = 32,
                        .narrow_queries = 16,
                        .wide_queries = 64,
                        .chunk_pages = 2,
                        .span_chunks = 8,
                        .enough_units = static_cast<int>(random.below(60))};
        check_plan(random, shape);
        shape.max_bytes = 100'000;
        check_plan(random, shape);
        shape.widest_queries = 128;
        check_plan(random, shape);
        check_plan(random, {.group_heads = shape.group_heads, .num_kv_heads = 1, .head_dim = 32});
    }
}

/// A tree shares the pages of its context: it needs as many units for them as one row, plus the rows' own units.
TEST(AttentionPlan, TreesShareTheirContext) {
    const std::vector<std::int32_t> path{0, 1, 2};
    const std::vector<std::byte*> pages(1600, nullptr);
    const std::vector<std::byte*> scratch(1, nullptr);
    const AttentionSequence sequence{pages, scratch};
    const std::vector<AttentionRow> rows(16, {0, 100'002, 100'000, path.data()});
    const GroupRows pass{.sequences = {&sequence, 1}, .rows = rows, .slots = {}};
    const PlanShape shape{.group_heads = 4,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .narrow_queries = 16,
                          .wide_queries = 64,
                          .chunk_pages = 2,
                          .span_chunks = 8,
                          .enough_units = 1 << 20};
    const Plan plan = make_plan(pass, shape);
    ASSERT_EQ(plan.rounds.size(), 1U);
    EXPECT_EQ(plan.rounds[0].num_wide, 100'000 / 128);
    EXPECT_EQ(plan.rounds[0].num_narrow, 4);
    EXPECT_EQ(plan.unit_chunks, 1);
}

/// Wider tiles, and units of whole spans, are for passes that have enough units of them.
TEST(AttentionPlan, TilesAreAsWideAsThereAreEnoughUnits) {
    const std::vector<std::byte*> pages(160, nullptr);  // ten spans
    const AttentionSequence sequence{pages, {}};
    struct Expected {
        int rows, enough_units, wide_queries, unit_chunks;
    };
    for (const Expected& e : {Expected{32, 10, 128, 8},
                              {32, 11, 64, 8},
                              {32, 21, 128, 1},
                              {32, 81, 64, 1},
                              {16, 10, 64, 8},
                              {48, 10, 128, 8},
                              {48, 31, 128, 1}}) {
        SCOPED_TRACE(::testing::Message() << e.rows << " rows, " << e.enough_units << " units are enough");
        const std::vector<AttentionRow> rows(static_cast<std::size_t>(e.rows), {0, 160 * 64 - 1, 160 * 64, nullptr});
        const Plan plan =
            make_plan({.sequences = {&sequence, 1}, .rows = rows, .slots = {}}, {.group_heads = 4,
                                                                                 .narrow_queries = 16,
                                                                                 .wide_queries = 64,
                                                                                 .widest_queries = 128,
                                                                                 .chunk_pages = 2,
                                                                                 .span_chunks = 8,
                                                                                 .enough_units = e.enough_units});
        EXPECT_EQ(plan.wide_queries, e.wide_queries);
        EXPECT_EQ(plan.unit_chunks, e.unit_chunks);
    }
}

}  // namespace
}  // namespace longhaul::kernels::cuda
