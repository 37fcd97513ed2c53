// The attention work of a pass, split into units for thread blocks.
//
// Rows of a sequence whose keys are at the same addresses share the loads. Pages below `own_page` are common to them.
// From there on (the page that contains in_pages, and those after it) each row of a token tree has its own path, which
// a kernel gathers row by row, every position at its absolute place. So there are two kinds of units:
//   common units   a tile of queries over chunks that are common to its rows
//   own units      a tile of queries over one chunk that is not: its common pages, then the rows' own pages
// A query is a row and a query head of one KV head; a tile is a run of consecutive queries. Every unit writes one
// partial result (an *entry*: maximum, sum, output) per query for its chunks; the last kernel merges the entries in
// order.
//
// The plan is the same for all KV heads and all layers of a group. If partial results would take too much memory, the
// plan is cut into rounds of rows, which use the same workspace one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

/// A row, in the order in which rows are processed.
struct PlanRow {
    std::int64_t position;
    std::int64_t in_pages;
    std::int64_t first_path;     ///< in Plan::paths: the slot of position in_pages
    std::int64_t pages;          ///< in Plan::pages: the first page of the sequence
    std::int64_t scratch;        ///< in Plan::pages: the first scratch page of the sequence
    std::int64_t first_entry;    ///< in the round's workspace
    std::int64_t first_visible;  ///< the row sees positions first_visible..position
    std::int32_t row;            ///< index in the pass: locates its query and its result
    std::int32_t num_entries;
    std::int32_t num_common;   ///< entries of common units, which end at multiples of `unit_chunks` chunks
    std::int32_t first_chunk;  ///< the chunk of first_visible: the first entry begins there
    std::int32_t first_own;    ///< chunk of the first own entry; own entries cover one chunk each
};

struct alignas(16) PlanUnit {
    std::int32_t first_row;    ///< in Plan::rows: first row of the class
    std::int32_t first_query;  ///< query i is row first_row + i / group_heads, head i % group_heads
    std::int32_t num_queries;
    std::int32_t chunk_begin, chunk_end;
    std::int32_t first_page;       ///< pages before this one are before the windows of all its rows
    std::int32_t common_end;       ///< pages below this one are common
    std::int32_t has_own;          ///< 1: rows have pages of their own from common_end on
    std::int32_t entry;            ///< index among the entries of each row that reaches chunk_begin
    std::int32_t pages;            ///< in Plan::pages: the first page of chunk_begin
    std::int32_t seen_by_one;      ///< number of the unit's positions that its last row sees, counted from their start
    std::int32_t seen_by_all;      ///< likewise its first row
    std::int32_t hidden_from_one;  ///< of these, positions before the window of its last row
};

struct PlanRound {
    std::int32_t first_row = 0, num_rows = 0;
    std::int32_t first_wide = 0, num_wide = 0;      ///< in Plan::units
    std::int32_t first_narrow = 0, num_narrow = 0;  ///< in Plan::units
    std::int64_t num_entries = 0;
    std::int32_t max_entries = 0;  ///< per row
};

/// Parameters of a plan, set by the kernel that runs it.
struct PlanShape {
    int group_heads = 1;  ///< queries per row
    int num_kv_heads = 1;
    int head_dim = 1;
    std::int64_t window = 0;  ///< KvLayout::window
    int narrow_queries = 8;   ///< per tile
    int wide_queries = 8;     ///< per tile of common chunks, if a class has more queries than a narrow tile holds
    int widest_queries = 0;   ///< instead, if such tiles are enough units and hold more queries; 0: never
    int chunk_pages = 8;      ///< pages per chunk of positions, the unit of the order of sums
    int span_chunks = 1;      ///< chunks that a common unit may cover, starting at a multiple of this number
    int enough_units = 1;     ///< units * KV heads; if there are at least this many, units cover whole spans
    std::int64_t max_bytes = std::int64_t{512} << 20;  ///< of partial results per round; a single row may exceed it

    friend bool operator==(const PlanShape&, const PlanShape&) = default;
    /// Bytes of an entry: outputs, maximum and sum of all queries of a row.
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
    int unit_chunks = 1;   ///< per common unit
    int wide_queries = 0;  ///< per wide tile
};

Plan make_plan(const GroupRows& pass, const PlanShape& shape);

}  // namespace longhaul::kernels::cuda
