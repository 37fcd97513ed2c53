// Attention over bf16 keys and values by matrix tiles (bf16_tiles.hpp): kernels = amx-bf16. As attention.hpp, which
// explains the limits of positions, but in blocks: 32 dimensions of keys and 32 positions of values in place of pairs.
#pragma once

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/bf16_tile_matmul.hpp"

namespace longhaul::kernels::cpu {

/// What the templates of attention.hpp need to know of tiles: probabilities are pairs of bf16, and values are added in
/// blocks.
template <class Isa>
struct DotBf16Tiles {
    static constexpr int steps = 1;
    static constexpr bool is_bf16 = true;
    static constexpr std::int64_t values_together = bf16_block;
};

/// Up to 16 rows of a unit.
template <class Isa, class Tiles>
class TileAttention {
  public:
    using Dot = DotBf16Tiles<Isa>;
    using Chunk = ChunkTile<Isa, Dot>;

    TileAttention(const AttentionJob& job, std::int64_t rows, const std::uint32_t* q_words)
        : job_(job),
          rows_(rows),
          tiles_(rows),
          queries_(reinterpret_cast<const std::byte*>(q_words)),
          whole_steps_(job.head_dim / 2 / tile_groups),
          rest_groups_(job.head_dim / 2 % tile_groups) {}

    /// Scores before they are scaled, to scores[row * score_stride + slot].
    void page_scores(const std::byte* keys, std::int64_t num_slots, Prefetcher<Isa>& next, float* scores) {
        const std::int64_t blocks = (num_slots + lanes - 1) / lanes;
        auto ahead = next.take(blocks * tile_steps(job_.head_dim / 2), keys);
        std::int64_t b = 0;
        for (; b + 4 <= blocks; b += 4) scores_of<4>(keys + b * key_block_bytes(), ahead, scores + b * lanes);
        for (; b < blocks; ++b) scores_of<1>(keys + b * key_block_bytes(), ahead, scores + b * lanes);
    }

    /// output = probabilities (bf16, [row][score_stride words]) x values of the pages, + 0.
    void page_values(const Chunk& chunk, const float* probabilities, Prefetcher<Isa>& next, float* output) {
        const std::int64_t blocks = job_.padded_dim / lanes;
        std::int64_t b = 0;
        for (; b + 4 <= blocks; b += 4) values_of<4>(chunk, probabilities, b, next, output);
        for (; b < blocks; ++b) values_of<1>(chunk, probabilities, b, next, output);
        for (std::int64_t i = 0; i < rows_ * job_.padded_dim; i += Isa::width)
            Isa::store(output + i, Isa::add(Isa::load(output + i), Isa::zero()));
    }

  private:
    using Ahead = typename Prefetcher<Isa>::Share;
    static constexpr int tile_lines = tile_bytes / 64;

    [[nodiscard]] std::int64_t key_block_bytes() const { return job_.head_dim / 2 * group_bytes; }

    template <int Blocks>
    [[gnu::always_inline]] void clear() {
        tiles_.template clear<0>();
        if constexpr (Blocks == 4) {
            tiles_.template clear<1>();
            tiles_.template clear<2>();
            tiles_.template clear<3>();
        }
    }
    template <int Block>
    [[gnu::always_inline]] void add_block(const std::byte* weights, Ahead& ahead) {
        ahead.template prefetch<tile_lines>();
        tiles_.template load_weights<Block % 2>(weights, group_bytes);
        tiles_.template multiply_add<Block, 0, Block % 2>();
    }
    /// For blocks of outputs that are `stride` bytes apart.
    template <int Blocks>
    [[gnu::always_inline]] void add_blocks(const std::byte* weights, std::int64_t stride, Ahead& ahead) {
        add_block<0>(weights, ahead);
        if constexpr (Blocks == 4) {
            add_block<1>(weights + stride, ahead);
            add_block<2>(weights + 2 * stride, ahead);
            add_block<3>(weights + 3 * stride, ahead);
        }
    }
    template <int Blocks>
    [[gnu::always_inline]] void store(float* to, std::int64_t stride) {
        tiles_.template store<0>(to, stride);
        if constexpr (Blocks == 4) {
            tiles_.template store<1>(to + lanes, stride);
            tiles_.template store<2>(to + 2 * lanes, stride);
            tiles_.template store<3>(to + 3 * lanes, stride);
        }
    }

    template <int Blocks>
    void scores_of(const std::byte* keys, Ahead& ahead, float* scores) {
        const std::byte* q = queries_;
        clear<Blocks>();
        for (std::int64_t k = 0; k < whole_steps_; ++k, keys += tile_bytes, q += rows_ * tile_row_bytes) {
            tiles_.template load_inputs<0>(q);
            add_blocks<Blocks>(keys, key_block_bytes(), ahead);
        }
        if (rest_groups_ > 0) {
            alignas(64) std::byte rest[Blocks][tile_bytes];
            for (std::int64_t b = 0; b < Blocks; ++b) {
                __builtin_memcpy(rest[b], keys + b * key_block_bytes(), rest_groups_ * group_bytes);
                __builtin_memset(rest[b] + rest_groups_ * group_bytes, 0, tile_bytes - rest_groups_ * group_bytes);
            }
            tiles_.template load_inputs<0>(q);
            add_blocks<Blocks>(rest[0], tile_bytes, ahead);
        }
        store<Blocks>(scores, score_stride);
    }

    /// Dimensions 16 * block..16 * (block + Blocks).
    template <int Blocks>
    void values_of(const Chunk& chunk, const float* probabilities, std::int64_t block, Prefetcher<Isa>& next,
                   float* output) {
        constexpr std::int64_t together = Dot::values_together, block_bytes = page_tokens / 2 * group_bytes;
        const auto* p = reinterpret_cast<const std::byte*>(probabilities);
        clear<Blocks>();
        for (std::int64_t page = chunk.skipped; page < chunk.whole; page += page_tokens) {
            const std::int64_t end = chunk.whole - page < page_tokens ? chunk.whole : page + page_tokens;
            auto ahead = next.take((end - page) / together * Blocks, p);
            const std::byte* values = chunk.values_of(chunk.pages()[page / page_tokens]) + block * block_bytes;
            for (std::int64_t at = page; at < end; at += together, values += tile_bytes) {
                tiles_.template load_inputs<0>(p + at * 2, score_stride * 4);
                add_blocks<Blocks>(values, block_bytes, ahead);
            }
        }
        store<Blocks>(output + block * lanes, job_.padded_dim);
    }

    const AttentionJob& job_;
    std::int64_t rows_;
    Tiles tiles_;
    const std::byte* queries_;                ///< [block of 32 dimensions][row][dimension]
    std::int64_t whole_steps_, rest_groups_;  ///< of a query
};

/// output [padded_dim] += p [count] * value for the listed values of one row, in blocks, + 0. (The first position of
/// the list, tiled(row), is that of a block: so `place` gives the block and whether a position is even.)
template <class Isa>
void add_listed_in_blocks(std::int64_t padded_dim, const ValuePlace* list, std::int64_t count, const float* p,
                          float* output) {
    using Dot = DotBf16Tiles<Isa>;
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width, block_bytes = page_tokens / 2 * group_bytes;
    for (std::int64_t i = 0; i < padded_dim / Isa::width; ++i) {
        const std::int64_t offset = i / regs * block_bytes + i % regs * (group_bytes / regs);
        Floats sum = Isa::load(output + i * Isa::width);
        for (std::int64_t e = 0; e < count;) {
            Floats of_block[2] = {Isa::zero(), Isa::zero()};  // even positions, odd positions
            for (const std::int64_t block = list[e].place / Dot::values_together;
                 e < count && list[e].place / Dot::values_together == block; ++e) {
                const Floats value = Isa::odd_of(Isa::shift_up(Isa::load_words(list[e].group + offset), list[e].shift));
                Floats& to = of_block[list[e].place % 2];
                to = Isa::fma(Isa::all(p[list[e].place]), value, to);
            }
            sum = Isa::add(sum, Isa::add(of_block[0], of_block[1]));
        }
        Isa::store(output + i * Isa::width, Isa::add(sum, Isa::zero()));
    }
}

/// One tile of rows over one chunk: scores, softmax, values.
template <class Isa, class Tiles>
void chunk_by_tiles(const ChunkTile<Isa, DotBf16Tiles<Isa>>& chunk, const std::uint32_t* q_words,
                    Prefetcher<Isa>& ahead, const AttentionScratch& scratch, const Softmax& result) {
    using Dot = DotBf16Tiles<Isa>;
    using P = Probabilities<Isa, Dot>;
    const AttentionJob& job = chunk.job;
    TileAttention<Isa, Tiles> attention(job, chunk.count, q_words);
    Prefetcher<Isa> nothing(job, {}, {}, 1, 0);
    for (std::int64_t done = chunk.skipped; done < chunk.paged; done += page_tokens) {
        const std::int64_t left = chunk.paged - done < page_tokens ? chunk.paged - done : std::int64_t{page_tokens};
        attention.page_scores(chunk.keys_of(chunk.pages()[done / page_tokens]), left, ahead, scratch.scores + done);
    }
    scratch_scores(chunk, scratch, [&](const std::byte* keys, std::int64_t slots) {
        attention.page_scores(keys, slots, nothing, scratch.tree_scores);
    });
    const auto scale = Isa::all(job.scale);
    std::int64_t kept = 0;
    for (std::int64_t r = 0; r < chunk.count; ++r) {
        const UnitRow& row = chunk.row_of(r);
        float* scores = scratch.scores + r * score_stride;
        const std::int64_t visible = chunk.visible(row), hidden = chunk.hidden(row);
        const std::int64_t tiled = visible > hidden ? chunk.tiled(row) : 0;
        result.maximum[r] = -__builtin_inff();  // the state begins as empty if the row's window begins later
        if (visible > hidden) {
            for (std::int64_t i = 0; i < padded_to_lanes(visible); i += Isa::width)
                Isa::store(scores + i, Isa::mul(Isa::load(scores + i), scale));
            cap_and_hide<Isa>(scores, hidden, visible, chunk.job.score_cap);
            result.maximum[r] = largest_score<Isa>(scores, visible);
            result.sum[r] = probabilities_of_row<Isa, Dot, 1>(scores, visible, result.maximum[r], nothing);
            kept = P::keep(scores, tiled, visible, scratch.path_p, kept);
        }
        P::clear(scores, tiled, chunk.whole);
    }
    attention.page_values(chunk, scratch.scores, ahead, result.output);
    ValuePlace list[chunk_tokens];
    const float* p = scratch.path_p;
    for (std::int64_t u = chunk.first_row(); u < chunk.end_row(); ++u) {
        const std::int64_t count = list_values<Isa, Dot>(chunk, chunk.unit.rows[u], list);
        if (count == 0) continue;
        for (std::int64_t r = chunk.first_head(u); r < chunk.end_head(u); ++r, p += count)
            add_listed_in_blocks<Isa>(job.padded_dim, list, count, p, result.output + r * job.padded_dim);
    }
}

/// The attention of a KernelTable: `Base` for keys and values that are not bf16.
template <class Isa, class Tiles, const KernelTable& Base>
struct AttentionByTiles {
    using Dot = DotBf16Tiles<Isa>;

    static RowTiles tiles_of(const AttentionJob& job, const AttentionUnit& unit) {
        return tiles_of_sixteen(unit.num_rows * job.group_heads);
    }
    static std::uint32_t* queries_of(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t first) {
        return scratch.q_words + first * tile_steps(job.head_dim / 2) * tile_groups;
    }

    /// Packs the unit's queries, [tile][block of 32 dimensions][row of tile][dimension], zeros beyond the last one.
    static void begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
        if (!job.bf16) return Base.attention_begin(job, unit, scratch);
        const RowTiles tiles = tiles_of(job, unit);
        for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
            const std::int64_t first = tiles.first(t), rows = tiles.first(t + 1) - first;
            auto* to = reinterpret_cast<std::byte*>(queries_of(job, scratch, first));
            for (std::int64_t r = 0; r < rows; ++r) {
                const std::int64_t head = unit.kv_head * job.group_heads + (first + r) % job.group_heads;
                const std::int64_t index = unit.rows[(first + r) / job.group_heads].index * job.q_heads + head;
                pack_query(job.q + index * job.head_dim * 2, job.head_dim * 2, to + r * tile_row_bytes,
                           rows * tile_row_bytes);
            }
        }
    }
    static void pack_query(const std::byte* q, std::int64_t bytes, std::byte* to, std::int64_t block_stride) {
        for (; bytes > 0; q += tile_row_bytes, bytes -= tile_row_bytes, to += block_stride) {
            const std::int64_t some = bytes < tile_row_bytes ? bytes : tile_row_bytes;
            __builtin_memcpy(to, q, some);
            __builtin_memset(to + some, 0, tile_row_bytes - some);
        }
    }

    /// The first tile prefetches the rest of its own chunk, at a fixed distance, and the last one the next chunk.
    static void chunk(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                      const ChunkPrefetch& wanted, const AttentionScratch& scratch, const Softmax& result) {
        if (!job.bf16) return Base.attention_chunk(job, unit, chunk, wanted, scratch, result);
        const RowTiles tiles = tiles_of(job, unit);
        constexpr int lines = tile_bytes / 64;
        const KvRange own{wanted.own, wanted.own_prefetched, everything};
        const KvRange next{wanted.next, 0, unit.next_prefetch_bytes};
        Prefetcher<Isa> of_first(job, own, tiles.num_tiles == 1 ? next : KvRange{}, lines, 0);
        if (wanted.own_prefetched == 0) of_first.prefetch_first(own_prefetch_bytes);
        Prefetcher<Isa> of_last(job, next, {}, lines, 0), nothing(job, {}, {}, lines, 0);
        for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
            const std::int64_t first = tiles.first(t);
            const ChunkTile<Isa, Dot> tile(job, unit, chunk, first, tiles.first(t + 1) - first);
            chunk_by_tiles<Isa, Tiles>(
                tile, queries_of(job, scratch, first),
                t == 0                     ? of_first
                : t + 1 == tiles.num_tiles ? of_last
                                           : nothing,
                scratch, {result.maximum + first, result.sum + first, result.output + first * job.padded_dim});
        }
    }

    static void rank(const AttentionJob& job, const AttentionUnit& unit, std::int64_t first_page,
                     std::int64_t num_pages, const AttentionScratch& scratch, float* scores) {
        if (!job.bf16) return Base.rank_scores(job, unit, first_page, num_pages, scratch, scores);
        const ChunkTile<Isa, Dot> tile(job, unit, 0, 0, 1);
        TileAttention<Isa, Tiles> attention(job, 1, scratch.q_words);
        Prefetcher<Isa> nothing(job, {}, {}, 1, 0);
        for (std::int64_t p = 0; p < num_pages; ++p)
            attention.page_scores(tile.keys_of(unit.pages[first_page + p]), page_tokens, nothing,
                                  scores + p * page_tokens);
    }
};

/// `Base` with bf16 weights, keys and values by tiles.
template <class Isa, class Tiles, const KernelTable& Base>
constexpr KernelTable with_bf16_tiles(const char* name) {
    using Attention = AttentionByTiles<Isa, Tiles, Base>;
    KernelTable table = Base;
    table.name = name;
    table.bf16_steps = 1;
    table.bf16_slice_unit = tile_groups;
    table.bf16_block_rows = max_block_rows;
    table.pack_bf16 = pack_for_tiles<Isa>;
    table.matmul_bf16 = matmul_by_tiles<Isa, Tiles>;
    table.attention_begin = Attention::begin;
    table.attention_chunk = Attention::chunk;
    table.rank_scores = Attention::rank;
    if constexpr (requires { &Tiles::peak; }) table.peak_bf16 = Tiles::peak;
    return table;
}

}  // namespace longhaul::kernels::cpu
