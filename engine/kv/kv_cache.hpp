// Paged KV cache of one rank. Committed positions never change once written, so a checkpoint may read them while
// decoding continues. KV of tree nodes is in scratch pages until `accept` copies the accepted path to the sequence's
// pages; scratch pages behind those may hold copies that drafts read (engine/draft/ranked_kv.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// Memory limits of a PagePool: device memory, and host memory used when device memory is full
/// (Device::allocate_in_host_memory).
struct KvMemory {
    std::int64_t device_bytes = 0;
    std::int64_t host_bytes = 0;
};

/// Bytes of a page: 64 positions, or 64 scratch slots; of layers with linear attention the state of a sequence, or 64
/// scratch slots.
std::size_t kv_page_bytes(const kernels::Device& device, const kernels::KvLayout& layout);

/// Allocator for the KV pages of one group of layers on one rank, with a maximum number of pages. The memory of the
/// last slab is rounded up to a multiple of KvLayout::pages_together pages and may exceed that maximum. Thread-safe: a
/// checkpoint writer may release the last reference to a page.
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

/// Numbers of pages, by group of layers.
class PageCounts {
  public:
    explicit PageCounts(std::vector<std::int64_t> of_groups) : of_groups_(std::move(of_groups)) {}

    [[nodiscard]] std::int64_t operator[](std::size_t group) const { return of_groups_[group]; }
    PageCounts& operator+=(const PageCounts& more);
    PageCounts& operator-=(const PageCounts& less);
    /// The larger number of each group.
    [[nodiscard]] PageCounts max(const PageCounts& other) const;
    /// Whether no group has more pages than `limit` allows.
    [[nodiscard]] bool fit_in(const PageCounts& limit) const;
    /// Whether no group lacks pages.
    [[nodiscard]] bool enough() const;

  private:
    std::vector<std::int64_t> of_groups_;
};

/// Scratch slots of a sequence.
struct ScratchSlots {
    std::int64_t of_tree = 0;  ///< for the nodes of a tree, in all groups
    std::int64_t all = 0;      ///< in the first group, which also holds copies that drafts read
};

/// How the sequences of a pool use the pages of sliding windows.
struct WindowUse {
    std::int64_t sequences = 0;  ///< that have such pages, or a state, at a time; they limit the memory for them
    /// Positions that a sequence may be ahead of those it still needs: a window's pages are used again when the
    /// sequence is so much further. 0: never, the pages of all positions are kept.
    std::int64_t ahead = 0;
    std::int64_t scratch_slots = 0;  ///< of a sequence, at most
    std::int64_t kept_states = 0;    ///< KvPool::max_kept_states, if a sixteenth of the memory holds so many
    bool limited = true;             ///< false: another rank plans how many there are
};

/// The pools of all groups of layers (ModelConfig::layer_groups). Pages of windowed groups are never in host memory.
class KvPool {
  public:
    /// `layouts`: one per group. Each of the `use.sequences` sequences has the pages of its windows, as far as memory
    /// allows; the other groups have the rest.
    KvPool(kernels::Device& device, std::span<const kernels::KvLayout> layouts, KvMemory memory, WindowUse use = {});
    KvPool(kernels::Device& device, std::span<const kernels::KvLayout> layouts, std::int64_t device_bytes)
        : KvPool(device, layouts, KvMemory{device_bytes}) {}

    [[nodiscard]] std::size_t num_groups() const { return pools_.size(); }
    [[nodiscard]] PagePool& group(std::size_t index) const { return *pools_[index]; }
    [[nodiscard]] kernels::Device& device() const { return pools_.front()->device(); }
    /// Pages in which a sequence of `num_tokens` positions has the keys and values of a group.
    [[nodiscard]] std::int64_t pages_of_group(std::size_t group, std::int64_t num_tokens) const;
    [[nodiscard]] PageCounts pages_for(std::int64_t num_tokens, const ScratchSlots& scratch = {}) const;
    [[nodiscard]] PageCounts max_pages() const;
    [[nodiscard]] PageCounts pages_in_use() const;
    [[nodiscard]] PageCounts max_host_pages() const;
    [[nodiscard]] std::int64_t host_pages_in_use() const { return pools_.front()->host_pages_in_use(); }
    /// States beside those of sequences for which memory is left (KeptStates).
    [[nodiscard]] std::int64_t max_kept_states() const { return max_kept_states_; }
    /// Positions before the end of a text that are surely kept, whatever its length, beside the window.
    [[nodiscard]] std::int64_t ahead() const { return use_.ahead; }

  private:
    std::vector<std::unique_ptr<PagePool>> pools_;
    std::int64_t max_kept_states_ = 0;
    WindowUse use_;
};

/// The group of the layers of linear attention, which is the last (ModelConfig::layer_groups); nullptr: there is none.
const kernels::KvLayout* state_layout(std::span<const kernels::KvLayout> layouts);
/// Bytes of one state of this layout, which are at the beginning of its page.
std::int64_t state_bytes(const kernels::KvLayout& layout);
/// Bytes of the keys and values of one position in all layers.
std::int64_t position_bytes(std::span<const kernels::KvLayout> layouts);
/// Bytes of the pages of states of a sequence with `scratch_slots` slots, whatever its length.
std::int64_t state_bytes(const kernels::Device& device, std::span<const kernels::KvLayout> layouts,
                         std::int64_t scratch_slots);
/// Bytes of the pages of a sequence of `num_tokens` positions and `scratch_slots` slots. `ahead`: as in WindowUse.
std::int64_t sequence_bytes(const kernels::Device& device, std::span<const kernels::KvLayout> layouts,
                            std::int64_t num_tokens, std::int64_t scratch_slots, std::int64_t ahead);

/// KV pages and scratch pages of one sequence as a forward pass sees them; non-owning. Their layouts are those of the
/// model.
struct KvView {
    std::span<std::byte* const> pages;          ///< of the first group of layers
    std::span<std::byte* const> scratch_pages;  ///< likewise
    std::span<const kernels::AttentionSequence> more_groups = {};

    [[nodiscard]] kernels::AttentionSequence group(std::size_t index) const {
        return index == 0 ? kernels::AttentionSequence{pages, scratch_pages} : more_groups[index - 1];
    }
};

/// Slot `slot` of a list of pages with 64 slots each. Throws std::out_of_range.
kernels::KvSlot slot_in(std::span<std::byte* const> pages, std::int64_t slot);

/// KV cache of one sequence on this rank. Owns its pages and returns them to the pool on destruction. Groups with a
/// sliding window may use a page again for later positions (WindowUse): their list of pages names it several times.
class KvSequence {
  public:
    explicit KvSequence(PagePool& pool);
    explicit KvSequence(KvPool& pool);
    ~KvSequence();
    KvSequence(const KvSequence&) = delete;
    KvSequence& operator=(const KvSequence&) = delete;

    /// Allocates pages for positions 0..num_tokens-1. Returns false and changes nothing if the pool has too few pages.
    bool reserve(std::int64_t num_tokens);
    /// The same for scratch slots; `gathered`: further ones, in the first group only.
    bool reserve_scratch(std::int64_t num_slots, std::int64_t gathered = 0);

    /// Moves up to `max_pages` pages from host memory to device memory while the device has free pages; returns the
    /// number moved. Must not run while a checkpoint writer reads pages from an earlier call of `pages()`.
    std::int64_t move_to_device(std::int64_t max_pages);

    /// Positions [0, committed) hold KV of accepted tokens.
    [[nodiscard]] std::int64_t committed() const { return committed_; }
    void set_committed(std::int64_t num_tokens) { committed_ = num_tokens; }

    /// Copies scratch slots to the positions from committed() on, in order, and commits them.
    void accept(std::span<const std::int32_t> scratch_slots);

    /// Copies the positions from committed() up to `num_tokens` of another sequence of the pool, and commits them.
    /// Pages for them are reserved. Of a group with a sliding window it copies what a reader of [.., `num_tokens`)
    /// needs: the windows before that and `margin` positions more, which `source` must not have overwritten. `state`:
    /// that of linear attention behind `num_tokens` positions, if there is one (has_state).
    void copy_positions(const KvSequence& source, std::int64_t num_tokens, std::int64_t margin,
                        const std::byte* state = nullptr);
    /// Gives back the scratch pages, the state, and the pages behind the first `num_tokens` positions in groups without
    /// a window. No reader may have them. Then it is only copied from: committed() stays, and tells what windows have
    /// overwritten.
    void trim(std::int64_t num_tokens);

    /// Valid until more pages are reserved.
    [[nodiscard]] KvView view() const { return {pages(), scratch_pages(), more_groups_}; }
    [[nodiscard]] std::span<std::byte* const> pages(std::size_t group = 0) const { return groups_[group].pages; }
    [[nodiscard]] std::span<std::byte* const> scratch_pages(std::size_t group = 0) const {
        return groups_[group].scratch;
    }
    [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
    [[nodiscard]] const kernels::KvLayout& layout(std::size_t group = 0) const { return pool(group).layout(); }
    [[nodiscard]] PagePool& pool(std::size_t group = 0) const { return *groups_[group].pool; }
    /// Whether it has a state of linear attention (state_layout).
    [[nodiscard]] bool has_state() const { return layout(state_group()).is_state(); }
    /// Whether it keeps keys and values of all its positions: none uses pages of a window again.
    [[nodiscard]] bool keeps_positions() const;
    /// Whether those are all that it has: no state.
    [[nodiscard]] bool keeps_all() const { return keeps_positions() && !has_state(); }
    /// Only with a state: the group of the layers that have one, and its page.
    [[nodiscard]] std::size_t state_group() const { return num_groups() - 1; }
    [[nodiscard]] std::byte* state_page() const { return pages(state_group()).front(); }
    /// Pages that it owns.
    [[nodiscard]] PageCounts pages_held() const;
    /// Whether writing position `position` may overwrite one of the positions that a reader of [.., `end`) needs: the
    /// windows before `end` and `margin` positions more.
    [[nodiscard]] bool overwrites(std::int64_t position, std::int64_t end, std::int64_t margin) const;

  private:
    struct GroupPages {
        PagePool* pool;
        std::int64_t max_owned;         ///< pages for positions that are ever owned; then they are used again
        std::vector<std::byte*> owned;  ///< for positions
        std::vector<std::byte*> pages;  ///< by position: page i holds positions [64 i, 64 (i+1))
        std::vector<std::byte*> scratch;
    };
    void add_group(PagePool& pool, std::int64_t max_owned);
    void update_views();

    std::vector<GroupPages> groups_;
    std::vector<kernels::AttentionSequence> more_groups_;
    std::int64_t committed_ = 0;
};

std::vector<KvView> views_of(std::span<KvSequence* const> sequences);

}  // namespace longhaul::engine
