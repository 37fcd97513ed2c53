// The rows of an attention tile over one chunk of 512 positions: which of its positions each of them reads, and from
// where. Used by attention.hpp, which explains the limits.
#pragma once

#include "kernels/cpu/attention_tile.hpp"
#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

/// Positions whose values are added together: pairs, blocks of bf16 tiles, or single ones (f32).
template <class Dot>
constexpr std::int64_t values_together = [] {
    if constexpr (requires { Dot::values_together; }) return Dot::values_together;
    return elements_of_group<Dot>;
}();

/// Tile rows first..first + count of a unit, over one chunk.
template <class Isa, class Dot>
struct ChunkTile {
    const AttentionJob& job;
    const AttentionUnit& unit;
    std::int64_t first;
    std::int64_t count;
    std::int64_t first_position;  ///< first position of the chunk
    std::int64_t paged = 0;       ///< positions of the chunk that some row has in pages
    std::int64_t whole = 0;       ///< paged, rounded down to whole pairs or blocks
    std::int64_t skipped = 0;     ///< positions at the start of the chunk in pages before the rows' windows

    ChunkTile(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk, std::int64_t first,
              std::int64_t count)
        : job(job), unit(unit), first(first), count(count), first_position(chunk * chunk_tokens) {
        std::int64_t hidden_from_all = chunk_tokens;
        for (std::int64_t r = first_row(); r < end_row(); ++r) {
            const std::int64_t in_chunk = clamp(unit.rows[r].in_pages - first_position);
            paged = in_chunk > paged ? in_chunk : paged;
            const std::int64_t before = hidden(unit.rows[r]);
            hidden_from_all = before < hidden_from_all ? before : hidden_from_all;
        }
        whole = paged / values_together<Dot> * values_together<Dot>;
        skipped = hidden_from_all / page_tokens * page_tokens;
        skipped = skipped < whole ? skipped : whole / page_tokens * page_tokens;
    }
    /// Rows of the unit that have at least one head in the tile.
    [[nodiscard]] std::int64_t first_row() const { return first / job.group_heads; }
    [[nodiscard]] std::int64_t end_row() const { return (first + count - 1) / job.group_heads + 1; }
    /// Tile rows that are the heads of row `u` of the unit.
    [[nodiscard]] std::int64_t first_head(std::int64_t u) const {
        return u * job.group_heads < first ? 0 : u * job.group_heads - first;
    }
    [[nodiscard]] std::int64_t end_head(std::int64_t u) const {
        const std::int64_t end = (u + 1) * job.group_heads - first;
        return end < count ? end : count;
    }
    [[nodiscard]] const UnitRow& row_of(std::int64_t r) const { return unit.rows[(first + r) / job.group_heads]; }

    static std::int64_t clamp(std::int64_t value) {
        return value < 0 ? 0 : value > chunk_tokens ? std::int64_t{chunk_tokens} : value;
    }
    /// Positions of the chunk that the row sees; <= 0: the chunk is beyond the row.
    [[nodiscard]] std::int64_t visible(const UnitRow& row) const {
        const std::int64_t in_chunk = row.position + 1 - first_position;
        return in_chunk > chunk_tokens ? std::int64_t{chunk_tokens} : in_chunk;
    }
    /// Positions of the chunk before the row's window.
    [[nodiscard]] std::int64_t hidden(const UnitRow& row) const { return clamp(row.first_visible - first_position); }
    /// Whether the row sees positions of the chunk.
    [[nodiscard]] bool sees_some(const UnitRow& row) const { return visible(row) > hidden(row); }
    /// Positions of the chunk whose values the row adds through tiles.
    [[nodiscard]] std::int64_t tiled(const UnitRow& row) const {
        constexpr std::int64_t group = values_together<Dot>;
        const bool has_path = row.in_pages <= row.position;
        const std::int64_t in_chunk = clamp((has_path ? row.in_pages / group * group : row.in_pages) - first_position);
        return in_chunk < whole ? in_chunk : whole;
    }
    [[nodiscard]] const std::byte* keys_of(const std::byte* page) const {
        return page + job.keys_offset + unit.kv_head * job.head_stride;
    }
    [[nodiscard]] const std::byte* values_of(const std::byte* page) const { return keys_of(page) + job.values_offset; }
    [[nodiscard]] std::byte* const* pages() const { return unit.pages + first_position / page_tokens; }
};

}  // namespace longhaul::kernels::cpu
