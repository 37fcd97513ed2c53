// Keys and values of CudaDevice between calls: moves that wait to be launched together, and the way in and out of pages
// for checkpoints.
//
// Checkpoints are written by another thread, beside decoding. What it reads no longer changes, but the kernels that
// wrote it may still be on their way; and it must not wait for the pass that runs now, or it would get one page a pass.
// So: what was asked of the stream before this pass is marked by an event, and an export waits for that alone, unless
// it reads a slot that the pass itself writes, or one that a waiting move does.
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

    /// The pass that follows writes `slots`. Launches the moves that wait.
    void pass_begins(std::span<const KvSlot> slots);
    /// Takes its turn behind earlier moves; launched with the next pass, import, export or flush.
    void move(const KvLayout& layout, KvSlot from, KvSlot to);
    void flush_moves();

    // From any thread. `pages`: those that the box has positions in.
    void export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::byte* to_host,
                    std::size_t head_stride);
    void import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                    const std::byte* from_host, std::size_t head_stride);

    struct Move {
        KvSlot from, to;
    };

  private:
    /// Slots of a page, the last one among them.
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

    std::mutex mutex_;         ///< of what follows; also taken while transfer_mutex_ is held
    std::vector<Move> moves_;  ///< none reads or writes what another writes
    KvLayout moves_layout_;    ///< of all of them
    PinnedRing ring_;
    Workspace device_moves_;
    std::vector<Run> pass_slots_;  ///< of the pass that runs, what it writes
    Event before_pass_;
    bool marked_ = false;  ///< before_pass_ says something

    std::mutex transfer_mutex_;  ///< of what follows
    Stream transfers_;
    Event reached_;
    PinnedRing transfer_ring_;
    Workspace device_pages_;
    Workspace device_rows_;  ///< of a box, as files have them
    Pinned staged_;
};

}  // namespace longhaul::kernels::cuda
