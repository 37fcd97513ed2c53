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

/// Pages of one rank, with a ceiling. Thread-safe: a checkpoint's writer may give back the last reference.
class PagePool {
  public:
    PagePool(kernels::Device& device, kernels::KvLayout layout, std::int64_t max_bytes);
    ~PagePool();
    PagePool(const PagePool&) = delete;
    PagePool& operator=(const PagePool&) = delete;

    /// nullptr when the ceiling is reached.
    std::byte* take();
    void give_back(std::byte* page) noexcept;

    [[nodiscard]] const kernels::KvLayout& layout() const { return layout_; }
    [[nodiscard]] kernels::Device& device() const { return device_; }
    [[nodiscard]] std::size_t page_bytes() const { return page_bytes_; }
    [[nodiscard]] std::int64_t max_pages() const { return max_pages_; }
    [[nodiscard]] std::int64_t pages_in_use() const;

    /// Pages that hold `num_tokens` positions.
    static std::int64_t pages_for(std::int64_t num_tokens);

  private:
    /// Takes memory for several pages at once, so that the system can back it with huge ones: attention walks through
    /// all of a long sequence's pages in each layer. False: the ceiling is reached.
    bool grow();

    kernels::Device& device_;
    kernels::KvLayout layout_;
    std::size_t page_bytes_;
    std::int64_t max_pages_;
    mutable std::mutex mutex_;
    std::vector<kernels::Buffer> slabs_;
    std::vector<std::byte*> free_;
    std::int64_t allocated_ = 0;  ///< pages
};

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

    /// Positions [0, committed) hold keys and values of accepted tokens.
    [[nodiscard]] std::int64_t committed() const { return committed_; }
    void set_committed(std::int64_t num_tokens) { committed_ = num_tokens; }

    /// Moves scratch slots to positions committed.., in order, and commits them.
    void accept(std::span<const std::int32_t> scratch_slots);

    [[nodiscard]] kernels::KvSlot position_slot(std::int64_t position) const;
    [[nodiscard]] kernels::KvSlot scratch_slot(std::int32_t slot) const;
    [[nodiscard]] std::span<std::byte* const> pages() const { return pages_; }
    [[nodiscard]] std::span<std::byte* const> scratch_pages() const { return scratch_; }
    [[nodiscard]] const kernels::KvLayout& layout() const { return pool_.layout(); }
    [[nodiscard]] PagePool& pool() const { return pool_; }

    /// [count, token_bytes] of positions first.. ; see Device::kv_export. Safe beside decoding for committed positions
    /// as long as `pages` (a copy of `pages()` taken by the owner's thread) is given.
    static void export_range(const kernels::Device& device, const kernels::KvLayout& layout,
                             std::span<std::byte* const> pages, std::int64_t layer, std::int64_t kv_head, bool values,
                             std::int64_t first, std::int64_t count, std::byte* to);
    void import_range(std::int64_t layer, std::int64_t kv_head, bool values, std::int64_t first, std::int64_t count,
                      const std::byte* from);

  private:
    PagePool& pool_;
    std::vector<std::byte*> pages_;
    std::vector<std::byte*> scratch_;
    std::int64_t committed_ = 0;
};

}  // namespace longhaul::engine
