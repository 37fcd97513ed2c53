#include "engine/kv/kv_cache.hpp"

#include <algorithm>
#include <stdexcept>

namespace longhaul::engine {
namespace {
constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;
}

PagePool::PagePool(kernels::Device& device, kernels::KvLayout layout, std::int64_t max_bytes)
    : device_(device),
      layout_(layout),
      page_bytes_(device.kv_page_bytes(layout)),
      max_pages_(std::max<std::int64_t>(max_bytes / static_cast<std::int64_t>(page_bytes_), 0)) {}

PagePool::~PagePool() = default;

std::byte* PagePool::take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty() && !grow()) return nullptr;
    std::byte* page = free_.back();
    free_.pop_back();
    return page;
}

bool PagePool::grow() {
    constexpr std::size_t slab_bytes = std::size_t{16} << 20;
    const std::int64_t left = max_pages_ - allocated_;
    if (left <= 0) return false;
    const std::int64_t count = std::clamp<std::int64_t>(static_cast<std::int64_t>(slab_bytes / page_bytes_), 1, left);
    slabs_.emplace_back(device_, static_cast<std::size_t>(count) * page_bytes_);
    for (std::int64_t i = count; i-- > 0;) {
        free_.push_back(slabs_.back().data() + static_cast<std::size_t>(i) * page_bytes_);
    }
    allocated_ += count;
    return true;
}

// A page keeps its old contents: attention never reads a slot that was not written for its sequence, and what it
// multiplies by zero (absent places) is finite because only finite keys and values are ever stored.
void PagePool::give_back(std::byte* page) noexcept {
    const std::scoped_lock lock(mutex_);
    free_.push_back(page);
}

std::int64_t PagePool::pages_in_use() const {
    const std::scoped_lock lock(mutex_);
    return allocated_ - static_cast<std::int64_t>(free_.size());
}

std::int64_t PagePool::pages_for(std::int64_t num_tokens) {
    return (num_tokens + page_tokens - 1) / page_tokens;
}

KvSequence::~KvSequence() {
    for (std::byte* page : pages_) pool_.give_back(page);
    for (std::byte* page : scratch_) pool_.give_back(page);
}

namespace {
bool grow(PagePool& pool, std::vector<std::byte*>& pages, std::int64_t num_pages) {
    const std::size_t before = pages.size();
    while (static_cast<std::int64_t>(pages.size()) < num_pages) {
        std::byte* page = pool.take();
        if (page == nullptr) {
            for (std::size_t i = before; i < pages.size(); ++i) pool.give_back(pages[i]);
            pages.resize(before);
            return false;
        }
        pages.push_back(page);
    }
    return true;
}
}  // namespace

bool KvSequence::reserve(std::int64_t num_tokens) {
    return grow(pool_, pages_, PagePool::pages_for(num_tokens));
}

bool KvSequence::reserve_scratch(std::int64_t num_slots) {
    return grow(pool_, scratch_, PagePool::pages_for(num_slots));
}

void KvSequence::accept(std::span<const std::int32_t> scratch_slots) {
    for (const std::int32_t slot : scratch_slots) {
        pool_.device().kv_move(layout(), scratch_slot(slot), position_slot(committed_));
        ++committed_;
    }
}

kernels::KvSlot KvSequence::position_slot(std::int64_t position) const {
    return {pages_.at(static_cast<std::size_t>(position / page_tokens)),
            static_cast<std::int32_t>(position % page_tokens)};
}

kernels::KvSlot KvSequence::scratch_slot(std::int32_t slot) const {
    return {scratch_.at(static_cast<std::size_t>(slot / page_tokens)), static_cast<std::int32_t>(slot % page_tokens)};
}

namespace {
/// Calls `part(page, slot, count, done)` for each page of positions [first, first + count).
template <typename Part>
void for_each_page(std::span<std::byte* const> pages, std::int64_t first, std::int64_t count, Part part) {
    for (std::int64_t done = 0; done < count;) {
        const std::int64_t position = first + done;
        const std::int64_t slot = position % page_tokens;
        const std::int64_t here = std::min(count - done, page_tokens - slot);
        part(pages[static_cast<std::size_t>(position / page_tokens)], slot, here, done);
        done += here;
    }
}
}  // namespace

void KvSequence::export_range(const kernels::Device& device, const kernels::KvLayout& layout,
                              std::span<std::byte* const> pages, std::int64_t layer, std::int64_t kv_head, bool values,
                              std::int64_t first, std::int64_t count, std::byte* to) {
    const std::int64_t row = static_cast<std::int64_t>(layout.token_bytes());
    for_each_page(pages, first, count, [&](std::byte* page, std::int64_t slot, std::int64_t here, std::int64_t done) {
        device.kv_export(layout, page, layer, kv_head, values, slot, here, to + done * row);
    });
}

void KvSequence::import_range(std::int64_t layer, std::int64_t kv_head, bool values, std::int64_t first,
                              std::int64_t count, const std::byte* from) {
    const std::int64_t row = static_cast<std::int64_t>(layout().token_bytes());
    for_each_page(pages_, first, count, [&](std::byte* page, std::int64_t slot, std::int64_t here, std::int64_t done) {
        pool_.device().kv_import(layout(), page, layer, kv_head, values, slot, here, from + done * row);
    });
}

}  // namespace longhaul::engine
