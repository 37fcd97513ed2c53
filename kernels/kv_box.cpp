// Default Device::kv_export_box and kv_import_box: page by page.
#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels {
namespace {

/// Calls `part(page, layer, head, slot, count, at)` for each page of each head; `at`: byte offset in the host memory.
template <typename Part>
void for_each_page(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::size_t head_stride,
                   Part part) {
    std::size_t head_at = 0;
    for (std::int64_t layer = box.first_layer; layer < box.first_layer + box.num_layers; ++layer) {
        for (std::int64_t head = box.first_head; head < box.first_head + box.num_heads; ++head) {
            for (std::int64_t done = 0; done < box.count;) {
                const std::int64_t position = box.first + done;
                const std::int64_t slot = position % KvLayout::page_tokens;
                const std::int64_t count = std::min(box.count - done, KvLayout::page_tokens - slot);
                part(pages[position / KvLayout::page_tokens], layer, head, slot, count,
                     head_at + static_cast<std::size_t>(done) * layout.token_bytes());
                done += count;
            }
            head_at += head_stride;
        }
    }
}

}  // namespace

void Device::kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                           std::byte* to_host, std::size_t head_stride) const {
    check_box(layout, pages, box, head_stride);
    for_each_page(
        layout, pages, box, head_stride,
        [&](const std::byte* page, std::int64_t layer, std::int64_t head, std::int64_t slot, std::int64_t count,
            std::size_t at) { kv_export(layout, page, layer, head, box.values, slot, count, to_host + at); });
}

void Device::kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                           const std::byte* from_host, std::size_t head_stride) {
    check_box(layout, pages, box, head_stride);
    for_each_page(
        layout, pages, box, head_stride,
        [&](std::byte* page, std::int64_t layer, std::int64_t head, std::int64_t slot, std::int64_t count,
            std::size_t at) { kv_import(layout, page, layer, head, box.values, slot, count, from_host + at); });
}

}  // namespace longhaul::kernels
