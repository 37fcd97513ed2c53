// make_plan(): splits the attention of a pass into units for thread blocks (attention_plan.hpp). Called by
// AttentionPart.
#include "kernels/cuda/attention_plan.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t page_tokens = KvLayout::page_tokens;
constexpr std::int32_t nowhere = std::numeric_limits<std::int32_t>::max();

/// The first page that the rows of a class do not share.
std::int32_t own_page_of(std::int64_t position, std::int64_t in_pages) {
    return in_pages > position ? nowhere : static_cast<std::int32_t>(in_pages / page_tokens);
}
std::int32_t own_page_of(const PlanRow& row) {
    return own_page_of(row.position, row.in_pages);
}

/// Rows of one sequence with the same `own_page`, adjacent in the plan.
struct Class {
    std::int32_t first_row, end_row;
    std::int32_t own_page;
    std::int32_t first_chunk;  ///< of all rows

    [[nodiscard]] bool has_own() const { return own_page != nowhere; }
    /// End of the chunks before the first one with own pages, at least first_chunk; `last`: the last chunk of the rows
    /// in question.
    [[nodiscard]] std::int32_t common_chunks(std::int32_t last, int chunk_pages) const {
        return std::max(has_own() ? own_page / chunk_pages : last + 1, first_chunk);
    }
    /// Number of common units up to chunk `end`.
    [[nodiscard]] std::int32_t common_units(std::int32_t end, int unit_chunks) const {
        return end > first_chunk ? (end + unit_chunks - 1) / unit_chunks - first_chunk / unit_chunks : 0;
    }
};

class Planner {
  public:
    Planner(const GroupRows& pass, const PlanShape& shape) : pass_(pass), shape_(shape) {}

    Plan make() {
        take_rows();
        choose_units();
        for (std::int32_t row = 0; row < static_cast<std::int32_t>(plan_.rows.size());) row = add_round(row);
        return std::move(plan_);
    }

  private:
    void take_rows();
    void take_row(std::int32_t r, const std::vector<std::int64_t>& first_pages);
    [[nodiscard]] Class class_at(std::int32_t row, std::int32_t end) const;
    void choose_units();
    [[nodiscard]] std::int64_t count_units(int unit_chunks, int wide_queries) const;
    std::int32_t add_round(std::int32_t first_row);
    std::int32_t end_of_round(std::int32_t first_row);
    void count_entries(PlanRow& row) const;
    void add_common(const Class& rows, bool wide);
    void add_own(const Class& rows);
    [[nodiscard]] PlanUnit unit_of(const Class& rows, std::int32_t first_query, std::int32_t num_queries,
                                   std::int32_t begin, std::int32_t end) const;
    /// Calls `tile(first_query, num_queries, last_row)` for each tile of the class.
    template <typename Tile>
    void for_each_tile(const Class& rows, int size, Tile tile) const;
    [[nodiscard]] std::int32_t chunk_of(std::int64_t position) const {
        return static_cast<std::int32_t>(position / (shape_.chunk_pages * page_tokens));
    }
    [[nodiscard]] std::int32_t last_chunk_of(const PlanRow& row) const { return chunk_of(row.position); }
    [[nodiscard]] int tile_size(const Class& rows, int wide_queries) const {
        const std::int64_t queries = std::int64_t{rows.end_row - rows.first_row} * shape_.group_heads;
        return queries > shape_.narrow_queries ? wide_queries : shape_.narrow_queries;
    }
    [[nodiscard]] bool is_wide(const Class& rows) const {
        return tile_size(rows, plan_.wide_queries) > shape_.narrow_queries;
    }

    const GroupRows& pass_;
    const PlanShape& shape_;
    Plan plan_;
};

void Planner::take_rows() {
    std::vector<std::int64_t> first_pages;
    for (const AttentionSequence& sequence : pass_.sequences) {
        first_pages.push_back(static_cast<std::int64_t>(plan_.pages.size()));
        plan_.pages.insert(plan_.pages.end(), sequence.pages.begin(), sequence.pages.end());
        plan_.pages.insert(plan_.pages.end(), sequence.scratch_pages.begin(), sequence.scratch_pages.end());
    }
    std::vector<std::int32_t> order(pass_.rows.size());
    for (std::size_t r = 0; r < order.size(); ++r) order[r] = static_cast<std::int32_t>(r);
    const auto key = [&](std::int32_t r) {
        const AttentionRow& row = pass_.rows[static_cast<std::size_t>(r)];
        return std::tuple(row.sequence, own_page_of(row.position, row.in_pages), row.position, r);
    };
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });
    plan_.rows.reserve(order.size());
    for (const std::int32_t r : order) take_row(r, first_pages);
}

void Planner::take_row(std::int32_t r, const std::vector<std::int64_t>& first_pages) {
    const AttentionRow& row = pass_.rows[static_cast<std::size_t>(r)];
    const auto s = static_cast<std::size_t>(row.sequence);
    const std::int64_t first = row.first_visible(shape_.window);
    plan_.rows.push_back({.position = row.position,
                          .in_pages = row.in_pages,
                          .first_path = static_cast<std::int64_t>(plan_.paths.size()),
                          .pages = first_pages[s],
                          .scratch = first_pages[s] + static_cast<std::int64_t>(pass_.sequences[s].pages.size()),
                          .first_entry = 0,
                          .first_visible = first,
                          .row = r,
                          .num_entries = 0,
                          .num_common = 0,
                          .first_chunk = chunk_of(first),
                          .first_own = 0});
    if (row.in_pages <= row.position) {
        plan_.paths.insert(plan_.paths.end(), row.path, row.path + (row.position + 1 - row.in_pages));
    }
}

Class Planner::class_at(std::int32_t row, std::int32_t end) const {
    const auto at = [&](std::int32_t r) -> const PlanRow& { return plan_.rows[static_cast<std::size_t>(r)]; };
    const std::int32_t own_page = own_page_of(at(row));
    std::int32_t last = row + 1;
    while (last < end && at(last).pages == at(row).pages && at(last).scratch == at(row).scratch &&
           own_page_of(at(last)) == own_page && at(last).first_chunk == at(row).first_chunk) {
        ++last;
    }
    return {row, last, own_page, at(row).first_chunk};
}

/// Units cover whole spans if these are enough units, else single chunks. The widest tiles are used if most of them
/// hold more queries than a wide tile: then they are at most three quarters as many.
void Planner::choose_units() {
    for (const int unit_chunks : {shape_.span_chunks, 1}) {
        plan_.unit_chunks = unit_chunks;
        plan_.wide_queries = shape_.wide_queries;
        const std::int64_t units = count_units(unit_chunks, shape_.wide_queries);
        if (shape_.widest_queries > 0) {
            const std::int64_t widest = count_units(unit_chunks, shape_.widest_queries);
            if (widest >= shape_.enough_units && 4 * widest <= 3 * units) {
                plan_.wide_queries = shape_.widest_queries;
                return;
            }
        }
        if (units >= shape_.enough_units) return;
    }
}

/// Number of units of the whole pass if common units covered `unit_chunks` chunks, with wide tiles of that size.
std::int64_t Planner::count_units(int unit_chunks, int wide_queries) const {
    std::int64_t units = 0;
    const auto end = static_cast<std::int32_t>(plan_.rows.size());
    for (std::int32_t row = 0; row < end;) {
        const Class rows = class_at(row, end);
        for_each_tile(rows, tile_size(rows, wide_queries), [&](std::int32_t, std::int32_t, const PlanRow& last) {
            units += rows.common_units(rows.common_chunks(last_chunk_of(last), shape_.chunk_pages), unit_chunks);
        });
        row = rows.end_row;
    }
    return units * shape_.num_kv_heads;
}

void Planner::count_entries(PlanRow& row) const {
    const Class alone{0, 1, own_page_of(row), row.first_chunk};
    const std::int32_t last = last_chunk_of(row);
    const std::int32_t common = alone.common_chunks(last, shape_.chunk_pages);
    row.num_common = alone.common_units(common, plan_.unit_chunks);
    row.first_own = common;
    row.num_entries = row.num_common + (alone.has_own() ? last + 1 - common : 0);
}

/// Takes as many rows as fit into the workspace. Tiles share what they load, so a cut within a tile loads its pages
/// twice.
std::int32_t Planner::end_of_round(std::int32_t first_row) {
    PlanRound round{.first_row = first_row};
    std::int32_t row = first_row;
    for (; row < static_cast<std::int32_t>(plan_.rows.size()); ++row) {
        PlanRow& taken = plan_.rows[static_cast<std::size_t>(row)];
        count_entries(taken);
        const std::int64_t entries = round.num_entries + taken.num_entries;
        if (row > first_row && entries * shape_.entry_bytes() > shape_.max_bytes) break;
        taken.first_entry = round.num_entries;
        round.num_entries = entries;
        round.max_entries = std::max(round.max_entries, taken.num_entries);
    }
    round.num_rows = row - first_row;
    plan_.rounds.push_back(round);
    return row;
}

std::int32_t Planner::add_round(std::int32_t first_row) {
    const std::int32_t end = end_of_round(first_row);
    PlanRound& round = plan_.rounds.back();
    const auto here = [&] { return static_cast<std::int32_t>(plan_.units.size()); };
    const auto for_each_class = [&](auto part) {
        for (std::int32_t row = first_row; row < end;) {
            const Class rows = class_at(row, end);
            part(rows);
            row = rows.end_row;
        }
    };
    round.first_narrow = here();
    for_each_class([&](const Class& rows) {  // own units first: they take longest
        if (rows.has_own()) add_own(rows);
    });
    for_each_class([&](const Class& rows) {
        if (!is_wide(rows)) add_common(rows, false);
    });
    round.num_narrow = here() - round.first_narrow;
    round.first_wide = here();
    for_each_class([&](const Class& rows) {
        if (is_wide(rows)) add_common(rows, true);
    });
    round.num_wide = here() - round.first_wide;
    return end;
}

template <typename Tile>
void Planner::for_each_tile(const Class& rows, int size, Tile tile) const {
    const std::int32_t queries = (rows.end_row - rows.first_row) * shape_.group_heads;
    for (std::int32_t first = 0; first < queries; first += size) {
        const std::int32_t count = std::min<std::int32_t>(size, queries - first);
        const std::int32_t last_row = rows.first_row + (first + count - 1) / shape_.group_heads;
        tile(first, count, plan_.rows[static_cast<std::size_t>(last_row)]);
    }
}

/// The fields of a unit that follow from its queries and chunks. The rows of a class are in order of position: the
/// first row of the tile sees the earliest positions, the last row the latest.
PlanUnit Planner::unit_of(const Class& rows, std::int32_t first_query, std::int32_t num_queries, std::int32_t begin,
                          std::int32_t end) const {
    const auto row_of = [&](std::int32_t query) -> const PlanRow& {
        return plan_.rows[static_cast<std::size_t>(rows.first_row + query / shape_.group_heads)];
    };
    const std::int64_t chunk_tokens = shape_.chunk_pages * page_tokens;
    const auto within = [&](std::int64_t position) {
        return static_cast<std::int32_t>(
            std::clamp<std::int64_t>(position - begin * chunk_tokens, 0, (end - begin) * chunk_tokens));
    };
    const PlanRow& first = row_of(first_query);
    const PlanRow& last = row_of(first_query + num_queries - 1);
    const auto first_page = static_cast<std::int32_t>(first.first_visible / page_tokens);
    return {.first_row = rows.first_row,
            .first_query = first_query,
            .num_queries = num_queries,
            .chunk_begin = begin,
            .chunk_end = end,
            .first_page = std::max(begin * shape_.chunk_pages, first_page),
            .common_end = std::min(rows.own_page, static_cast<std::int32_t>(last.position / page_tokens + 1)),
            .has_own = 0,
            .entry = 0,
            .pages = static_cast<std::int32_t>(first.pages) + begin * shape_.chunk_pages,
            .seen_by_one = within(last.position + 1),
            .seen_by_all = within(first.position + 1),
            .hidden_from_one = within(last.first_visible)};
}

/// Tiles of one chunk follow each other: the first one loads it, the others find it in the cache.
void Planner::add_common(const Class& rows, bool wide) {
    const std::int32_t last = last_chunk_of(plan_.rows[static_cast<std::size_t>(rows.end_row - 1)]);
    const std::int32_t chunks = rows.common_chunks(last, shape_.chunk_pages);
    std::int32_t next = 0;
    for (std::int32_t begin = rows.first_chunk; begin < chunks; begin = next) {
        next = (begin / plan_.unit_chunks + 1) * plan_.unit_chunks;
        for_each_tile(rows, wide ? plan_.wide_queries : shape_.narrow_queries,
                      [&](std::int32_t first_query, std::int32_t num_queries, const PlanRow& last_row) {
                          const std::int32_t end =
                              std::min({next, chunks, rows.common_chunks(last_chunk_of(last_row), shape_.chunk_pages)});
                          if (end <= begin) return;
                          PlanUnit unit = unit_of(rows, first_query, num_queries, begin, end);
                          unit.entry = begin / plan_.unit_chunks - rows.first_chunk / plan_.unit_chunks;
                          plan_.units.push_back(unit);
                      });
    }
}

void Planner::add_own(const Class& rows) {
    const std::int32_t first_chunk = rows.common_chunks(0, shape_.chunk_pages);
    const std::int32_t num_common = rows.common_units(first_chunk, plan_.unit_chunks);
    for_each_tile(rows, shape_.narrow_queries,
                  [&](std::int32_t first_query, std::int32_t num_queries, const PlanRow& last_row) {
                      for (std::int32_t c = first_chunk; c <= last_chunk_of(last_row); ++c) {
                          PlanUnit unit = unit_of(rows, first_query, num_queries, c, c + 1);
                          unit.common_end = rows.own_page;
                          unit.has_own = 1;
                          unit.entry = num_common + c - first_chunk;
                          plan_.units.push_back(unit);
                      }
                  });
}

}  // namespace

Plan make_plan(const GroupRows& pass, const PlanShape& shape) {
    return Planner(pass, shape).make();
}

}  // namespace longhaul::kernels::cuda
