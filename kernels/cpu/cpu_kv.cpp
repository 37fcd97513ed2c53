// The KV cache of CpuDevice: storing, moving, export and import of keys and values.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/kv_int8.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Size of a contiguous run of keys and values of one head. Attention follows one head through all pages; two Zen 5
/// cores read runs of 16 KB (a page of 64 dimensions) at 60 to 75 % of their bandwidth, runs of 128 KB at 85 to 97 %.
constexpr std::int64_t run_bytes = 128 << 10;

/// Minimum heads per thread for a matmul that also rotates and stores them: then threads wait at most a quarter of it
/// for the last heads.
constexpr std::int64_t heads_per_thread = 4;

/// Every `stride`th unit of a page, copied to or from contiguous units.
template <typename Unit>
struct Strided {
    std::byte* page;
    std::int64_t stride;  ///< bytes
    std::int64_t count;

    void put(const std::byte* from) const {
        for (std::int64_t i = 0; i < count; ++i) std::memcpy(page + i * stride, from + i * sizeof(Unit), sizeof(Unit));
    }
    void take(std::byte* to) const {
        for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(Unit), page + i * stride, sizeof(Unit));
    }
    /// Copies to the same place in another page.
    void move(std::byte* to) const {
        for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, page + i * stride, sizeof(Unit));
    }
};

/// Calls visit(Strided, byte offset in the token) for the pieces of the key (value) in a slot of the head at `head`.
template <typename Element, typename Pair, class Visit>
void visit_token(const KvPages& pages, std::int64_t head_dim, std::byte* head, bool values, std::int64_t slot,
                 const Visit& visit) {
    constexpr std::int64_t size = sizeof(Element), a_pair = sizeof(Pair) / size;
    if (!values) {
        return visit(Strided<Pair>{head + pages.key(slot, 0) * size, lanes * sizeof(Pair), head_dim / a_pair}, 0);
    }
    for (std::int64_t d = 0; d < head_dim; d += lanes) {
        visit(Strided<Element>{head + pages.value(slot, d) * size, sizeof(Pair), std::min(lanes, head_dim - d)},
              d * size);
    }
}

template <class Visit>
void visit_token(const KvLayout& layout, const KvPages& pages, std::byte* head, bool values, std::int64_t slot,
                 const Visit& visit) {
    const std::int64_t head_dim = layout.head_dim;
    if (layout.dtype == DType::f32) return visit_token<float, float>(pages, head_dim, head, values, slot, visit);
    if (layout.dtype == DType::bf16) {
        return visit_token<std::uint16_t, std::uint32_t>(pages, head_dim, head, values, slot, visit);
    }
    visit_token<std::uint8_t, std::uint16_t>(pages, head_dim, head, values, slot, visit);
}

/// Copies a key (value) of token_bytes to its slot, in the head that starts `base` elements into the page.
void token_to_page(const KvLayout& layout, const KvPages& pages, const std::byte* from, std::byte* page,
                   std::int64_t base, bool values, std::int64_t slot) {
    std::byte* head = page + base * pages.element_bytes();
    visit_token(layout, pages, head, values, slot,
                [&](const auto& strided, std::int64_t before) { strided.put(from + before); });
    if (pages.has_scales()) std::memcpy(head + pages.scale_at(values, slot), from + layout.head_dim, 4);
}

void token_from_page(const KvLayout& layout, const KvPages& pages, const std::byte* page, std::byte* to,
                     std::int64_t base, bool values, std::int64_t slot) {
    auto* head = const_cast<std::byte*>(page) + base * pages.element_bytes();
    visit_token(layout, pages, head, values, slot,
                [&](const auto& strided, std::int64_t before) { strided.take(to + before); });
    if (pages.has_scales()) std::memcpy(to + layout.head_dim, head + pages.scale_at(values, slot), 4);
}

/// Copies a key (value) from slot to slot, in the head that starts `base` elements into the page.
void move_token(const KvLayout& layout, const KvPages& pages, const KvSlot& from, const KvSlot& to, std::int64_t base,
                bool values) {
    std::byte* const from_head = from.page + base * pages.element_bytes();
    std::byte* const to_head = to.page + base * pages.element_bytes();
    const auto place = [&](std::int64_t slot) {
        return (values ? pages.value(slot, 0) : pages.key(slot, 0)) * pages.element_bytes();
    };
    const std::int64_t between = (to_head - from_head) + place(to.slot) - place(from.slot);
    visit_token(layout, pages, from_head, values, from.slot,
                [&](const auto& strided, std::int64_t) { strided.move(strided.page + between); });
    if (pages.has_scales())
        std::memcpy(to_head + pages.scale_at(values, to.slot), from_head + pages.scale_at(values, from.slot), 4);
}

/// Rotates and stores queries, keys and values, head by head.
struct RopeStore {
    const KernelTable& table;
    const KvLayout& layout;
    const KvPages& pages;
    std::span<const KvSlot> slots;
    const PassAngles& angles;
    std::int64_t layer;
    std::int64_t q_heads;
    std::byte* q_out;

    static constexpr std::int64_t work_floats(std::int64_t head_dim) { return head_dim + 1; }

    [[nodiscard]] std::int64_t num_heads() const { return q_heads + 2 * layout.num_kv_heads; }

    /// Stores head `head` of a row, counted through queries, then keys, then values: x f32 [head_dim].
    void store(std::int64_t head, std::int64_t row, const float* x, float* work) const {
        const DType q_type = layout.query_type();
        if (head < q_heads) {
            const std::int64_t head_bytes = layout.head_dim * bytes_of(q_type);
            return rotate({angles.query_cos, angles.query_sin}, row, x, q_type == DType::bf16,
                          q_out + (row * q_heads + head) * head_bytes);
        }
        const KvSlot& slot = slots[row];
        if (slot.page == nullptr) return;
        const bool is_value = head >= q_heads + layout.num_kv_heads;
        const std::int64_t kv_head = (head - q_heads) % layout.num_kv_heads;
        const std::byte* rounded = is_value ? value(x, work) : key(row, x, work);
        token_to_page(layout, pages, rounded, slot.page, pages.head(layer, kv_head), is_value, slot.slot);
    }

  private:
    const std::byte* key(std::int64_t row, const float* x, float* work) const {
        auto* rotated = reinterpret_cast<std::byte*>(work);
        rotate({angles.cos, angles.sin}, row, x, layout.dtype == DType::bf16, rotated);
        return layout.dtype == DType::int8 ? whole(work, work) : rotated;
    }
    const std::byte* value(const float* x, float* work) const {
        if (layout.dtype == DType::int8) return whole(x, work);
        if (layout.dtype == DType::f32) return reinterpret_cast<const std::byte*>(x);
        auto* rounded = reinterpret_cast<std::byte*>(work);
        table.round_rows(
            {.x = x, .width = layout.head_dim, .bf16 = true, .out = rounded, .out_stride = layout.head_dim}, 0, 1);
        return rounded;
    }
    void rotate(PassAngles by, std::int64_t row, const float* x, bool bf16, std::byte* out) const {
        const std::int64_t half = layout.head_dim / 2;
        table.rotate(
            {.x = x, .cos = by.cos + row * half, .sin = by.sin + row * half, .half = half, .bf16 = bf16, .out = out});
    }
    /// Quantizes to the form of KvLayout::token_bytes. Works in place: bytes overwrite only floats that were read.
    [[nodiscard]] const std::byte* whole(const float* x, float* work) const {
        auto* to = reinterpret_cast<std::byte*>(work);
        const QuantizationScale scale = QuantizationScale::of(largest_magnitude(x, layout.head_dim), max_quantized_kv);
        for (std::int64_t i = 0; i < layout.head_dim; ++i) to[i] = static_cast<std::byte>(scale.whole(x[i]));
        std::memcpy(to + layout.head_dim, &scale.scale, sizeof scale.scale);
        return to;
    }
};

/// x, of `width` columns, normed with the sums of squares of `all_heads` heads of `dim` dimensions.
void norm_with(const float* sums, std::int64_t all_heads, std::int64_t dim, float eps, const float* gain,
               std::int64_t width, float* x) {
    std::array<float, lanes> total{};
    for (std::int64_t h = 0; h < all_heads; ++h) total[static_cast<std::size_t>(h % lanes)] += sums[h];
    for (std::size_t half = lanes / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) total[i] += total[i + half];
    }
    const float scale = 1.0F / std::sqrt(total[0] / static_cast<float>(all_heads * dim) + eps);
    for (std::int64_t i = 0; i < width; ++i) x[i] = (x[i] * scale) * gain[i];
}

KvSlot slot_of(std::span<std::byte* const> pages, std::int64_t position) {
    return {pages[position / page_tokens], static_cast<std::int32_t>(position % page_tokens)};
}

}  // namespace

std::size_t CpuDevice::kv_page_bytes(const KvLayout& layout) const {
    return KvPages(layout).elements() * KvPages(layout).element_bytes();
}

std::int64_t CpuDevice::kv_pages_together(const KvLayout& layout) const {
    const KvPages pages(layout);
    if (pages.keys_elements() != pages.values_elements()) return 1;
    const std::int64_t pages_per_run = run_bytes / (pages.head_elements() * pages.element_bytes());
    // A chunk of attention, 8 pages, should consist of as few runs as possible.
    return static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, pages_per_run))));
}

void CpuDevice::head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                          const HeadGains& gains, float eps) {
    const std::int64_t dim = layout.head_dim, kv_heads = layout.num_kv_heads;
    const std::int64_t width = (q_heads + 2 * kv_heads) * dim;
    const auto norm = [&](float* heads, std::int64_t count, const float* gain) {
        table_.rms_norm({.x = heads,
                         .gain = gain,
                         .eps = eps,
                         .width = dim,
                         .bf16 = false,
                         .out = reinterpret_cast<std::byte*>(heads),
                         .out_stride = dim},
                        0, count);
    };
    Team::mine().run(threads_for(num_rows * width, 8 << 10), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) {
            float* const keys = qkv + r * width + q_heads * dim;
            norm(qkv + r * width, q_heads, gains.q);
            norm(keys, kv_heads, gains.k);
            if (gains.v != nullptr) norm(keys + kv_heads * dim, kv_heads, gains.v);
        }
    });
}

void CpuDevice::head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                             const WholeHeads& of, float* squares) {
    check_whole_heads(layout, q_heads, of);
    const std::int64_t dim = layout.head_dim, kv_heads = layout.num_kv_heads;
    const std::int64_t width = (q_heads + 2 * kv_heads) * dim, all_heads = of.num_q + of.num_kv;
    const auto add_up = [&](const float* heads, std::int64_t count, float* sums) {
        table_.square_sums({.x = heads, .sums = sums, .width = dim, .bf16 = false}, 0, count);
    };
    Team::mine().run(threads_for(num_rows * width, 8 << 10), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        std::fill_n(squares + first * all_heads, (end - first) * all_heads, 0.0F);
        for (std::int64_t r = first; r < end; ++r) {
            add_up(qkv + r * width, q_heads, squares + r * all_heads + of.first_q);
            if (!of.counts_kv) continue;
            add_up(qkv + r * width + q_heads * dim, kv_heads, squares + r * all_heads + of.num_q + of.first_kv);
        }
    });
}

void CpuDevice::whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                           const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                           float eps) {
    check_whole_heads(layout, q_heads, of);
    const std::int64_t dim = layout.head_dim, kv_heads = layout.num_kv_heads;
    const std::int64_t width = (q_heads + 2 * kv_heads) * dim, all_heads = of.num_q + of.num_kv;
    const std::int64_t per_norm = of.q_per_norm > 0 ? of.q_per_norm : of.num_q;
    Team::mine().run(threads_for(num_rows * width, 8 << 10), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) {
            const float* const sums = squares + r * all_heads;
            float* const row = qkv + r * width;
            for (std::int64_t head = 0, next = 0; head < q_heads; head = next) {
                const std::int64_t first_of_norm = (of.first_q + head) / per_norm * per_norm;
                next = std::min(q_heads, first_of_norm + per_norm - of.first_q);
                norm_with(sums + first_of_norm, per_norm, dim, eps, q_gain + head * dim, (next - head) * dim,
                          row + head * dim);
            }
            norm_with(sums + of.num_q, of.num_kv, dim, eps, k_gain, kv_heads * dim, row + q_heads * dim);
        }
    });
}

void CpuDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                           std::byte* q_out) {
    check_rope(layout, layer, q_heads, kv_pages_together(layout) > 1);
    const KvPages pages(layout);
    const PassAngles angles = angles_of(pass(), layout);
    const RopeStore store{table_, layout, pages, pass().group(layout.group).slots, angles, layer, q_heads, q_out};
    const std::int64_t num_rows = store.slots.size();
    const std::int64_t width = store.num_heads() * layout.head_dim;
    const std::int64_t work_floats = RopeStore::work_floats(layout.head_dim);
    const int team = threads_for(num_rows * width, 8 << 10);
    auto* work = words_.get<float>(work_floats * team);
    Team::mine().run(team, [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        for (std::int64_t r = first; r < end; ++r) {
            for (std::int64_t h = 0; h < store.num_heads(); ++h)
                store.store(h, r, qkv + r * width + h * layout.head_dim, work + work_floats * member.index());
        }
    });
}

void CpuDevice::qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                           float* qkv, const KvLayout& layout, std::int64_t layer, std::int64_t q_heads,
                           std::byte* q_out) {
    const std::int64_t blocks_per_head = layout.head_dim / lanes;
    const bool whole =
        blocks_per_head > 0 && layout.head_dim % lanes == 0 && blocks_per_head % table_.blocks_together == 0;
    const std::int64_t num_heads = q_heads + 2 * layout.num_kv_heads;
    // Heads that fill bundles of blocks are rotated where they were computed, if each thread gets several of them. With
    // few heads for many threads, some threads would wait for others.
    if (!whole || num_heads < heads_per_thread * threads_ ||
        blocks_finished_at_once(table_, blocks_per_head) > max_finished_at_once) {
        return Device::qkv_matmul(w, x, x_stride, num_rows, qkv, layout, layer, q_heads, q_out);
    }
    check_qkv(w, layout, q_heads);
    check_layout(layout, layer, q_heads, kv_pages_together(layout) > 1);
    check_rows_of_pass(pass(), num_rows);
    const KvPages pages(layout);
    const PassAngles angles = angles_of(pass(), layout);
    const RopeStore store{table_, layout, pages, pass().group(layout.group).slots, angles, layer, q_heads, q_out};
    const auto finish = [&](const SumsOfBlocks& some) {
        float work[RopeStore::work_floats(max_finished_at_once * lanes)];
        for (std::int64_t b = some.first_block; b < some.end_block; b += blocks_per_head) {
            const float* sums = some.sums + (b - some.first_block) * lanes;
            for (std::int64_t r = 0; r < some.num_rows; ++r)
                store.store(b / blocks_per_head, some.first_row + r, sums + r * some.stride, work);
        }
    };
    multiply_rows(w, x, x_stride, num_rows, {.finish = finish, .unit = blocks_per_head});
}

void CpuDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    check_slot(from);
    check_slot(to);
    const KvPages pages(layout);
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            for (const bool values : {false, true}) move_token(layout, pages, from, to, pages.head(layer, h), values);
        }
    }
}

void CpuDevice::gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                 const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                                 std::int64_t first_slot) {
    check_layout(layout, layer, layout.num_kv_heads, kv_pages_together(layout) > 1);
    check_gathered(count, to, first_slot);
    const KvPages pages(layout);
    const std::int64_t total = layout.num_kv_heads * count;
    Team::mine().run(threads_for(total * layout.head_dim, elements_per_thread), [&](Member& member) {
        const auto [first, end] = member.share_of(total);
        for (std::int64_t i = first; i < end; ++i) {
            const KvSlot source = slot_of(from, positions[i]), target = slot_of(to, first_slot + i % count);
            for (const bool values : {false, true})
                move_token(layout, pages, source, target, pages.head(layer, i / count), values);
        }
    });
}

void CpuDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    const std::int64_t row = layout.token_bytes();
    for (std::int64_t i = 0; i < count; ++i) {
        token_from_page(layout, pages, page, to_host + i * row, base, values, first + i);
    }
}

void CpuDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    const std::int64_t row = layout.token_bytes();
    for (std::int64_t i = 0; i < count; ++i) {
        token_to_page(layout, pages, from_host + i * row, page, base, values, first + i);
    }
}

}  // namespace longhaul::kernels::cpu
