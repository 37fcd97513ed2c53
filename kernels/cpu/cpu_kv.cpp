// Keys and values of CpuDevice: storing, moving, taking out and putting back.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/cpu/share.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/kv_int8.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Keys and values of one head that stand behind one another. Attention follows one head through all pages; Zen 5's two
/// cores read runs of 16 KB (a page of 64 dimensions) at 60 to 75 % of their bandwidth, of 128 KB at 85 to 97 %.
constexpr std::int64_t run_bytes = 128 << 10;

/// As KvLayout::token_bytes says.
void round_row(const float* from, std::int64_t count, DType dtype, std::byte* to) {
    if (dtype == DType::int8) {
        const WholeScale whole = WholeScale::of(largest_magnitude(from, count), kv_int8_most);
        for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::byte>(whole.whole(from[i]));
        std::memcpy(to + count, &whole.scale, sizeof whole.scale);
        return;
    }
    if (dtype == DType::f32) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
        return;
    }
    auto* out = reinterpret_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(from[i]);
}

/// Elements of T from one place to another, dimension by dimension.
template <typename T>
void copy_strided(const std::byte* from, std::byte* to, std::int64_t head_dim, auto&& from_index, auto&& to_index) {
    for (std::int64_t d = 0; d < head_dim; ++d) {
        std::memcpy(to + to_index(d) * sizeof(T), from + from_index(d) * sizeof(T), sizeof(T));
    }
}

void copy_token(DType dtype, const std::byte* from, std::byte* to, std::int64_t head_dim, auto&& from_index,
                auto&& to_index) {
    if (dtype == DType::f32) {
        copy_strided<float>(from, to, head_dim, from_index, to_index);
    } else if (dtype == DType::int8) {
        copy_strided<std::byte>(from, to, head_dim, from_index, to_index);
    } else {
        copy_strided<std::uint16_t>(from, to, head_dim, from_index, to_index);
    }
}

/// A key (value) of token_bytes to its slot, from `base` elements into the page.
void token_to_page(const KvLayout& layout, const KvPages& pages, const std::byte* from, std::byte* page,
                   std::int64_t base, bool values, std::int64_t slot) {
    copy_token(
        layout.dtype, from, page, layout.head_dim, [](std::int64_t d) { return d; },
        [&](std::int64_t d) { return base + pages.at(values, slot, d); });
    if (pages.has_scales()) std::memcpy(page + base + pages.scale_at(values, slot), from + layout.head_dim, 4);
}

void token_from_page(const KvLayout& layout, const KvPages& pages, const std::byte* page, std::byte* to,
                     std::int64_t base, bool values, std::int64_t slot) {
    copy_token(
        layout.dtype, page, to, layout.head_dim, [&](std::int64_t d) { return base + pages.at(values, slot, d); },
        [](std::int64_t d) { return d; });
    if (pages.has_scales()) std::memcpy(to + layout.head_dim, page + base + pages.scale_at(values, slot), 4);
}

/// One row of a rope_store call. `work`: [2 * head_dim + 1] f32.
struct RopeRow {
    const KernelTable& table;
    const KvLayout& layout;
    const KvPages& pages;
    std::int64_t layer;
    std::int64_t q_heads;

    void store(const float* x, const float* c, const float* s, const KvSlot& slot, std::byte* q_out,
               float* work) const {
        const std::int64_t head_dim = layout.head_dim;
        const auto head_bytes = head_dim * static_cast<std::int64_t>(bytes_of(layout.query_type()));
        for (std::int64_t h = 0; h < q_heads; ++h) {
            table.rotate({.x = x + h * head_dim,
                          .cos = c,
                          .sin = s,
                          .half = head_dim / 2,
                          .bf16 = layout.query_type() == DType::bf16,
                          .out = q_out + h * head_bytes});
        }
        if (slot.page == nullptr) return;
        const float* keys = x + q_heads * head_dim;
        const float* values = keys + layout.num_kv_heads * head_dim;
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            const std::int64_t base = pages.head(layer, h);
            table.rotate({.x = keys + h * head_dim,
                          .cos = c,
                          .sin = s,
                          .half = head_dim / 2,
                          .bf16 = false,
                          .out = reinterpret_cast<std::byte*>(work)});
            put(work, slot, base, false, work + head_dim);
            put(values + h * head_dim, slot, base, true, work + head_dim);
        }
    }

  private:
    void put(const float* row, const KvSlot& slot, std::int64_t base, bool is_value, float* work) const {
        auto* rounded = reinterpret_cast<std::byte*>(work);
        round_row(row, layout.head_dim, layout.dtype, rounded);
        token_to_page(layout, pages, rounded, slot.page, base, is_value, slot.slot);
    }
};

}  // namespace

std::size_t CpuDevice::kv_page_bytes(const KvLayout& layout) const {
    return static_cast<std::size_t>(KvPages(layout).elements() * KvPages(layout).element_bytes());
}

std::int64_t CpuDevice::kv_pages_together(const KvLayout& layout) const {
    const KvPages pages(layout);
    if (pages.keys_elements() != pages.values_elements()) return 1;
    const std::int64_t pages_a_run = run_bytes / (pages.head_elements() * pages.element_bytes());
    // A chunk of attention, 8 pages, lies in as few runs as it can.
    return static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, pages_a_run))));
}

void CpuDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                           std::byte* q_out) {
    check_layout(layout, layer, q_heads, kv_pages_together(layout) > 1);
    const std::span<const KvSlot> slots = pass().slots;
    const KvPages pages(layout);
    const RopeRow row{table_, layout, pages, layer, q_heads};
    const auto num_rows = static_cast<std::int64_t>(slots.size());
    const std::int64_t width = (q_heads + 2 * layout.num_kv_heads) * layout.head_dim;
    const std::int64_t q_bytes = q_heads * layout.head_dim * static_cast<std::int64_t>(bytes_of(layout.query_type()));
    const std::int64_t half = layout.head_dim / 2;
    const int team = threads_for(num_rows * width, 8 << 10);
    auto* work = words_.get<float>((2 * layout.head_dim + 1) * team);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        const Share share = Share::of(num_rows);
        float* mine = work + (2 * layout.head_dim + 1) * share.thread;
        for (std::int64_t r = share.first; r < share.end; ++r) {
            row.store(qkv + r * width, pass().cos + r * half, pass().sin + r * half, slots[static_cast<std::size_t>(r)],
                      q_out + r * q_bytes, mine);
        }
    }
}

void CpuDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    check_slot(from);
    check_slot(to);
    const KvPages pages(layout);
    std::vector<std::byte> token(layout.token_bytes());
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            const std::int64_t base = pages.head(layer, h);
            for (const bool values : {false, true}) {
                token_from_page(layout, pages, from.page, token.data(), base, values, from.slot);
                token_to_page(layout, pages, token.data(), to.page, base, values, to.slot);
            }
        }
    }
}

void CpuDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    const auto row = static_cast<std::int64_t>(layout.token_bytes());
    for (std::int64_t i = 0; i < count; ++i) {
        token_from_page(layout, pages, page, to_host + i * row, base, values, first + i);
    }
}

void CpuDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    const auto row = static_cast<std::int64_t>(layout.token_bytes());
    for (std::int64_t i = 0; i < count; ++i) {
        token_to_page(layout, pages, from_host + i * row, page, base, values, first + i);
    }
}

}  // namespace longhaul::kernels::cpu
