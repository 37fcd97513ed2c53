// Paged KV cache of one rank. Committed positions never change once written, so a checkpoint may read them while
// decoding continues. KV of tree nodes is in scratch pages until `accept` copies the accepted path to the sequence's
// pages; scratch pages behind those may hold copies that drafts read (engine/draft/ranked_kv.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// Memory limits of a PagePool: device memory, and host memory used when device memory is full
/// (Device::allocate_in_host_memory).
struct KvMemory {
    std::int64_t device_bytes = 0;
    std::int64_t host_bytes = 0;
};

/// Allocator for the KV pages of one rank, with a maximum number of pages. The memory of the last slab is rounded up
/// to a multiple of KvLayout::pages_together pages and may exceed that maximum. Thread-safe: a checkpoint writer may
/// release the last reference to a page.
class PagePool {
  public:
    PagePool(kernels::Device& device, kernels::KvLayout layout, KvMemory memory);
    PagePool(kernels::Device& device, kernels::KvLayout layout, std::int64_t device_bytes)
        : PagePool(device, layout, KvMemory{device_bytes}) {}
    ~PagePool();
    PagePool(const PagePool&) = delete;
    PagePool& operator=(const PagePool&) = delete;

    /// Takes a page: from device memory, or from host memory if no device memory is left. Returns nullptr if both
    /// limits are reached.
    std::byte* take();
    /// Takes a page in device memory; nullptr if none is left there.
    std::byte* take_near();
    void give_back(std::byte* page) noexcept;

    [[nodiscard]] const kernels::KvLayout& layout() const { return layout_; }
    [[nodiscard]] kernels::Device& device() const { return device_; }
    [[nodiscard]] std::int64_t max_pages() const { return device_tier_.max_pages + host_tier_.max_pages; }
    [[nodiscard]] std::int64_t max_host_pages() const { return host_tier_.max_pages; }
    [[nodiscard]] std::int64_t pages_in_use() const;
    [[nodiscard]] std::int64_t host_pages_in_use() const;
    [[nodiscard]] bool is_in_host_memory(const std::byte* page) const;

    /// Pages of device memory allocated at a time (rounded up to whole groups: up to KvLayout::pages_together - 1
    /// more).
    static std::int64_t slab_pages(std::int64_t page_bytes);

    /// Number of pages that hold `num_tokens` positions.
    static std::int64_t pages_for(std::int64_t num_tokens);

  private:
    /// Pages in one kind of memory.
    struct Tier {
        std::int64_t max_pages = 0;
        std::vector<kernels::Buffer> slabs{};
        std::vector<std::byte*> free{};  ///< min-heap by address: pages taken together are neighbours
        std::int64_t allocated = 0;      ///< pages

        [[nodiscard]] std::int64_t in_use() const { return allocated - static_cast<std::int64_t>(free.size()); }
        void put_back(std::byte* page) noexcept;
    };

    [[nodiscard]] std::int64_t pages_in(std::int64_t num_bytes) const;
    std::byte* take_of(Tier& tier, bool in_host_memory);
    /// Allocates several pages at once so that the system can back them with huge pages: attention reads all pages of a
    /// long sequence in each layer. Returns false if the limit is reached.
    bool grow(Tier& tier, bool in_host_memory);
    [[nodiscard]] bool lies_in_host_memory(const std::byte* page) const;  ///< requires mutex_ held

    kernels::Device& device_;
    kernels::KvLayout layout_;
    std::size_t page_bytes_;
    mutable std::mutex mutex_;
    Tier device_tier_, host_tier_;
};

/// KV pages and scratch pages of one sequence as a forward pass sees them; non-owning. Their layout is that of the
/// model.
using KvView = kernels::AttentionSequence;

/// Slot `slot` of a list of pages with 64 slots each. Throws std::out_of_range.
kernels::KvSlot slot_in(std::span<std::byte* const> pages, std::int64_t slot);

/// KV cache of one sequence on this rank. Owns its pages and returns them to the pool on destruction.
class KvSequence {
  public:
    explicit KvSequence(PagePool& pool) : pool_(pool) {}
    ~KvSequence();
    KvSequence(const KvSequence&) = delete;
    KvSequence& operator=(const KvSequence&) = delete;

    /// Allocates pages for positions 0..num_tokens-1. Returns false and changes nothing if the pool has too few pages.
    bool reserve(std::int64_t num_tokens);
    bool reserve_scratch(std::int64_t num_slots);

    /// Moves up to `max_pages` pages from host memory to device memory while the device has free pages; returns the
    /// number moved. Must not run while a checkpoint writer reads pages from an earlier call of `pages()`.
    std::int64_t move_to_device(std::int64_t max_pages);

    /// Positions [0, committed) hold KV of accepted tokens.
    [[nodiscard]] std::int64_t committed() const { return committed_; }
    void set_committed(std::int64_t num_tokens) { committed_ = num_tokens; }

    /// Copies scratch slots to the positions from committed() on, in order, and commits them.
    void accept(std::span<const std::int32_t> scratch_slots);

    /// Valid until more pages are reserved.
    [[nodiscard]] KvView view() const { return {pages_, scratch_}; }
    [[nodiscard]] std::span<std::byte* const> pages() const { return pages_; }
    [[nodiscard]] std::span<std::byte* const> scratch_pages() const { return scratch_; }
    [[nodiscard]] const kernels::KvLayout& layout() const { return pool_.layout(); }
    [[nodiscard]] PagePool& pool() const { return pool_; }

  private:
    PagePool& pool_;
    std::vector<std::byte*> pages_;
    std::vector<std::byte*> scratch_;
    std::int64_t committed_ = 0;
};

std::vector<KvView> views_of(std::span<KvSequence* const> sequences);

}  // namespace longhaul::engine
