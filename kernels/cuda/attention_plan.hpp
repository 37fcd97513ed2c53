// The work of attention over the rows of a pass, as the blocks of its kernels take it.
//
// Rows of a sequence that find their keys at the same places share the loading of them. Pages below `own_page` are
// common to them; from there on (the page where in_pages ends and what follows) a tree's rows each have a path of
// their own, which a kernel gathers row by row, every position at its absolute place. So the work splits into
//   common units   a tile of queries over chunks that are common to its rows
//   own units      a tile of queries over one chunk that is not: its common pages, then the rows' own ones
// A query is a row and a query head of one KV head; a tile is some consecutive queries. Every unit leaves for each of
// its queries a partial result (an *entry*: maximum, sum, output) of its chunks, which the last kernel merges in order.
//
// The plan is the same for all layers and all KV heads. Where partial results would take too much memory, it is cut
// into rounds of rows, one after the other in the same workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

/// A row in the order of the work.
struct PlanRow {
    std::int64_t position;
    std::int64_t in_pages;
    std::int64_t first_path;   ///< in Plan::paths: the slot of position in_pages
    std::int64_t pages;        ///< in Plan::pages: the sequence's first page
    std::int64_t scratch;      ///< in Plan::pages: its first scratch page
    std::int64_t first_entry;  ///< of the round's workspace
    std::int32_t row;          ///< of the pass: where its query and its result are
    std::int32_t num_entries;
    std::int32_t num_common;  ///< of the entries; they cover `unit_chunks` chunks each, from chunk 0
    std::int32_t first_own;   ///< chunk of the first own entry; those cover one each
};

struct PlanUnit {
    std::int32_t first_row;    ///< of the plan: of the first query's class
    std::int32_t first_query;  ///< query i is row first_row + i / group_heads, head i % group_heads
    std::int32_t num_queries;
    std::int32_t chunk_begin, chunk_end;
    std::int32_t common_end;  ///< pages below are common
    std::int32_t has_own;     ///< 1: rows have pages of their own from common_end on
    std::int32_t entry;       ///< of each row that reaches chunk_begin
};

struct PlanRound {
    std::int32_t first_row = 0, num_rows = 0;
    std::int32_t first_wide = 0, num_wide = 0;      ///< in Plan::units
    std::int32_t first_narrow = 0, num_narrow = 0;  ///< likewise
    std::int64_t num_entries = 0;
    std::int32_t max_entries = 0;  ///< of a row
};

/// What the kernels want of a plan.
struct PlanShape {
    int group_heads = 1;  ///< queries of a row
    int num_kv_heads = 1;
    int head_dim = 1;
    int narrow_queries = 8;  ///< of a tile
    int wide_queries = 8;    ///< of a tile of common chunks, where there are more queries than a narrow tile holds
    int span_chunks = 1;     ///< a unit may cover so many, from a multiple of them on
    int enough_units = 1;    ///< times KV heads: as long as there are as many, units cover spans
    std::int64_t max_bytes = std::int64_t{512} << 20;  ///< of partial results in a round; one row may take more

    friend bool operator==(const PlanShape&, const PlanShape&) = default;
    /// Of an entry: outputs, maximum and sum of a row's queries.
    [[nodiscard]] std::int64_t entry_bytes() const {
        return std::int64_t{4} * group_heads * num_kv_heads * (head_dim + 2);
    }
};

struct Plan {
    std::vector<PlanRow> rows;
    std::vector<PlanUnit> units;
    std::vector<PlanRound> rounds;
    std::vector<std::int32_t> paths;  ///< scratch slots
    std::vector<std::byte*> pages;
    int unit_chunks = 1;  ///< of common units
};

Plan make_plan(const PassRows& pass, const PlanShape& shape);

}  // namespace longhaul::kernels::cuda
