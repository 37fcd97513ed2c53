// Keys and values of CudaDevice between calls: moves that wait to be launched together, angles and slots of the pass,
// and the way in and out of pages for checkpoints.
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

#include "kernels/cuda/kv_shape.hpp"
#include "kernels/cuda/pass.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/upload.hpp"

namespace longhaul::kernels::cuda {

/// The bytes of [count] keys (values) of a page, from slot `first`.
struct KvRange {
    std::int64_t layer;
    std::int64_t kv_head;
    bool values;
    std::int64_t first;
    std::int64_t count;
};

/// Rotates, rounds and stores the rows of a pass that KvPart::bring has brought; shapes as Device::rope_store says.
void rope_store_on(const Stream& stream, const KvLayout& layout, std::int64_t layer, const DevicePass& pass,
                   const float* qkv, std::int64_t q_heads, std::byte* q_out);

class KvPart {
  public:
    /// The pass that follows writes `slots`. Launches the moves that wait.
    void pass_begins(const Stream& stream, std::span<const KvSlot> slots);
    /// Brings slots and angles to the device where the pass has not yet.
    void bring(const Stream& stream, DevicePass& pass, std::int64_t head_dim);
    /// Takes its turn behind earlier moves; launched with the next pass, import, export or flush.
    void move(const Stream& stream, const KvLayout& layout, KvSlot from, KvSlot to);
    void flush_moves(const Stream& stream);

    // From any thread.
    void export_range(const Stream& stream, const KvLayout& layout, const std::byte* page, const KvRange& range,
                      std::byte* to_host);
    void import_range(const Stream& stream, const KvLayout& layout, std::byte* page, const KvRange& range,
                      const std::byte* from_host);

    struct Move {
        KvSlot from, to;
    };

  private:
    void launch_moves(const Stream& stream);
    bool may_be_on_its_way(const std::byte* page, const KvRange& range) const;
    void wait_for_writes(const Stream& stream, const std::byte* page, const KvRange& range);
    std::byte* staging(std::size_t num_bytes);

    std::mutex mutex_;
    std::vector<Move> moves_;  ///< none reads or writes what another writes
    KvLayout moves_layout_;    ///< of all of them
    std::vector<KvSlot> pass_slots_;  ///< of the pass that runs, those that are written
    Event before_pass_;
    bool marked_ = false;
    Upload moves_upload_;
    Upload pass_upload_;
    std::uint64_t brought_ = 0;  ///< number of the pass whose slots are there

    std::mutex transfer_mutex_;
    Stream transfers_;
    Event reached_;
    Pinned staged_;
};

}  // namespace longhaul::kernels::cuda
