// KV pages in host memory, and how attention gets them.
//
// The link to the host is about sixty times slower than the GPU's own memory. So each page in host memory crosses it
// only once per layer and pass, however many queries read it, and the link is kept busy: while one layer is computed, a
// separate stream fetches the host pages of the next layer into a window of device memory, where attention reads them.
// Two windows are used alternately by layers. A page that the pass itself writes is fetched after its writes, by the
// stream of the pass.
//
// The fetch is a kernel that reads the host pages directly: page-locked memory has the same address on host and device.
// (With one copy call per page and layer, the host would need more time for the calls than the link for the bytes.) A
// window has the size of one layer of the pass's host pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/kv_shape.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/staging.hpp"
#include "kernels/host_device.hpp"

namespace longhaul::kernels::cuda {

/// Where attention finds a page: at an address, or by number in the window. Pages are aligned, so the low bit is the
/// flag.
class PageEntry {
  public:
    PageEntry() = default;
    static PageEntry near(const std::byte* page) { return PageEntry(reinterpret_cast<std::uintptr_t>(page)); }
    static PageEntry far(std::size_t number) { return PageEntry(number << 1 | 1); }

    /// Address of the keys of KV head 0 in a layer. `first_block`: their byte offset in a page; `window`: the layer's
    /// window.
    [[nodiscard]] LONGHAUL_HOST_DEVICE const std::byte* layer(std::int64_t first_block, const std::byte* window,
                                                              std::int64_t layer_bytes) const {
        if ((bits_ & 1) != 0) return window + static_cast<std::int64_t>(bits_ >> 1) * layer_bytes;
        return reinterpret_cast<const std::byte*>(bits_) + first_block;
    }

  private:
    explicit PageEntry(std::uintptr_t bits) : bits_(bits) {}

    std::uintptr_t bits_ = 0;
};

/// Only pages of group 0 may be in host memory: those of sliding windows are few.
class HostPages {
  public:
    explicit HostPages(const Stream& stream) : stream_(stream), ring_(fetches_) {}

    /// Page-locked host memory for pages.
    std::byte* allocate(std::size_t num_bytes);
    /// Returns false if `data` was not allocated here.
    bool release(std::byte* data) noexcept;

    /// Starts a pass that reads these pages. This and all functions below must be called by one thread.
    void pass_begins(const PassRows& pass);
    [[nodiscard]] PageEntry entry_of(const std::byte* page) const;
    /// Starts to fetch the layer's pages that the pass does not write, after the last reader of the window's old
    /// contents.
    void fetch(const KvLayout& layout, std::int64_t layer);
    /// Returns the window of the layer. Operations queued on the stream from now on find all host pages of the layer in
    /// it. nullptr if there are none.
    const std::byte* bring(const KvLayout& layout, std::int64_t layer);
    /// Call after queueing a kernel that writes the layer's part of these pages: what was fetched before is out of
    /// date.
    void written(std::span<std::byte* const> pages, std::int64_t layer);
    /// Call after queueing the last reader of the layer's window. Starts to fetch the next layer.
    void done(const KvLayout& layout, std::int64_t layer);

  private:
    struct Window {
        Workspace memory;
        std::int64_t layer = -1;  ///< of this pass, in flight or complete
        Event arrived;
        Event read;  ///< the pass's stream no longer reads the window
    };

    [[nodiscard]] bool is_in_host_memory(const std::byte* page) const;
    void find_pages(const PassRows& pass);
    void send_list();
    void launch_fetch(const Stream& stream, const KvLayout& layout, std::int64_t layer, std::size_t first,
                      std::size_t count);
    [[nodiscard]] Window& window_of(std::int64_t layer) { return windows_[static_cast<std::size_t>(layer % 2)]; }
    std::byte* memory_of(Window& window, const KvLayout& layout);

    const Stream& stream_;
    std::map<const std::byte*, std::size_t> memories_;

    std::vector<const std::byte*> pages_;                ///< of this pass; those that it writes come last
    std::size_t num_written_ = 0;                        ///< number of written pages at the end of pages_
    std::map<const std::byte*, std::size_t> number_of_;  ///< index in pages_
    bool sent_ = false;                                  ///< whether list_ holds the pages of this pass

    Stream fetches_;
    PinnedRing ring_;  ///< for fetches_
    Workspace list_;   ///< pages_ on the device
    Event begun_;      ///< work queued before this pass is complete
    Event changed_;    ///< pages that were written within the pass are complete
    std::array<Window, 2> windows_;
};

}  // namespace longhaul::kernels::cuda
