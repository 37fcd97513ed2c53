// Paged keys and values. Committed positions never change once written, so a checkpoint may read them beside decoding;
// tree nodes live in scratch pages until `accept` moves the chosen path.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// What pages may take: of the device's memory, and when that is full of the host's (Device::allocate_in_host_memory).
struct KvMemory {
    std::int64_t near_bytes = 0;
    std::int64_t host_bytes = 0;
};

/// Pages of one rank, with a ceiling (the last slab is a whole number of KvLayout::pages_together all the same).
/// Thread-safe: a checkpoint's writer may give back the last reference.
class PagePool {
  public:
    PagePool(kernels::Device& device, kernels::KvLayout layout, KvMemory memory);
    PagePool(kernels::Device& device, kernels::KvLayout layout, std::int64_t near_bytes)
        : PagePool(device, layout, KvMemory{near_bytes}) {}
    ~PagePool();
    PagePool(const PagePool&) = delete;
    PagePool& operator=(const PagePool&) = delete;

    /// A far page only where no near one is left; nullptr when the ceiling is reached.
    std::byte* take();
    std::byte* take_near();
    void give_back(std::byte* page) noexcept;

    [[nodiscard]] const kernels::KvLayout& layout() const { return layout_; }
    [[nodiscard]] kernels::Device& device() const { return device_; }
    [[nodiscard]] std::int64_t max_pages() const { return near_.max_pages + host_.max_pages; }
    [[nodiscard]] std::int64_t max_host_pages() const { return host_.max_pages; }
    [[nodiscard]] std::int64_t pages_in_use() const;
    [[nodiscard]] std::int64_t host_pages_in_use() const;
    [[nodiscard]] bool is_in_host_memory(const std::byte* page) const;

    /// Of near memory, taken at a time (whole groups, so up to KvLayout::pages_together - 1 more).
    static std::int64_t slab_pages(std::int64_t page_bytes);

    /// Pages that hold `num_tokens` positions.
    static std::int64_t pages_for(std::int64_t num_tokens);

  private:
    /// Pages of one kind of memory.
    struct Tier {
        std::int64_t max_pages = 0;
        std::vector<kernels::Buffer> slabs{};
        std::vector<std::byte*> free{};  ///< a heap, the lowest first: pages taken in one go are neighbours
        std::int64_t allocated = 0;      ///< pages

        [[nodiscard]] std::int64_t in_use() const { return allocated - static_cast<std::int64_t>(free.size()); }
        void put_back(std::byte* page) noexcept;
    };

    [[nodiscard]] std::int64_t pages_in(std::int64_t num_bytes) const;
    std::byte* take_of(Tier& tier, bool far);
    /// Takes memory for several pages at once, so that the system can back it with huge ones: attention walks through
    /// all of a long sequence's pages in each layer. False: the ceiling is reached.
    bool grow(Tier& tier, bool far);
    [[nodiscard]] bool lies_in_host_memory(const std::byte* page) const;  ///< under the lock

    kernels::Device& device_;
    kernels::KvLayout layout_;
    std::size_t page_bytes_;
    mutable std::mutex mutex_;
    Tier near_, host_;
};

/// Pages that rows read and write, whoever holds them: of the model's layout.
using KvView = kernels::AttentionSequence;

/// Slot `slot` of pages that hold 64 each. Throws std::out_of_range.
kernels::KvSlot slot_in(std::span<std::byte* const> pages, std::int64_t slot);

/// Keys and values of one sequence on this rank.
class KvSequence {
  public:
    explicit KvSequence(PagePool& pool) : pool_(pool) {}
    ~KvSequence();
    KvSequence(const KvSequence&) = delete;
    KvSequence& operator=(const KvSequence&) = delete;

    /// Makes pages for positions 0..num_tokens-1; false (and nothing changed) when the pool has none.
    bool reserve(std::int64_t num_tokens);
    bool reserve_scratch(std::int64_t num_slots);

    /// Moves pages from far to near memory where there is room, so many at most, and says how many. Not while a
    /// checkpoint's writer reads `pages()` of before.
    std::int64_t bring_near(std::int64_t max_pages);

    /// Positions [0, committed) hold keys and values of accepted tokens.
    [[nodiscard]] std::int64_t committed() const { return committed_; }
    void set_committed(std::int64_t num_tokens) { committed_ = num_tokens; }

    /// Moves scratch slots to positions committed.., in order, and commits them.
    void accept(std::span<const std::int32_t> scratch_slots);

    /// Until more is reserved.
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
