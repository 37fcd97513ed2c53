// Keys and values in the host's memory, and their way to attention.
//
// A link to the host is some sixty times slower than a GPU's own memory, so each far page crosses it once a layer and
// pass, however many queries read it, and it is kept busy: while a layer is computed, a stream of its own brings the
// far pages of the next one into a window of device memory, where attention then finds them. There are two windows, for
// layers in turn. A page that the pass itself writes is brought behind its writes instead, by the pass's own stream.
//
// Pages are read where they lie, by a kernel: page-locked memory has the same address on both sides. (A copy for each
// page and layer would cost the host more than the link takes for its bytes.) The window is of the size of one layer of
// the pass's far pages.
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

/// Where attention finds a page: at an address, or as one of those in the window. Pages are aligned, so one bit tells.
class PageEntry {
  public:
    PageEntry() = default;
    static PageEntry near(const std::byte* page) { return PageEntry(reinterpret_cast<std::uintptr_t>(page)); }
    static PageEntry far(std::size_t number) { return PageEntry(number << 1 | 1); }

    /// KV head 0's keys of a layer. `first_block`: their byte of a page; `window`: that layer of the far pages.
    [[nodiscard]] LONGHAUL_HOST_DEVICE const std::byte* layer(std::int64_t first_block, const std::byte* window,
                                                              std::int64_t layer_bytes) const {
        if ((bits_ & 1) != 0) return window + static_cast<std::int64_t>(bits_ >> 1) * layer_bytes;
        return reinterpret_cast<const std::byte*>(bits_) + first_block;
    }

  private:
    explicit PageEntry(std::uintptr_t bits) : bits_(bits) {}

    std::uintptr_t bits_ = 0;
};

class HostPages {
  public:
    explicit HostPages(const Stream& stream) : stream_(stream), ring_(fetches_) {}

    /// Page-locked memory that pages may lie in.
    std::byte* allocate(std::size_t num_bytes);
    /// False: it is not of this memory.
    bool release(std::byte* data) noexcept;

    /// The pass that follows reads these pages. Of one thread, as all that follows.
    void pass_begins(const PassRows& pass);
    [[nodiscard]] PageEntry entry_of(const std::byte* page) const;
    /// Sets out to bring the pages of a layer that the pass does not write, once no one reads what was in the window.
    void fetch(const KvLayout& layout, std::int64_t layer);
    /// The window with all far pages of the layer, for what is asked of the stream from here on; nullptr: there are
    /// none.
    const std::byte* bring(const KvLayout& layout, std::int64_t layer);
    /// The stream reads the layer's window no more; the next layer may set out.
    void done(const KvLayout& layout, std::int64_t layer);

  private:
    struct Window {
        Workspace memory;
        std::int64_t layer = -1;  ///< of this pass, on its way or there
        Event arrived;
        Event read;  ///< by the pass's stream
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

    std::vector<const std::byte*> pages_;                ///< of this pass, those that it writes last
    std::size_t num_written_ = 0;                        ///< of pages_
    std::map<const std::byte*, std::size_t> number_of_;  ///< in pages_
    bool sent_ = false;                                  ///< the list of this pass

    Stream fetches_;
    PinnedRing ring_;  ///< of fetches_
    Workspace list_;   ///< pages_ on the device
    Event begun_;      ///< what came before this pass
    std::array<Window, 2> windows_;
};

}  // namespace longhaul::kernels::cuda
