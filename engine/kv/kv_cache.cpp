#include "engine/kv/kv_cache.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace longhaul::engine {
namespace {
constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;
}

PagePool::PagePool(kernels::Device& device, kernels::KvLayout layout, KvMemory memory)
    : device_(device), layout_(layout), page_bytes_(device.kv_page_bytes(layout)) {
    device_tier_.max_pages = pages_in(memory.device_bytes);
    if (device.can_use_host_memory()) host_tier_.max_pages = pages_in(memory.host_bytes);
}

PagePool::~PagePool() = default;

std::int64_t PagePool::pages_in(std::int64_t num_bytes) const {
    return std::max<std::int64_t>(num_bytes / static_cast<std::int64_t>(page_bytes_), 0);
}

std::byte* PagePool::take() {
    const std::scoped_lock lock(mutex_);
    std::byte* const near = take_of(device_tier_, false);
    return near != nullptr ? near : take_of(host_tier_, true);
}

std::byte* PagePool::take_near() {
    const std::scoped_lock lock(mutex_);
    return take_of(device_tier_, false);
}

std::byte* PagePool::take_of(Tier& tier, bool in_host_memory) {
    if (tier.free.empty() && !grow(tier, in_host_memory)) return nullptr;
    std::pop_heap(tier.free.begin(), tier.free.end(), std::greater<>());
    std::byte* page = tier.free.back();
    tier.free.pop_back();
    return page;
}

void PagePool::Tier::put_back(std::byte* page) noexcept {
    free.push_back(page);  // capacity is reserved in grow
    std::push_heap(free.begin(), free.end(), std::greater<>());
}

bool PagePool::grow(Tier& tier, bool in_host_memory) {
    const std::int64_t left = tier.max_pages - tier.allocated;
    if (left <= 0) return false;
    constexpr std::int64_t host_slabs = 8;  // page-locking has a high fixed cost, so host slabs are larger
    const auto page_bytes = static_cast<std::int64_t>(page_bytes_);
    const auto whole_groups = [&](std::int64_t pages) {
        return (pages + layout_.pages_together - 1) / layout_.pages_together * layout_.pages_together;
    };
    const std::int64_t count = std::min(whole_groups(slab_pages(page_bytes) * (in_host_memory ? host_slabs : 1)), left);
    const std::size_t num_bytes = static_cast<std::size_t>(whole_groups(count) * page_bytes);
    tier.free.reserve(tier.allocated + count);  // do everything that can throw before changing the counters
    kernels::Buffer slab =
        in_host_memory ? kernels::Buffer::in_host_memory(device_, num_bytes) : kernels::Buffer(device_, num_bytes);
    std::byte* const first = slab.data();
    tier.slabs.push_back(std::move(slab));
    tier.allocated += count;
    for (std::int64_t i = 0; i < count; ++i) tier.put_back(first + layout_.place_of_page(i, page_bytes));
    return true;
}

bool PagePool::is_in_host_memory(const std::byte* page) const {
    const std::scoped_lock lock(mutex_);
    return lies_in_host_memory(page);
}

bool PagePool::lies_in_host_memory(const std::byte* page) const {
    return std::any_of(host_tier_.slabs.begin(), host_tier_.slabs.end(), [&](const kernels::Buffer& slab) {
        return page >= slab.data() && page < slab.data() + slab.num_bytes();
    });
}

// A returned page keeps its old contents. Attention never reads a slot that was not written for its sequence. Absent
// positions are multiplied by zero, which is safe because only finite keys and values are ever stored.
void PagePool::give_back(std::byte* page) noexcept {
    const std::scoped_lock lock(mutex_);
    (lies_in_host_memory(page) ? host_tier_ : device_tier_).put_back(page);
}

std::int64_t PagePool::pages_in_use() const {
    const std::scoped_lock lock(mutex_);
    return device_tier_.in_use() + host_tier_.in_use();
}

std::int64_t PagePool::host_pages_in_use() const {
    const std::scoped_lock lock(mutex_);
    return host_tier_.in_use();
}

std::int64_t PagePool::slab_pages(std::int64_t page_bytes) {
    constexpr std::int64_t slab_bytes = 16 << 20;
    return std::max<std::int64_t>(slab_bytes / page_bytes, 1);
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

std::int64_t KvSequence::move_to_device(std::int64_t max_pages) {
    std::int64_t num_moved = 0;
    // Scratch pages first: every step writes to them. They may hold a selection that drafts read again.
    for (std::vector<std::byte*>* pages : {&scratch_, &pages_}) {
        for (std::byte*& page : *pages) {
            if (num_moved == max_pages) return num_moved;
            if (!pool_.is_in_host_memory(page)) continue;
            std::byte* const near = pool_.take_near();
            if (near == nullptr) return num_moved;
            for (std::int32_t slot = 0; slot < page_tokens; ++slot)
                pool_.device().kv_move(layout(), {page, slot}, {near, slot});
            pool_.give_back(page);
            page = near;
            ++num_moved;
        }
    }
    return num_moved;
}

void KvSequence::accept(std::span<const std::int32_t> scratch_slots) {
    for (const std::int32_t slot : scratch_slots) {
        pool_.device().kv_move(layout(), slot_in(scratch_, slot), slot_in(pages_, committed_));
        ++committed_;
    }
}

kernels::KvSlot slot_in(std::span<std::byte* const> pages, std::int64_t slot) {
    if (slot < 0 || slot >= std::ssize(pages) * page_tokens) throw std::out_of_range("no page holds this slot");
    return {pages[slot / page_tokens], static_cast<std::int32_t>(slot % page_tokens)};
}

std::vector<KvView> views_of(std::span<KvSequence* const> sequences) {
    std::vector<KvView> views;
    for (const KvSequence* sequence : sequences) views.push_back(sequence->view());
    return views;
}

}  // namespace longhaul::engine
