// Attention of one unit (rows of a sequence x the query heads of one KV head) over one chunk of 512 positions. Called
// by cpu_attention.cpp through the kernel table.
//
// Both matmuls have the form of tile.hpp: queries times keys with 16 tokens across the lanes, then probabilities times
// values with 16 dimensions across the lanes. Positions in the pages are processed in tiles of rows
// (attention_tile.hpp): each tile goes through scores, softmax and values before the next one, so that its scores stay
// in L1. A row's ancestors in the tree's scratch pages are placed at their absolute positions: their scores come from
// one shared pass over the scratch slots and are copied into place row by row; their values are added one by one after
// those of the pages, in order of position.
//
// Each row must add its pairs of positions in ascending order. Three limits decide how a value is added:
//   whole      positions below it are added in tiles, for all rows: the whole pairs that some row has in pages
//   tiled(r)   row r takes the positions below it from tiles: those in its pages, without half a pair that its path
//              completes (with tiles of bf16, bf16_tile_attention.hpp, blocks of 32 positions in place of pairs)
//   position   positions tiled(r)..position are added one by one
// Positions before a row's window have score -infinity, so probability +0; pages before the windows of all rows of the
// tile are skipped. Positions of a tile that a row does not have get probability +0: the sum does not change, except
// perhaps in the sign of a zero, which "+ 0" at the end of the chunk makes positive for all rows. (It is also added
// when partial sums are stored earlier. That is harmless: the sign of a zero partial sum can only change the sign of
// another zero.)
#pragma once

#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/attention_tile.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/kv_int8.hpp"

namespace longhaul::kernels::cpu {

/// Quantizes a query to 16-bit integers, two per word; returns its scale.
template <class Isa>
float pack_quantized_query(const float* x, std::int64_t head_dim, std::uint32_t* to, std::int64_t stride) {
    const QuantizationScale whole = QuantizationScale::of(largest_magnitude(x, head_dim), max_quantized_query);
    for (std::int64_t g = 0; g < head_dim / 2; ++g) {
        to[g * stride] = (static_cast<std::uint32_t>(whole.whole(x[2 * g])) & 0xffffU) |
                         static_cast<std::uint32_t>(whole.whole(x[2 * g + 1])) << 16;
    }
    return whole.scale;
}

/// Packs the unit's queries, [tile][group][step][row of tile].
template <class Isa, class Dot>
void attention_begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
    const RowTiles tiles = tiles_of_many<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t groups = job.head_dim / elements_of_group<Dot>;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - first;
        const auto head_of = [&](std::int64_t r) {  // index of the query in q
            const std::int64_t head = unit.kv_head * job.group_heads + (first + r) % job.group_heads;
            return unit.rows[(first + r) / job.group_heads].index * job.q_heads + head;
        };
        std::uint32_t* to = scratch.q_words + first * groups * Dot::steps;
        if constexpr (is_int8_kv<Dot>) {
            for (std::int64_t r = 0; r < rows; ++r) {
                const float* x = reinterpret_cast<const float*>(job.q) + head_of(r) * job.head_dim;
                scratch.q_scales[first + r] = pack_quantized_query<Isa>(x, job.head_dim, to + r, rows) * job.scale;
            }
        } else {
            const auto* q = reinterpret_cast<const std::uint32_t*>(job.q);
            pack_tile<Dot>([&](std::int64_t r) { return q + head_of(r) * groups; }, rows, groups, to);
        }
    }
}

/// Scores of the tile's rows for slots 0..num_slots of a page, to scores[row * score_stride + slot].
template <class Isa, class Dot, int R>
void page_scores(const ChunkTile<Isa, Dot>& tile, const std::byte* keys, std::int64_t num_slots,
                 const std::uint32_t* q_words, const float* q_scales, Prefetcher<Isa>& ahead, float* scores) {
    constexpr std::int64_t regs = lanes / Isa::width;
    const std::int64_t groups = tile.job.head_dim / elements_of_group<Dot>;
    const auto scale = Isa::all(tile.job.scale);
    each_tile<Isa, Dot, R>(
        (num_slots + lanes - 1) / lanes * regs, [&]<int W, int First>(std::int64_t at) __attribute__((noinline)) {
            typename Isa::Floats sum[R][W];
            clear_sums<Isa>(sum);
            const std::int64_t block_stride = groups * kv_group_bytes<Dot>;
            add_groups<Isa, Dot, QueryWords<Dot, R>, W, R, First>(sum, keys + at / regs * block_stride, block_stride,
                                                                  q_words, groups, ahead);
            const float* key_scales =
                reinterpret_cast<const float*>(keys + page_tokens * tile.job.head_dim) + at * Isa::width;
            store_sums<Isa>(
                sum, scores + at * Isa::width,
                score_stride, [&](typename Isa::Floats score, int i, int r) __attribute__((always_inline)) {
                    if constexpr (!is_int8_kv<Dot>) return Isa::mul(score, scale);
                    const auto scaled = Isa::mul(Isa::from_int(score), Isa::all(q_scales[r]));
                    return Isa::mul(scaled, Isa::load(key_scales + i * Isa::width));
                });
        });
}

/// KernelTable::rank_scores.
template <class Isa, class Dot>
void rank_scores_of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t first_page, std::int64_t num_pages,
                    const AttentionScratch& scratch, float* scores) {
    const ChunkTile<Isa, Dot> tile(job, unit, 0, 0, 1);
    Prefetcher<Isa> nothing(job, {}, {}, lines_per_turn<Isa, Dot>(1), 0);
    for (std::int64_t p = 0; p < num_pages; ++p) {
        page_scores<Isa, Dot, 1>(tile, tile.keys_of(unit.pages[first_page + p]), page_tokens, scratch.q_words,
                                 scratch.q_scales, nothing, scores + p * page_tokens);
    }
}

/// Computes the scores of the rows' ancestors in scratch slots and copies them to their positions in the chunk.
/// scores_of(keys, number of slots) computes those of a page, to scratch.tree_scores.
template <class Isa, class Dot, class ScoresOf>
void scratch_scores(const ChunkTile<Isa, Dot>& tile, const AttentionScratch& scratch, const ScoresOf& scores_of) {
    std::int64_t end_slot = 0;
    std::int64_t first_slot = INT64_MAX;
    // Visits rows of the unit, not of the tile, because heads share a path.
    const auto each_row = [&](auto&& visit) {
        for (std::int64_t u = tile.first_row(); u < tile.end_row(); ++u) {
            const UnitRow& row = tile.unit.rows[u];
            const std::int64_t begin = row.in_pages > tile.first_position ? row.in_pages : tile.first_position;
            const std::int64_t end = tile.first_position + tile.visible(row);
            if (begin < end) visit(u, begin - tile.first_position, row.path + (begin - row.in_pages), end - begin);
        }
    };
    each_row([&](std::int64_t, std::int64_t, const std::int32_t* path, std::int64_t count) {
        for (const std::int32_t* slot = path; slot < path + count; ++slot) {
            end_slot = *slot + 1 > end_slot ? *slot + 1 : end_slot;
            first_slot = *slot < first_slot ? *slot : first_slot;
        }
    });
    for (std::int64_t page = first_slot / page_tokens; page * page_tokens < end_slot; ++page) {
        const std::int64_t first = page * page_tokens;
        const std::int64_t slots = end_slot - first < page_tokens ? end_slot - first : std::int64_t{page_tokens};
        scores_of(tile.keys_of(tile.unit.scratch_pages[page]), slots);
        each_row([&](std::int64_t u, std::int64_t place, const std::int32_t* path, std::int64_t count) {
            for (std::int64_t i = 0; i < count; i += lanes) {
                const auto places = Isa::Places::of(path + i, count - i < lanes ? count - i : lanes, first);
                for (std::int64_t r = tile.first_head(u); r < tile.end_head(u); ++r)
                    Isa::store_picked(scratch.scores + r * score_stride + place + i,
                                      scratch.tree_scores + r * score_stride, places, slots <= lanes);
            }
        });
    }
}

/// Format of the probabilities in a row. f32 values: floats. bf16 values: floats rounded to bf16, or 2-byte bf16 if Dot
/// multiplies bf16 pairs. int8 values: 16-bit integers, which a second pass computes from floats.
template <class Isa, class Dot>
struct Probabilities {
    static constexpr bool in_halves = is_int8_kv<Dot> || (Dot::is_bf16 && Dot::steps == 1);

    /// Overwrites scores that have already been read: `i` must ascend.
    static void store(float* row, std::int64_t i, typename Isa::Floats p) {
        if constexpr (in_halves && Dot::is_bf16) {
            Isa::store_bf16_quiet(reinterpret_cast<std::byte*>(row) + 2 * i, p);
        } else if constexpr (Dot::is_bf16) {
            Isa::store(row + i, Isa::round_bf16_quiet(p));
        } else {
            Isa::store(row + i, p);
        }
    }
    /// Stores several registers from `i` on.
    template <int N>
    [[gnu::always_inline]] static void store_all(float* row, std::int64_t i, const typename Isa::Floats (&p)[N]) {
        if constexpr (in_halves && Dot::is_bf16 && N % 2 == 0) {
#pragma GCC unroll 8
            for (int v = 0; v < N; v += 2)
                Isa::store_bf16_quiet(reinterpret_cast<std::byte*>(row) + 2 * (i + v * Isa::width), p[v], p[v + 1]);
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < N; ++v) store(row, i + v * Isa::width, p[v]);
        }
    }
    static float at(const float* row, std::int64_t i) {
        if constexpr (!in_halves) return row[i];
        if constexpr (is_int8_kv<Dot>) return reinterpret_cast<const std::int16_t*>(row)[i];
        const std::uint32_t bits = std::uint32_t{reinterpret_cast<const std::uint16_t*>(row)[i]} << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof value);
        return value;
    }
    /// Copies the probabilities of begin..end as floats to kept[count..]; returns the new count. May write beyond the
    /// last one, up to a multiple of 16 from the start.
    static std::int64_t keep(const float* row, std::int64_t begin, std::int64_t end, float* kept, std::int64_t count) {
        if (begin >= end) return count;
        if constexpr (in_halves && Dot::is_bf16) {
            const auto* from = reinterpret_cast<const std::byte*>(row);
            for (std::int64_t i = begin; i < end; i += Isa::width)
                Isa::store(kept + count + i - begin, Isa::load_bf16(from + 2 * i));
        } else {
            for (std::int64_t i = begin; i < end; ++i) kept[count + i - begin] = at(row, i);
        }
        return count + end - begin;
    }
    static void clear(float* row, std::int64_t begin, std::int64_t end) {
        if (begin >= end) return;
        constexpr std::int64_t element = in_halves ? 2 : 4;
        __builtin_memset(reinterpret_cast<std::byte*>(row) + begin * element, 0, (end - begin) * element);
    }
};

[[gnu::always_inline]] constexpr std::int64_t padded_to_lanes(std::int64_t count) {
    return (count + lanes - 1) / lanes * lanes;
}

/// The largest of a row's scores. Pads the scores with -infinity up to the next multiple of 16.
template <class Isa>
float largest_score(float* scores, std::int64_t count) {
    using Floats = typename Isa::Floats;
    Isa::pad_with_lowest(scores, count);
    const std::int64_t padded = padded_to_lanes(count);
    constexpr std::int64_t chains = 4;  // a single chain would be bound by its latency
    Floats largest[chains];
    for (Floats& of_chain : largest) of_chain = Isa::all(-__builtin_inff());
    std::int64_t read = 0;
    for (; read + chains * Isa::width <= padded; read += chains * Isa::width) {
#pragma GCC unroll 4
        for (std::int64_t c = 0; c < chains; ++c) {
            largest[c] = Isa::max(Isa::load(scores + read + c * Isa::width), largest[c]);
        }
    }
    for (; read < padded; read += Isa::width) largest[0] = Isa::max(Isa::load(scores + read), largest[0]);
    return Isa::largest(Isa::max(Isa::max(largest[0], largest[1]), Isa::max(largest[2], largest[3])));
}

/// Caps the scores (KvLayout::score_cap) that a row sees, and hides those before its window.
template <class Isa>
void cap_and_hide(float* scores, std::int64_t hidden, std::int64_t visible, float cap) {
    if (cap > 0.0F) soft_cap<Isa>(scores, cap, hidden, visible);
    for (std::int64_t i = 0; i < hidden; ++i) scores[i] = -__builtin_inff();
}

/// Registers of probabilities that are computed together.
template <class Isa>
constexpr int probabilities_at_once = Isa::width == 16 ? 8 : 2;

/// Approximate time of an iteration of the softmax loop, in iterations of the matmul loop; it prefetches that many
/// times as much.
template <class Isa, class Dot, int R>
constexpr int softmax_weight = Isa::width == 16 ? 8 / lines_per_turn<Isa, Dot>(R) : 1;

/// Turns the scores of one row (padded by largest_score) into probabilities in place; returns their sum. This loop
/// prefetches, too (8 rows at 100K positions, Zen 5: about 3 % of the time).
template <class Isa, class Dot, int R>
float probabilities_of_row(float* scores, std::int64_t count, float largest, Prefetcher<Isa>& next) {
    using Floats = typename Isa::Floats;
    constexpr int regs = lanes / Isa::width;
    constexpr int at_once = probabilities_at_once<Isa>;
    const Floats tops = Isa::all(largest);
    Floats sums[regs];
    for (Floats& lane_sum : sums) lane_sum = Isa::zero();
    const auto registers = [&]<int N>(std::int64_t at) __attribute__((always_inline)) {
        Floats p[N];
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) p[v] = Isa::sub(Isa::load(scores + at + v * Isa::width), tops);
        exps_of_bounded<Isa>(p);
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) sums[v % regs] = Isa::add(sums[v % regs], p[v]);
        Probabilities<Isa, Dot>::template store_all<N>(scores, at, p);
    };
    const std::int64_t padded = padded_to_lanes(count);
    std::int64_t i = 0;
    constexpr int weight = softmax_weight<Isa, Dot, R>;
    auto ahead = next.take(padded / (at_once * Isa::width), reinterpret_cast<const std::byte*>(scores), weight);
    for (; i + at_once * Isa::width <= padded; i += at_once * Isa::width) {
        ahead.template prefetch<weight * lines_per_turn<Isa, Dot>(R)>();
        registers.template operator()<at_once>(i);
    }
    for (; i < padded; i += lanes) registers.template operator()<regs>(i);
    return Isa::lane_total(sums);
}

/// Collects the value scales of the positions of the chunk that the row sees.
template <class Isa, class Dot>
void gather_value_scales(const ChunkTile<Isa, Dot>& tile, const UnitRow& row, float* scales) {
    const std::int64_t visible = tile.visible(row);
    const std::int64_t paged = ChunkTile<Isa, Dot>::clamp(row.in_pages - tile.first_position);
    const auto scales_of = [&](const std::byte* page) {
        return reinterpret_cast<const float*>(tile.values_of(page) + page_tokens * tile.job.padded_dim);
    };
    for (std::int64_t i = 0; i < paged && i < visible; i += page_tokens) {
        __builtin_memcpy(scales + i, scales_of(tile.pages()[i / page_tokens]), page_tokens * sizeof(float));
    }
    for (std::int64_t i = paged; i < visible; ++i) {
        const std::int64_t slot = row.path[tile.first_position + i - row.in_pages];
        scales[i] = scales_of(tile.unit.scratch_pages[slot / page_tokens])[slot % page_tokens];
    }
}

/// Multiplies the probabilities of one row (floats) by the value scales and quantizes them to 16-bit integers, in
/// place. Returns the scale of the integers.
template <class Isa>
float quantized_weights(float* row, std::int64_t count, const float* value_scales) {
    using Floats = typename Isa::Floats;
    const std::int64_t padded = padded_to_lanes(count);
    Floats largest = Isa::zero();
    for (std::int64_t i = 0; i < padded; i += Isa::width) {
        const Floats weight = Isa::max(Isa::mul(Isa::load(row + i), Isa::load(value_scales + i)), Isa::zero());
        Isa::store(row + i, weight);
        largest = Isa::max(weight, largest);
    }
    const QuantizationScale whole = QuantizationScale::of(Isa::largest(largest), max_quantized_query);
    const Floats inverse = Isa::all(whole.inverse);
    for (std::int64_t i = 0; i < padded; i += Isa::width) {
        const Floats sum = Isa::add(Isa::mul(Isa::load(row + i), inverse), Isa::all(0x1.8p23F));
        Isa::store_low_halves(reinterpret_cast<std::byte*>(row) + 2 * i, sum);
    }
    return whole.scale;
}

/// output = probabilities x values of the pages, + 0 (int8: the integer sum, as bits).
template <class Isa, class Dot, int R>
void page_values(const ChunkTile<Isa, Dot>& tile, const float* probabilities, Prefetcher<Isa>& ahead, float* output) {
    constexpr std::int64_t regs = lanes / Isa::width;
    constexpr std::int64_t group = elements_of_group<Dot>;
    constexpr std::int64_t block_stride = page_tokens / group * kv_group_bytes<Dot>;
    const std::int64_t padded_dim = tile.job.padded_dim;
    const std::int64_t registers = padded_dim / Isa::width;
    // Values that are just arriving from memory are read in order of arrival: all tiles of one page, then the next
    // page.
    const bool by_pages = tile.unit.streams() && registers > attention_registers<Isa, Dot, R>();
    const std::int64_t at_once = by_pages ? page_tokens : chunk_tokens;
    const std::int64_t start = tile.skipped;
    for (std::int64_t begin = start; begin == start || begin < tile.whole; begin += at_once) {
        const std::int64_t end = tile.whole - begin < at_once ? tile.whole : begin + at_once;
        each_tile<Isa, Dot, R>(
            registers, [&]<int W, int First>(std::int64_t at) __attribute__((noinline)) {
                float* const to = output + at * Isa::width;
                typename Isa::Floats sum[R][W];
                if (begin == start) {
                    clear_sums<Isa>(sum);
                } else {
                    load_sums<Isa>(sum, to, padded_dim);
                }
                const auto* words = reinterpret_cast<const std::uint32_t*>(probabilities) +
                                    begin / group * ProbabilityWords<Dot>::of_group;
                for (std::int64_t done = begin; done < end; done += page_tokens) {
                    const std::int64_t left = end - done < page_tokens ? end - done : std::int64_t{page_tokens};
                    const std::byte* values =
                        tile.values_of(tile.pages()[done / page_tokens]) + at / regs * block_stride;
                    add_groups<Isa, Dot, ProbabilityWords<Dot>, W, R, First>(sum, values, block_stride, words,
                                                                             left / group, ahead);
                    words += left / group * ProbabilityWords<Dot>::of_group;
                }
                store_sums<Isa>(
                    sum, to, padded_dim, [](typename Isa::Floats value, int, int) __attribute__((always_inline)) {
                        return is_int8_kv<Dot> ? value : Isa::add(value, Isa::zero());
                    });
            });
    }
}

/// Location of one value: its group in the first block of 16 dimensions, and its half of the pair.
struct ValuePlace {
    const std::byte* group;
    /// Left shift that brings the bf16 value (for int8: its probability) into the upper half of a word.
    int shift;
    std::int64_t place;  ///< its position, relative to tiled(row)
};

/// Lists the values that a row adds one by one, in order: pairs ascending, odd first (f32: ascending). Returns their
/// number.
template <class Isa, class Dot>
std::int64_t list_values(const ChunkTile<Isa, Dot>& tile, const UnitRow& row, ValuePlace* list) {
    constexpr std::int64_t elements = elements_of_group<Dot>;
    std::int64_t count = 0;
    const std::int64_t visible = tile.visible(row);
    const std::int64_t begin = tile.tiled(row);
    if (begin >= visible || !tile.sees_some(row)) return 0;  // from here on begin is a multiple of values_together
    const std::int64_t end = (visible + elements - 1) / elements * elements;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t place = elements == 2 ? i ^ 1 : i;
        if (place >= visible) continue;
        const std::int64_t position = tile.first_position + place;
        const bool paged = position < row.in_pages;
        const std::int64_t slot = paged ? position : std::int64_t{row.path[position - row.in_pages]};
        const std::byte* page = (paged ? tile.unit.pages : tile.unit.scratch_pages)[slot / page_tokens];
        const std::int64_t group = slot % page_tokens / elements;
        const bool odd = slot % 2 != 0;
        list[count++] = {tile.values_of(page) + group * kv_group_bytes<Dot>, odd == is_int8_kv<Dot> ? 16 : 0,
                         place - begin};
    }
    return count;
}

/// output [H][padded_dim] += p [H][count] * value for the listed values of one row, + 0; for W registers from `first`
/// on and H heads, which share the values.
template <class Isa, class Dot, int H, int W>
void add_listed_registers(std::int64_t first, std::int64_t padded_dim, const ValuePlace* list, std::int64_t count,
                          const float* p, float* output) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    constexpr std::int64_t reg_bytes = kv_group_bytes<Dot> / regs;
    constexpr std::int64_t block_stride = page_tokens / elements_of_group<Dot> * kv_group_bytes<Dot>;
    const auto at = [&](int h, int i) { return output + h * padded_dim + (first + i) * Isa::width; };
    Floats sum[H][W];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) sum[h][i] = Isa::load(at(h, i));
    }
    for (std::int64_t e = 0; e < count; ++e) {
        const auto probability = [&](int h) { return p[h * count + list[e].place]; };
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) {
            const std::int64_t offset = (first + i) / regs * block_stride + (first + i) % regs * reg_bytes;
            const std::byte* from = list[e].group + offset;
            if constexpr (is_int8_kv<Dot>) {
                const Floats value = Isa::widen_bytes(from);
#pragma GCC unroll 4
                for (int h = 0; h < H; ++h) {
                    const std::uint32_t weight = static_cast<std::uint32_t>(probability(h)) << list[e].shift;
                    Dot::multiply_add(sum[h][i], value, Dot::input(&weight));
                }
            } else {
                const Floats words = Isa::load_words(from);
                const Floats value = Dot::is_bf16 ? Isa::odd_of(Isa::shift_up(words, list[e].shift)) : words;
#pragma GCC unroll 4
                for (int h = 0; h < H; ++h) sum[h][i] = Isa::fma(Isa::all(probability(h)), value, sum[h][i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i)
            Isa::store(at(h, i), is_int8_kv<Dot> ? sum[h][i] : Isa::add(sum[h][i], Isa::zero()));
    }
}

/// add_listed_registers for all registers of `num_heads` heads.
template <class Isa, class Dot>
void add_listed(std::int64_t num_heads, std::int64_t padded_dim, const ValuePlace* list, std::int64_t count,
                const float* p, float* output) {
    constexpr int heads_at_once = Isa::width == 16 ? 4 : 1;
    const std::int64_t registers = padded_dim / Isa::width;
    const auto heads = [&]<int H>(std::int64_t h) {
        const float* of_heads = p + h * count;
        float* to = output + h * padded_dim;
        std::int64_t i = 0;
        for (; i + 4 <= registers; i += 4)
            add_listed_registers<Isa, Dot, H, 4>(i, padded_dim, list, count, of_heads, to);
        for (; i < registers; ++i) add_listed_registers<Isa, Dot, H, 1>(i, padded_dim, list, count, of_heads, to);
    };
    std::int64_t h = 0;
    for (; h + heads_at_once <= num_heads; h += heads_at_once) heads.template operator()<heads_at_once>(h);
    for (; h < num_heads; ++h) heads.template operator()<1>(h);
}

/// One tile of R rows over one chunk: scores, softmax, values.
template <class Isa, class Dot, int R>
void chunk_of_tile(const ChunkTile<Isa, Dot>& tile, const std::uint32_t* q_words, Prefetcher<Isa>& ahead,
                   const AttentionScratch& scratch, const Softmax& result) {
    for (std::int64_t done = tile.skipped; done < tile.paged; done += page_tokens) {
        const std::int64_t left = tile.paged - done < page_tokens ? tile.paged - done : std::int64_t{page_tokens};
        page_scores<Isa, Dot, R>(tile, tile.keys_of(tile.pages()[done / page_tokens]), left, q_words,
                                 scratch.q_scales + tile.first, ahead, scratch.scores + done);
    }
    Prefetcher<Isa> nothing(tile.job, {}, {}, lines_per_turn<Isa, Dot>(R), 0);
    scratch_scores(tile, scratch, [&](const std::byte* keys, std::int64_t slots) {
        page_scores<Isa, Dot, R>(tile, keys, slots, q_words, scratch.q_scales + tile.first, nothing,
                                 scratch.tree_scores);
    });
    using P = Probabilities<Isa, Dot>;
    for (std::int64_t r = 0; r < R; ++r) {  // all maxima first: the latency from a maximum to its exponentials is long
        const UnitRow& row = tile.row_of(r);
        result.maximum[r] = -__builtin_inff();  // the state begins as empty if the row's window begins later
        if (!tile.sees_some(row)) continue;
        float* scores = scratch.scores + r * score_stride;
        cap_and_hide<Isa>(scores, tile.hidden(row), tile.visible(row), tile.job.score_cap);
        result.maximum[r] = largest_score<Isa>(scores, tile.visible(row));
    }
    std::int64_t kept = 0;
    float weight_scales[R];
    for (std::int64_t r = 0; r < R; ++r) {
        float* row = scratch.scores + r * score_stride;
        const bool sees_some = tile.sees_some(tile.row_of(r));
        const std::int64_t visible = tile.visible(tile.row_of(r));
        const std::int64_t tiled = sees_some ? tile.tiled(tile.row_of(r)) : 0;
        if (sees_some) result.sum[r] = probabilities_of_row<Isa, Dot, R>(row, visible, result.maximum[r], ahead);
        if constexpr (is_int8_kv<Dot>) {
            if (r == 0 || &tile.row_of(r) != &tile.row_of(r - 1)) {
                gather_value_scales(tile, tile.row_of(r), scratch.value_scales);
            }
            weight_scales[r] = sees_some ? quantized_weights<Isa>(row, visible, scratch.value_scales) : 0.0F;
        }
        if (sees_some) kept = P::keep(row, tiled, visible, scratch.path_p, kept);
        P::clear(row, tiled, tile.whole);
    }
    page_values<Isa, Dot, R>(tile, scratch.scores, ahead, result.output);
    ValuePlace list[chunk_tokens];
    const float* p = scratch.path_p;
    for (std::int64_t u = tile.first_row(); u < tile.end_row(); ++u) {
        const std::int64_t count = list_values<Isa, Dot>(tile, tile.unit.rows[u], list);
        if (count == 0) continue;
        const std::int64_t first = tile.first_head(u), num_heads = tile.end_head(u) - first;
        add_listed<Isa, Dot>(num_heads, tile.job.padded_dim, list, count, p,
                             result.output + first * tile.job.padded_dim);
        p += num_heads * count;
    }
    if constexpr (is_int8_kv<Dot>) {
        for (std::int64_t i = 0; i < R * tile.job.padded_dim; i += Isa::width) {
            const auto whole = Isa::from_int(Isa::load(result.output + i));
            Isa::store(result.output + i, Isa::mul(whole, Isa::all(weight_scales[i / tile.job.padded_dim])));
        }
    }
}

/// Calls chunk_of_tile for the number of rows in the tile.
template <class Isa, class Dot, int R>
void chunk_of_rows(const ChunkTile<Isa, Dot>& tile, const std::uint32_t* q_words, Prefetcher<Isa>& ahead,
                   const AttentionScratch& scratch, const Softmax& result) {
    if (tile.count == R) return chunk_of_tile<Isa, Dot, R>(tile, q_words, ahead, scratch, result);
    if constexpr (R > 1) chunk_of_rows<Isa, Dot, R - 1>(tile, q_words, ahead, scratch, result);
}

/// Approximate number of inner-loop iterations for a chunk, as if all tiles had the size of the first.
template <class Isa, class Dot, int R = Dot::max_rows>
std::int64_t turns_of_chunk(const AttentionJob& job, const RowTiles& tiles, std::int64_t num_tokens) {
    if constexpr (R > 1) {
        if (tiles.first(1) != R) return turns_of_chunk<Isa, Dot, R - 1>(job, tiles, num_tokens);
    }
    const std::int64_t num_pages = (num_tokens + page_tokens - 1) / page_tokens;
    const std::int64_t of_softmax =
        tiles.num_rows * num_tokens * softmax_weight<Isa, Dot, R> / (probabilities_at_once<Isa> * Isa::width);
    return of_softmax + tiles.num_tiles * (num_pages * tiles_in<Isa, Dot, R>(page_tokens / Isa::width) *
                                           (job.head_dim /
                                            elements_of_group<Dot>)+tiles_in<Isa, Dot, R>(job.padded_dim / Isa::width) *
                                           (num_tokens / elements_of_group<Dot>));
}

/// Bytes of its own memory that a chunk prefetches at its start if nothing was prefetched earlier. Measured on Zen 5:
/// saves 11 and 3 % of attention (4 and 13 rows x 8 heads, 512 positions); 4 KB save half of that.
constexpr std::int64_t own_prefetch_bytes = 16 << 10;

template <class Isa, class Dot>
void attention_chunk_of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                        const ChunkPrefetch& wanted, const AttentionScratch& scratch, const Softmax& result) {
    const RowTiles tiles = tiles_of_many<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t groups = job.head_dim / elements_of_group<Dot>;
    const std::int64_t paged = ChunkTile<Isa, Dot>::clamp(unit.rows[unit.num_rows - 1].in_pages - chunk * chunk_tokens);
    const std::int64_t read = paged - unit.skipped_pages(chunk) * page_tokens;
    const int lines = lines_per_turn<Isa, Dot>(tiles.first(1));
    const std::int64_t turns = turns_of_chunk<Isa, Dot>(job, tiles, read > 0 ? read : 0);
    // Otherwise there is not enough time to prefetch all of two chunks.
    const bool prefetches_own_chunk = unit.streams() || tiles.num_tiles > 1;
    const KvRange rest{prefetches_own_chunk ? wanted.own : KvPrefetch{}, wanted.own_prefetched, everything};
    const KvRange next{wanted.next, 0, unit.next_prefetch_bytes};
    // If there are several tiles, the first one prefetches the rest of its own chunk, at a fixed distance; the others
    // then prefetch the next chunk.
    const bool first_prefetches_own = tiles.num_tiles > 1 && rest.num_bytes(job.part_bytes) > 0;
    Prefetcher<Isa> of_first(job, rest, first_prefetches_own ? KvRange{} : next, lines,
                             first_prefetches_own ? 0 : turns);
    if (wanted.own_prefetched == 0 && prefetches_own_chunk) of_first.prefetch_first(own_prefetch_bytes);
    Prefetcher<Isa> of_others(job, first_prefetches_own ? next : KvRange{}, {}, lines, turns - turns / tiles.num_tiles);
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const ChunkTile<Isa, Dot> tile(job, unit, chunk, first, tiles.first(t + 1) - first);
        chunk_of_rows<Isa, Dot, Dot::max_rows>(
            tile, scratch.q_words + first * groups * Dot::steps, t > 0 && first_prefetches_own ? of_others : of_first,
            scratch, {result.maximum + first, result.sum + first, result.output + first * job.padded_dim});
    }
}

}  // namespace longhaul::kernels::cpu
