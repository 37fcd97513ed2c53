// Keys and values of CpuDevice: storing, moving, taking out and putting back. Compiled for any x86-64: only rounded
// products and sums, which every processor computes alike.
#include <cmath>
#include <cstring>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/cpu/share.hpp"
#include "kernels/flush_denormals.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// x, y: [head_dim] f32. Halves convention: dimension i pairs with i + head_dim / 2.
void rotate(const float* x, const float* c, const float* s, std::int64_t half, float* y) {
    for (std::int64_t i = 0; i < half; ++i) {
        y[i] = x[i] * c[i] - x[i + half] * s[i];
        y[i + half] = x[i + half] * c[i] + x[i] * s[i];
    }
}

void round_row(const float* from, std::int64_t count, DType dtype, std::byte* to) {
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
    } else {
        copy_strided<std::uint16_t>(from, to, head_dim, from_index, to_index);
    }
}

/// One row of a rope_store call. `work`: [2 * head_dim] f32.
struct RopeRow {
    const KvLayout& layout;
    const KvPages& pages;
    std::int64_t layer;
    std::int64_t q_heads;

    void store(const float* x, const float* c, const float* s, const KvSlot& slot, std::byte* q_out,
               float* work) const {
        const std::int64_t head_dim = layout.head_dim;
        const auto head_bytes = head_dim * static_cast<std::int64_t>(bytes_of(layout.dtype));
        for (std::int64_t h = 0; h < q_heads; ++h) {
            rotate(x + h * head_dim, c, s, head_dim / 2, work);
            round_row(work, head_dim, layout.dtype, q_out + h * head_bytes);
        }
        if (slot.page == nullptr) return;
        const float* keys = x + q_heads * head_dim;
        const float* values = keys + layout.num_kv_heads * head_dim;
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            const std::int64_t base = pages.head(layer, h);
            rotate(keys + h * head_dim, c, s, head_dim / 2, work);
            put(work, slot, base, false, work + head_dim);
            put(values + h * head_dim, slot, base, true, work + head_dim);
        }
    }

  private:
    void put(const float* row, const KvSlot& slot, std::int64_t base, bool is_value, float* work) const {
        auto* rounded = reinterpret_cast<std::byte*>(work);
        round_row(row, layout.head_dim, layout.dtype, rounded);
        copy_token(
            layout.dtype, rounded, slot.page, layout.head_dim, [](std::int64_t d) { return d; },
            [&](std::int64_t d) { return base + pages.at(is_value, slot.slot, d); });
    }
};

}  // namespace

std::size_t CpuDevice::kv_page_bytes(const KvLayout& layout) const {
    return static_cast<std::size_t>(KvPages(layout).elements()) * bytes_of(layout.dtype);
}

void CpuDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                           const float* cos, const float* sin, std::span<const KvSlot> slots, std::byte* q_out) {
    check_layout(layout, layer, q_heads);
    for (const KvSlot& slot : slots) check_slot(slot);
    const KvPages pages(layout);
    const RopeRow row{layout, pages, layer, q_heads};
    const auto num_rows = static_cast<std::int64_t>(slots.size());
    const std::int64_t width = (q_heads + 2 * layout.num_kv_heads) * layout.head_dim;
    const std::int64_t q_bytes = q_heads * layout.head_dim * static_cast<std::int64_t>(bytes_of(layout.dtype));
    const std::int64_t half = layout.head_dim / 2;
    const int team = threads_for(num_rows * width, 8 << 10);
    auto* work = words_.get<float>(2 * layout.head_dim * team);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const FlushDenormals flush;
        const Share share = Share::of(num_rows);
        float* mine = work + 2 * layout.head_dim * share.thread;
        for (std::int64_t r = share.first; r < share.end; ++r) {
            row.store(qkv + r * width, cos + r * half, sin + r * half, slots[static_cast<std::size_t>(r)],
                      q_out + r * q_bytes, mine);
        }
    }
}

void CpuDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    check_slot(from);
    check_slot(to);
    const KvPages pages(layout);
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            const std::int64_t base = pages.head(layer, h);
            for (const bool values : {false, true}) {
                copy_token(
                    layout.dtype, from.page, to.page, layout.head_dim,
                    [&](std::int64_t d) { return base + pages.at(values, from.slot, d); },
                    [&](std::int64_t d) { return base + pages.at(values, to.slot, d); });
            }
        }
    }
}

void CpuDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    for (std::int64_t i = 0; i < count; ++i) {
        copy_token(
            layout.dtype, page, to_host, layout.head_dim,
            [&](std::int64_t d) { return base + pages.at(values, first + i, d); },
            [&](std::int64_t d) { return i * layout.head_dim + d; });
    }
}

void CpuDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                          bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    check_slots(layout, layer, kv_head, first, count);
    const KvPages pages(layout);
    const std::int64_t base = pages.head(layer, kv_head);
    for (std::int64_t i = 0; i < count; ++i) {
        copy_token(
            layout.dtype, from_host, page, layout.head_dim, [&](std::int64_t d) { return i * layout.head_dim + d; },
            [&](std::int64_t d) { return base + pages.at(values, first + i, d); });
    }
}

}  // namespace longhaul::kernels::cpu
