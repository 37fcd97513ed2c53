// Attention of one unit (rows of a sequence x the query heads of one KV head) over one chunk of 512 positions.
//
// Both products are those of tile.hpp: keys of 16 tokens across the lanes against queries, then values of 16 dimensions
// across the lanes against probabilities. What is in the pages goes through tiles that all rows share. Ancestors of a
// row in the tree's scratch pages take part at their absolute position: their scores come from one shared pass over the
// scratch slots and are put in place row by row; their values are added one by one, behind the pages, in the order of
// positions.
//
// Three limits decide which way a value is added, so that each row sees its pairs of positions in ascending order:
//   whole      positions below it go through tiles for everybody: whole pairs that some row has in pages
//   tiled(r)   of row r below it: its positions in pages, less the half pair that its path completes
//   position   positions tiled(r)..position are added one by one
// A row's absent places in a tile have probability +0: the sum does not change, except perhaps in the sign of a zero,
// which "+ 0" at the end of the chunk makes + for everybody.
#pragma once

#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/tile.hpp"

namespace longhaul::kernels::cpu {

/// The part of a chunk that a unit's rows have in common.
template <class Isa>
struct ChunkLimits {
    std::int64_t first;  ///< first position of the chunk
    std::int64_t paged;  ///< positions of the chunk that some row has in pages
    std::int64_t whole;  ///< of these, in whole pairs (bf16)
    bool follows;        ///< a row has positions in pages beyond the chunk

    static std::int64_t clamp(std::int64_t value) {
        return value < 0 ? 0 : value > chunk_tokens ? std::int64_t{chunk_tokens} : value;
    }
    static ChunkLimits of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk) {
        ChunkLimits limits{chunk * chunk_tokens, 0, 0, false};
        for (std::int64_t r = 0; r < unit.num_rows; ++r) {
            const std::int64_t paged = clamp(unit.rows[r].in_pages - limits.first);
            limits.paged = paged > limits.paged ? paged : limits.paged;
            limits.follows = limits.follows || unit.rows[r].in_pages > limits.first + chunk_tokens;
        }
        limits.whole = job.bf16 ? limits.paged / 2 * 2 : limits.paged;
        return limits;
    }
    /// Positions of the chunk that the row sees; <= 0: the chunk lies behind it.
    std::int64_t visible(const UnitRow& row) const {
        const std::int64_t count = row.position + 1 - first;
        return count > chunk_tokens ? std::int64_t{chunk_tokens} : count;
    }
    /// Positions of the chunk whose values the row adds through tiles.
    std::int64_t tiled(const AttentionJob& job, const UnitRow& row) const {
        const bool has_path = row.in_pages <= row.position;
        const std::int64_t paged = clamp((job.bf16 && has_path ? row.in_pages / 2 * 2 : row.in_pages) - first);
        return paged < whole ? paged : whole;
    }
};

template <class Isa, class Dot>
void attention_begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
    const RowTiles tiles = tiles_of<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t groups = job.bf16 ? job.head_dim / 2 : job.head_dim;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - first;
        for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t head = unit.kv_head * job.group_heads + (first + r) % job.group_heads;
            const std::int64_t row = unit.rows[(first + r) / job.group_heads].index;
            const auto* from = reinterpret_cast<const std::uint32_t*>(job.q) + (row * job.q_heads + head) * groups;
            std::uint32_t* to = scratch.q_words + first * groups * Dot::steps + r;
            for (std::int64_t g = 0; g < groups; ++g) {
                if constexpr (Dot::steps == 2) {
                    to[2 * g * rows] = from[g] & 0xffff0000U;
                    to[(2 * g + 1) * rows] = from[g] << 16;
                } else {
                    to[g * rows] = from[g];
                }
            }
        }
    }
}

template <class Isa>
const std::byte* keys_of(const AttentionJob& job, const AttentionUnit& unit, const std::byte* page) {
    return page + job.keys_offset + unit.kv_head * job.head_bytes;
}

template <class Isa>
const std::byte* values_of(const AttentionJob& job, const AttentionUnit& unit, const std::byte* page) {
    return keys_of<Isa>(job, unit, page) + job.values_offset;
}

/// Scores (not yet scaled) of all tile rows against slots 0..num_slots of a page, to scores[tile row * stride + slot].
/// `ahead`: what is read after these keys. The first tile asks for it: at one row bandwidth depends on that, since a
/// head's part of a page (8 KB of keys at head_dim 64) ends before the processor has noticed the stream (measured with
/// one thread of Zen 3 at 20K tokens: 10.7 GB/s without, 14.4 with).
template <class Isa, class Dot>
void page_scores(const AttentionJob& job, const AttentionUnit& unit, const std::byte* keys, std::int64_t num_slots,
                 const std::byte* ahead, const std::uint32_t* q_words, float* scores, std::int64_t stride,
                 std::int64_t first_tile) {
    const RowTiles tiles = tiles_of<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t groups = job.bf16 ? job.head_dim / 2 : job.head_dim;
    for (std::int64_t t = first_tile; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const TileJob tile{.weights = keys,
                           .block_stride = groups * group_bytes,
                           .words = q_words + first * groups * Dot::steps,
                           .num_groups = groups,
                           .ahead = t == first_tile ? ahead : keys,
                           .ahead_stride = 0,
                           .out = scores + first * stride,
                           .out_stride = stride,
                           .accumulate = false};
        run_tile<Isa, Dot>(tile, tiles.first(t + 1) - first, (num_slots + lanes - 1) / lanes);
    }
}

/// First tile with a row that has `position` in pages, rows being in ascending order of in_pages; tiles before it skip.
template <class Isa, class Dot>
std::int64_t first_tile_at(const AttentionJob& job, const AttentionUnit& unit, std::int64_t position) {
    const RowTiles tiles = tiles_of<Dot>(unit.num_rows * job.group_heads);
    std::int64_t tile = 0;
    while (tile < tiles.num_tiles && unit.rows[(tiles.first(tile + 1) - 1) / job.group_heads].in_pages <= position) {
        ++tile;
    }
    return tile;
}

/// Puts the scores of the rows' ancestors in scratch slots at their places in the chunk.
template <class Isa, class Dot>
void scratch_scores(const AttentionJob& job, const AttentionUnit& unit, const ChunkLimits<Isa>& limits,
                    const AttentionScratch& scratch) {
    std::int64_t end_slot = 0;
    std::int64_t first_slot = INT64_MAX;
    const auto each_entry = [&](auto&& visit) {
        for (std::int64_t r = 0; r < unit.num_rows; ++r) {
            const UnitRow& row = unit.rows[r];
            std::int64_t position = row.in_pages > limits.first ? row.in_pages : limits.first;
            for (; position < limits.first + limits.visible(row); ++position) {
                visit(r, position - limits.first, std::int64_t{row.path[position - row.in_pages]});
            }
        }
    };
    each_entry([&](std::int64_t, std::int64_t, std::int64_t slot) {
        end_slot = slot + 1 > end_slot ? slot + 1 : end_slot;
        first_slot = slot < first_slot ? slot : first_slot;
    });
    for (std::int64_t page = first_slot / page_tokens; page * page_tokens < end_slot; ++page) {
        const std::int64_t first = page * page_tokens;
        const std::int64_t slots = end_slot - first < page_tokens ? end_slot - first : std::int64_t{page_tokens};
        const std::byte* keys = keys_of<Isa>(job, unit, unit.scratch_pages[page]);
        page_scores<Isa, Dot>(job, unit, keys, slots, keys, scratch.q_words, scratch.tree_scores, page_tokens, 0);
        each_entry([&](std::int64_t r, std::int64_t place, std::int64_t slot) {
            if (slot < first || slot >= first + page_tokens) return;
            for (std::int64_t m = r * job.group_heads; m < (r + 1) * job.group_heads; ++m) {
                scratch.scores[m * chunk_tokens + place] = scratch.tree_scores[m * page_tokens + slot - first];
            }
        });
    }
}

/// Scores of one tile row become probabilities in place (rounded to bf16 where the values are), zeros behind `count`
/// up to the next 16. Returns maximum and sum through the pointers.
template <class Isa>
void softmax_row(const AttentionJob& job, float* scores, std::int64_t count, float* maximum, float* sum) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    const std::int64_t padded = (count + lanes - 1) / lanes * lanes;
    for (std::int64_t i = count; i < padded; ++i) scores[i] = -__builtin_inff();
    Floats largest = Isa::all(-__builtin_inff());
    const Floats scale = Isa::all(job.scale);
    for (std::int64_t i = 0; i < padded; i += Isa::width) {
        const Floats scaled = Isa::mul(Isa::load(scores + i), scale);
        Isa::store(scores + i, scaled);
        largest = Isa::max(scaled, largest);
    }
    float lane[Isa::width];
    Isa::store(lane, largest);
    float top = lane[0];
    for (const float value : lane) top = value > top ? value : top;
    Floats sums[regs];
    for (Floats& lane_sum : sums) lane_sum = Isa::zero();
    for (std::int64_t i = 0; i < padded; i += lanes) {
        for (std::int64_t v = 0; v < regs; ++v) {
            float* at = scores + i + v * Isa::width;
            const Floats p = exp_of<Isa>(Isa::sub(Isa::load(at), Isa::all(top)));
            sums[v] = Isa::add(sums[v], p);
            Isa::store(at, job.bf16 ? Isa::round_bf16(p) : p);
        }
    }
    *maximum = top;
    *sum = lane_total<Isa>(sums);
}

/// Probabilities of the positions that go through tiles as inputs of a product, [tile][group][step][row of tile].
template <class Isa, class Dot>
void pack_probabilities(const AttentionJob& job, const AttentionUnit& unit, const ChunkLimits<Isa>& limits,
                        const AttentionScratch& scratch) {
    const RowTiles tiles = tiles_of<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t groups = job.bf16 ? limits.whole / 2 : limits.whole;
    for (std::int64_t t = 0; t < tiles.num_tiles; ++t) {
        const std::int64_t first = tiles.first(t);
        const std::int64_t rows = tiles.first(t + 1) - first;
        std::uint32_t* words = scratch.p_words + first * groups * Dot::steps;
        for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t tiled = limits.tiled(job, unit.rows[(first + r) / job.group_heads]);
            const auto* p = reinterpret_cast<const std::uint32_t*>(scratch.scores + (first + r) * chunk_tokens);
            std::uint32_t* to = words + r;
            for (std::int64_t g = 0; g < groups; ++g) {
                if constexpr (!Dot::is_bf16) {
                    to[g * rows] = g < tiled ? p[g] : 0;
                } else {
                    const std::uint32_t even = 2 * g < tiled ? p[2 * g] : 0;
                    const std::uint32_t odd = 2 * g + 1 < tiled ? p[2 * g + 1] : 0;
                    if constexpr (Dot::steps == 2) {
                        to[2 * g * rows] = odd;
                        to[(2 * g + 1) * rows] = even;
                    } else {
                        to[g * rows] = odd | (even >> 16);
                    }
                }
            }
        }
    }
}

/// output += probabilities x values of the pages, tile by tile.
template <class Isa, class Dot>
void page_values(const AttentionJob& job, const AttentionUnit& unit, const ChunkLimits<Isa>& limits,
                 const AttentionScratch& scratch, float* output) {
    const RowTiles tiles = tiles_of<Dot>(unit.num_rows * job.group_heads);
    const std::int64_t per_group = job.bf16 ? 2 : 1;
    const std::int64_t groups = limits.whole / per_group;
    for (std::int64_t done = 0; done < limits.whole; done += page_tokens) {
        const std::int64_t left = limits.whole - done < page_tokens ? limits.whole - done : std::int64_t{page_tokens};
        std::byte* const* page = unit.pages + (limits.first + done) / page_tokens;
        const std::byte* values = values_of<Isa>(job, unit, *page);
        const bool last = done + page_tokens >= limits.whole;
        const std::byte* ahead = !last            ? values_of<Isa>(job, unit, page[1])
                                 : limits.follows ? keys_of<Isa>(job, unit, page[1])
                                                  : values;
        const std::int64_t skip = first_tile_at<Isa, Dot>(job, unit, limits.first + done);
        for (std::int64_t t = skip; t < tiles.num_tiles; ++t) {
            const std::int64_t first = tiles.first(t);
            const std::int64_t rows = tiles.first(t + 1) - first;
            const TileJob tile{.weights = values,
                               .block_stride = page_tokens / per_group * group_bytes,
                               .words = scratch.p_words + (first * groups + done / per_group * rows) * Dot::steps,
                               .num_groups = left / per_group,
                               .ahead = t == skip ? ahead : values,
                               .ahead_stride = 0,
                               .out = output + first * job.padded_dim,
                               .out_stride = job.padded_dim,
                               .accumulate = true};
            run_tile<Isa, Dot>(tile, rows, job.padded_dim / lanes);
        }
    }
}

/// Where one value stands: its group in the first block of 16 dimensions, and its half of the pair.
struct ValuePlace {
    const std::byte* group;
    bool odd;
    std::int64_t place;  ///< of its position in the chunk
};

/// The values that a row adds one by one, in order: pairs ascending, odd first (f32: ascending).
template <class Isa>
std::int64_t list_values(const AttentionJob& job, const AttentionUnit& unit, const ChunkLimits<Isa>& limits,
                         const UnitRow& row, ValuePlace* list) {
    std::int64_t count = 0;
    const std::int64_t visible = limits.visible(row);
    const std::int64_t begin = limits.tiled(job, row);
    if (begin >= visible) return 0;  // from here on begin is even
    const std::int64_t end = job.bf16 ? (visible + 1) / 2 * 2 : visible;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t place = job.bf16 ? i ^ 1 : i;
        if (place >= visible) continue;
        const std::int64_t position = limits.first + place;
        const bool paged = position < row.in_pages;
        const std::int64_t slot = paged ? position : std::int64_t{row.path[position - row.in_pages]};
        const std::byte* page = (paged ? unit.pages : unit.scratch_pages)[slot / page_tokens];
        const std::int64_t group = slot % page_tokens / (job.bf16 ? 2 : 1);
        list[count++] = {values_of<Isa>(job, unit, page) + group * group_bytes, slot % 2 != 0, place};
    }
    return count;
}

/// output += p * value for the listed values of one row and all its heads.
template <class Isa>
void add_listed(const AttentionJob& job, const ValuePlace* list, std::int64_t count, const float* p, float* output) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    constexpr std::int64_t reg_bytes = group_bytes / regs;
    const std::int64_t block_stride = page_tokens / (job.bf16 ? 2 : 1) * group_bytes;
    for (std::int64_t i = 0; i < job.padded_dim / Isa::width; ++i) {
        const std::int64_t offset = i / regs * block_stride + i % regs * reg_bytes;
        for (std::int64_t h = 0; h < job.group_heads; ++h) {
            float* at = output + h * job.padded_dim + i * Isa::width;
            Floats sum = Isa::load(at);
            for (std::int64_t e = 0; e < count; ++e) {
                const Floats words = Isa::load_words(list[e].group + offset);
                const Floats value = !job.bf16 ? words : list[e].odd ? Isa::odd_of(words) : Isa::even_of(words);
                sum = Isa::fma(Isa::all(p[h * chunk_tokens + list[e].place]), value, sum);
            }
            Isa::store(at, sum);
        }
    }
}

template <class Isa, class Dot>
void attention_chunk_of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                        const AttentionScratch& scratch, const Softmax& result) {
    const ChunkLimits<Isa> limits = ChunkLimits<Isa>::of(job, unit, chunk);
    for (std::int64_t done = 0; done < limits.paged; done += page_tokens) {
        const std::int64_t left = limits.paged - done < page_tokens ? limits.paged - done : std::int64_t{page_tokens};
        std::byte* const* page = unit.pages + (limits.first + done) / page_tokens;
        const std::byte* ahead = done + page_tokens < limits.paged
                                     ? keys_of<Isa>(job, unit, page[1])
                                     : values_of<Isa>(job, unit, unit.pages[limits.first / page_tokens]);
        const std::int64_t skip = first_tile_at<Isa, Dot>(job, unit, limits.first + done);
        page_scores<Isa, Dot>(job, unit, keys_of<Isa>(job, unit, *page), left, ahead, scratch.q_words,
                              scratch.scores + done, chunk_tokens, skip);
    }
    scratch_scores<Isa, Dot>(job, unit, limits, scratch);
    for (std::int64_t m = 0; m < unit.num_rows * job.group_heads; ++m) {
        const std::int64_t visible = limits.visible(unit.rows[m / job.group_heads]);
        if (visible <= 0) continue;
        softmax_row<Isa>(job, scratch.scores + m * chunk_tokens, visible, result.maximum + m, result.sum + m);
    }
    pack_probabilities<Isa, Dot>(job, unit, limits, scratch);
    const std::int64_t floats = unit.num_rows * job.group_heads * job.padded_dim;
    for (std::int64_t i = 0; i < floats; i += Isa::width) Isa::store(result.output + i, Isa::zero());
    page_values<Isa, Dot>(job, unit, limits, scratch, result.output);
    ValuePlace list[chunk_tokens];
    for (std::int64_t r = 0; r < unit.num_rows; ++r) {
        if (limits.visible(unit.rows[r]) <= 0) continue;
        const std::int64_t count = list_values<Isa>(job, unit, limits, unit.rows[r], list);
        if (count == 0) continue;
        add_listed<Isa>(job, list, count, scratch.scores + r * job.group_heads * chunk_tokens,
                        result.output + r * job.group_heads * job.padded_dim);
    }
    for (std::int64_t i = 0; i < floats; i += Isa::width) {
        Isa::store(result.output + i, Isa::add(Isa::load(result.output + i), Isa::zero()));
    }
}

/// m' = max(m, mc); a = exp(m - m'), b = exp(mc - m'); l = l*a + lc*b; o = o*a + oc*b.
template <class Isa>
void attention_merge_of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk, const Softmax& result,
                        const Softmax& state) {
    for (std::int64_t m = 0; m < unit.num_rows * job.group_heads; ++m) {
        float* output = state.output + m * job.padded_dim;
        if (chunk == 0) {
            state.maximum[m] = -__builtin_inff();
            state.sum[m] = 0.0F;
            for (std::int64_t i = 0; i < job.padded_dim; i += Isa::width) Isa::store(output + i, Isa::zero());
        }
        if (unit.rows[m / job.group_heads].position < chunk * chunk_tokens) continue;
        const float maximum = state.maximum[m] > result.maximum[m] ? state.maximum[m] : result.maximum[m];
        const float a = exp_of_one<Isa>(state.maximum[m] - maximum);
        const float b = exp_of_one<Isa>(result.maximum[m] - maximum);
        state.maximum[m] = maximum;
        state.sum[m] = state.sum[m] * a + result.sum[m] * b;
        for (std::int64_t i = 0; i < job.padded_dim; i += Isa::width) {
            const auto left = Isa::mul(Isa::load(output + i), Isa::all(a));
            const auto right = Isa::mul(Isa::load(result.output + m * job.padded_dim + i), Isa::all(b));
            Isa::store(output + i, Isa::add(left, right));
        }
    }
}

template <class Isa>
void attention_end_of(const AttentionJob& job, const AttentionUnit& unit, const Softmax& state) {
    for (std::int64_t m = 0; m < unit.num_rows * job.group_heads; ++m) {
        const std::int64_t head = unit.kv_head * job.group_heads + m % job.group_heads;
        const std::int64_t first = unit.rows[m / job.group_heads].index * job.out_stride + head * job.head_dim;
        const auto sum = Isa::all(state.sum[m]);
        for (std::int64_t i = 0; i < job.head_dim; i += Isa::width) {
            const auto value = Isa::div(Isa::load(state.output + m * job.padded_dim + i), sum);
            store_act<Isa>(job.out, job.act_bf16, first + i, job.head_dim - i, value);
        }
    }
}

}  // namespace longhaul::kernels::cpu
