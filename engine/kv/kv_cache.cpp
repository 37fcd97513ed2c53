#include "engine/kv/kv_cache.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/linear_attention.hpp"

namespace longhaul::engine {
namespace {
constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;
}

std::size_t kv_page_bytes(const kernels::Device& device, const kernels::KvLayout& layout) {
    return layout.is_state() ? layout.delta.page_bytes(layout.num_layers, page_tokens) : device.kv_page_bytes(layout);
}

PagePool::PagePool(kernels::Device& device, kernels::KvLayout layout, KvMemory memory)
    : device_(device), layout_(layout), page_bytes_(kv_page_bytes(device, layout)) {
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

PageCounts& PageCounts::operator+=(const PageCounts& more) {
    for (std::size_t g = 0; g < of_groups_.size(); ++g) of_groups_[g] += more.of_groups_[g];
    return *this;
}

PageCounts& PageCounts::operator-=(const PageCounts& less) {
    for (std::size_t g = 0; g < of_groups_.size(); ++g) of_groups_[g] -= less.of_groups_[g];
    return *this;
}

PageCounts PageCounts::max(const PageCounts& other) const {
    PageCounts larger = *this;
    for (std::size_t g = 0; g < of_groups_.size(); ++g)
        larger.of_groups_[g] = std::max(of_groups_[g], other.of_groups_[g]);
    return larger;
}

bool PageCounts::fit_in(const PageCounts& limit) const {
    return std::equal(of_groups_.begin(), of_groups_.end(), limit.of_groups_.begin(), std::less_equal<>());
}

bool PageCounts::enough() const {
    return std::all_of(of_groups_.begin(), of_groups_.end(), [](std::int64_t count) { return count >= 0; });
}

namespace {

/// Pages for the positions of a sequence that are ever in use at a time. A state is one page, whatever the position.
std::int64_t max_owned(const kernels::KvLayout& layout, std::int64_t ahead) {
    if (layout.is_state()) return 1;
    if (layout.window == 0 || ahead == 0) return std::numeric_limits<std::int64_t>::max();
    return PagePool::pages_for(layout.window + ahead) + 1;  // the window may begin anywhere in a page
}

}  // namespace

namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

/// Bytes of device memory that each group may use. The windows of the sequences come first, of at least one sequence,
/// but beyond that at most a half; the other groups share the rest, each with as many pages.
std::vector<std::int64_t> shares_of(const kernels::Device& device, std::span<const kernels::KvLayout> layouts,
                                    std::int64_t device_bytes, const WindowUse& use) {
    std::vector<std::int64_t> limits(layouts.size(), device_bytes);
    if (layouts.size() == 1 || device_bytes > unlimited / 2) return limits;
    const auto page_bytes = [&](std::size_t g) { return static_cast<std::int64_t>(kv_page_bytes(device, layouts[g])); };
    const auto is_window = [&](std::size_t g) {
        return layouts[g].is_state() || (layouts[g].window > 0 && use.ahead > 0);
    };
    const auto of_sequence = [&](std::size_t g) {
        return (max_owned(layouts[g], use.ahead) + PagePool::pages_for(use.scratch_slots)) * page_bytes(g);
    };
    std::int64_t of_windows = 0, of_others = 0;
    for (std::size_t g = 0; g < layouts.size(); ++g) {
        if (is_window(g)) of_windows += of_sequence(g);
        if (!is_window(g)) of_others += page_bytes(g);
    }
    const std::int64_t half = of_windows > 0 ? device_bytes / 2 / of_windows : 0;
    const std::int64_t sequences = std::clamp<std::int64_t>(half, 1, std::max<std::int64_t>(use.sequences, 1));
    const std::int64_t rest = std::max<std::int64_t>(device_bytes - sequences * of_windows, 0);
    const std::int64_t pages_of_others = of_others > 0 ? rest / of_others : 0;
    for (std::size_t g = 0; g < layouts.size(); ++g)
        limits[g] = !is_window(g)                      ? pages_of_others * page_bytes(g)
                    : use.limited && use.sequences > 0 ? sequences * of_sequence(g)
                                                       : unlimited;
    return limits;
}

}  // namespace

KvPool::KvPool(kernels::Device& device, std::span<const kernels::KvLayout> layouts, KvMemory memory, WindowUse use)
    : use_(use) {
    if (const kernels::KvLayout* const layout = state_layout(layouts)) {
        max_kept_states_ = std::min(use.kept_states, memory.device_bytes / 16 / state_bytes(*layout));
        memory.device_bytes -= max_kept_states_ * state_bytes(*layout);
    }
    const std::vector<std::int64_t> limits = shares_of(device, layouts, memory.device_bytes, use);
    for (std::size_t g = 0; g < layouts.size(); ++g) {
        const bool may_be_far = g == 0 && layouts[g].window == 0;
        pools_.push_back(
            std::make_unique<PagePool>(device, layouts[g], KvMemory{limits[g], may_be_far ? memory.host_bytes : 0}));
    }
}

std::int64_t KvPool::pages_of_group(std::size_t group, std::int64_t num_tokens) const {
    return std::min(PagePool::pages_for(num_tokens), max_owned(pools_[group]->layout(), use_.ahead));
}

PageCounts KvPool::pages_for(std::int64_t num_tokens, const ScratchSlots& scratch) const {
    std::vector<std::int64_t> counts;
    for (std::size_t g = 0; g < pools_.size(); ++g)
        counts.push_back(pages_of_group(g, num_tokens) + PagePool::pages_for(g == 0 ? scratch.all : scratch.of_tree));
    return PageCounts(std::move(counts));
}

namespace {

template <typename Count>
PageCounts count_each(const std::vector<std::unique_ptr<PagePool>>& pools, Count count) {
    std::vector<std::int64_t> counts;
    for (const auto& pool : pools) counts.push_back(count(*pool));
    return PageCounts(std::move(counts));
}

}  // namespace

PageCounts KvPool::max_pages() const {
    return count_each(pools_, [](const PagePool& pool) { return pool.max_pages(); });
}

PageCounts KvPool::pages_in_use() const {
    return count_each(pools_, [](const PagePool& pool) { return pool.pages_in_use(); });
}

PageCounts KvPool::max_host_pages() const {
    return count_each(pools_, [](const PagePool& pool) { return pool.max_host_pages(); });
}

const kernels::KvLayout* state_layout(std::span<const kernels::KvLayout> layouts) {
    return !layouts.empty() && layouts.back().is_state() ? &layouts.back() : nullptr;
}

std::int64_t state_bytes(const kernels::KvLayout& layout) {
    return layout.delta.sequence_floats(layout.num_layers) * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t position_bytes(std::span<const kernels::KvLayout> layouts) {
    std::int64_t bytes = 0;
    for (const kernels::KvLayout& layout : layouts) bytes += layout.position_bytes();
    return bytes;
}

std::int64_t state_bytes(const kernels::Device& device, std::span<const kernels::KvLayout> layouts,
                         std::int64_t scratch_slots) {
    std::int64_t bytes = 0;
    for (const kernels::KvLayout& layout : layouts) {
        const std::int64_t pages = layout.is_state() ? 1 + PagePool::pages_for(scratch_slots) : 0;
        bytes += pages * static_cast<std::int64_t>(kv_page_bytes(device, layout));
    }
    return bytes;
}

std::int64_t sequence_bytes(const kernels::Device& device, std::span<const kernels::KvLayout> layouts,
                            std::int64_t num_tokens, std::int64_t scratch_slots, std::int64_t ahead) {
    std::int64_t bytes = 0;
    for (const kernels::KvLayout& layout : layouts) {
        const std::int64_t pages = std::min(PagePool::pages_for(num_tokens), max_owned(layout, ahead));
        bytes +=
            (pages + PagePool::pages_for(scratch_slots)) * static_cast<std::int64_t>(kv_page_bytes(device, layout));
    }
    return bytes;
}

KvSequence::KvSequence(PagePool& pool) {
    add_group(pool, max_owned({}, 0));
}

KvSequence::KvSequence(KvPool& pool) {
    for (std::size_t g = 0; g < pool.num_groups(); ++g)
        add_group(pool.group(g), max_owned(pool.group(g).layout(), pool.ahead()));
    update_views();
}

void KvSequence::add_group(PagePool& pool, std::int64_t max) {
    groups_.push_back({.pool = &pool, .max_owned = max, .owned = {}, .pages = {}, .scratch = {}});
}

void KvSequence::update_views() {
    more_groups_.clear();
    for (std::size_t g = 1; g < groups_.size(); ++g) more_groups_.push_back({groups_[g].pages, groups_[g].scratch});
}

KvSequence::~KvSequence() {
    for (const GroupPages& group : groups_) {
        for (std::byte* page : group.owned) group.pool->give_back(page);
        for (std::byte* page : group.scratch) group.pool->give_back(page);
    }
}

namespace {

void shrink(PagePool& pool, std::vector<std::byte*>& pages, std::size_t num_pages) {
    for (std::size_t i = num_pages; i < pages.size(); ++i) pool.give_back(pages[i]);
    pages.resize(std::min(pages.size(), num_pages));
}

bool grow(PagePool& pool, std::vector<std::byte*>& pages, std::int64_t num_pages) {
    const std::size_t before = pages.size();
    while (static_cast<std::int64_t>(pages.size()) < num_pages) {
        std::byte* page = pool.take();
        if (page == nullptr) {
            shrink(pool, pages, before);
            return false;
        }
        pages.push_back(page);
    }
    return true;
}

}  // namespace

bool KvSequence::reserve(std::int64_t num_tokens) {
    const std::int64_t wanted = PagePool::pages_for(num_tokens);
    std::vector<std::size_t> before;
    for (GroupPages& group : groups_) {
        before.push_back(group.owned.size());
        if (grow(*group.pool, group.owned, std::min(wanted, group.max_owned))) continue;
        for (std::size_t g = 0; g + 1 < before.size(); ++g) shrink(*groups_[g].pool, groups_[g].owned, before[g]);
        return false;
    }
    for (GroupPages& group : groups_) {
        while (std::ssize(group.pages) < wanted)
            group.pages.push_back(group.owned[group.pages.size() % group.owned.size()]);
    }
    update_views();
    return true;
}

bool KvSequence::reserve_scratch(std::int64_t num_slots, std::int64_t gathered) {
    std::vector<std::size_t> before;
    for (GroupPages& group : groups_) {
        before.push_back(group.scratch.size());
        const std::int64_t slots = num_slots + (before.size() == 1 ? gathered : 0);
        if (grow(*group.pool, group.scratch, PagePool::pages_for(slots))) continue;
        for (std::size_t g = 0; g + 1 < before.size(); ++g) shrink(*groups_[g].pool, groups_[g].scratch, before[g]);
        return false;
    }
    update_views();
    return true;
}

std::int64_t KvSequence::move_to_device(std::int64_t max_pages) {
    GroupPages& group = groups_.front();  // windows are never in host memory
    if (group.pool->layout().window > 0) return 0;
    std::int64_t num_moved = 0;
    const auto move = [&](std::byte*& page) {
        if (!group.pool->is_in_host_memory(page)) return true;
        std::byte* const near = group.pool->take_near();
        if (near == nullptr) return false;
        for (std::int32_t slot = 0; slot < page_tokens; ++slot)
            group.pool->device().kv_move(layout(), {page, slot}, {near, slot});
        group.pool->give_back(page);
        page = near;
        ++num_moved;
        return true;
    };
    // Scratch pages first: every step writes to them. They may hold a selection that drafts read again.
    for (std::vector<std::byte*>* pages : {&group.scratch, &group.owned}) {
        for (std::byte*& page : *pages) {
            if (num_moved == max_pages || !move(page)) break;
        }
    }
    group.pages = group.owned;
    return num_moved;
}

void KvSequence::accept(std::span<const std::int32_t> scratch_slots) {
    for (const GroupPages& group : groups_) {
        kernels::Device& device = group.pool->device();
        if (group.pool->layout().is_state()) {
            device.delta_rule()->accept(group.pool->layout(), group.owned.front(), group.scratch, scratch_slots);
            continue;
        }
        std::int64_t position = committed_;
        for (const std::int32_t slot : scratch_slots)
            device.kv_move(group.pool->layout(), slot_in(group.scratch, slot), slot_in(group.pages, position++));
    }
    committed_ += std::ssize(scratch_slots);
}

void KvSequence::copy_positions(const KvSequence& source, std::int64_t num_tokens, std::int64_t margin,
                                const std::byte* state) {
    if (has_state() != (state != nullptr)) throw std::logic_error("a state belongs to the last of its positions alone");
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        const kernels::KvLayout& of_group = layout(g);
        if (of_group.is_state()) {
            pool(g).device().copy_within(state_page(), state, static_cast<std::size_t>(state_bytes(of_group)));
            continue;
        }
        const std::int64_t needed = of_group.window > 0 ? num_tokens - of_group.window - margin : 0;
        for (std::int64_t position = std::max(needed, committed_); position < num_tokens; ++position)
            pool(g).device().kv_move(of_group, slot_in(source.pages(g), position), slot_in(pages(g), position));
    }
    committed_ = num_tokens;
}

bool KvSequence::keeps_positions() const {
    return std::none_of(groups_.begin(), groups_.end(), [](const GroupPages& group) {
        return group.max_owned < unlimited && !group.pool->layout().is_state();
    });
}

void KvSequence::trim(std::int64_t num_tokens) {
    for (GroupPages& group : groups_) {
        shrink(*group.pool, group.scratch, 0);
        const bool is_state = group.pool->layout().is_state();
        if (group.max_owned < unlimited && !is_state) continue;
        const std::int64_t kept = is_state ? 0 : PagePool::pages_for(num_tokens);
        shrink(*group.pool, group.owned, static_cast<std::size_t>(kept));
        group.pages = group.owned;
    }
    update_views();
}

PageCounts KvSequence::pages_held() const {
    std::vector<std::int64_t> counts;
    for (const GroupPages& group : groups_)
        counts.push_back(static_cast<std::int64_t>(group.owned.size() + group.scratch.size()));
    return PageCounts(std::move(counts));
}

bool KvSequence::overwrites(std::int64_t position, std::int64_t end, std::int64_t margin) const {
    return std::any_of(groups_.begin(), groups_.end(), [&](const GroupPages& group) {
        if (group.pool->layout().is_state()) return false;  // checkpoints copy it when they begin
        const std::int64_t first = std::max<std::int64_t>(end - group.pool->layout().window - margin, 0);
        return position / page_tokens - first / page_tokens >= group.max_owned;
    });
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
