// State of keys and values of CudaDevice between calls: moves that are collected and launched together, and the export
// and import of pages for checkpoints.
//
// Another thread writes checkpoints during decoding. The KV entries it reads no longer change, but the kernels that
// wrote them may still be in flight. It must not wait for the running pass, or it would get only one page per pass. So
// an event marks the work queued before the running pass, and an export waits for that event alone, unless it reads a
// slot that the pass itself or a pending move writes.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/kv_shape.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

class KvPart {
  public:
    explicit KvPart(const Stream& stream) : stream_(stream), ring_(stream), transfer_ring_(transfers_) {}

    /// Starts a pass that writes `slots`. Launches pending moves.
    void pass_begins(const PassRows& pass);
    /// Queues a move after earlier moves; launched with the next pass, import, export or flush.
    void move(const KvLayout& layout, KvSlot from, KvSlot to);
    void flush_moves();

    // From any thread. `pages`: those that contain positions of the box.
    void export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::byte* to_host,
                    std::size_t head_stride);
    void import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                    const std::byte* from_host, std::size_t head_stride);

    struct Move {
        KvSlot from, to;
    };

  private:
    /// A range of slots of a page, `last` included.
    struct Run {
        const std::byte* page;
        std::int32_t first, last;
    };

    void launch_moves();
    [[nodiscard]] bool may_be_on_its_way(std::span<std::byte* const> pages, const KvBox& box) const;
    void wait_for_writes(std::span<std::byte* const> pages, const KvBox& box);
    void wait_for_all();
    std::byte* staging(std::size_t num_bytes);
    template <bool to_pages>
    void request_rows(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box);

    const Stream& stream_;

    std::mutex mutex_;         ///< for the members below; may be taken while transfer_mutex_ is held
    std::vector<Move> moves_;  ///< pending; none reads or writes a slot that another one writes
    KvLayout moves_layout_;    ///< of all of them
    PinnedRing ring_;
    Workspace device_moves_;
    std::vector<Run> pass_slots_;  ///< slots that the running pass writes
    Event before_pass_;
    bool marked_ = false;  ///< whether before_pass_ was recorded

    std::mutex transfer_mutex_;  ///< for the members below
    Stream transfers_;
    Event reached_;
    PinnedRing transfer_ring_;
    Workspace device_pages_;
    Workspace device_rows_;  ///< rows of a box, in file layout
    Pinned staged_;
};

}  // namespace longhaul::kernels::cuda
