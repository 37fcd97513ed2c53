// What the rows of a pass have in common, in device memory: sent by begin_pass in one copy, read by the kernels of all
// layers, so that no layer waits for the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

/// An AttentionRow. Its path begins at Pass::paths[first_path]: scratch slots of positions in_pages..position.
struct PassRow {
    std::int64_t position = 0;
    std::int64_t in_pages = 0;
    std::int32_t sequence = 0;
    std::int32_t first_path = 0;
};

/// An AttentionSequence: its pages begin at Pass::pages[first_page], its scratch pages at [first_scratch_page].
struct PassSequence {
    std::int32_t first_page = 0;
    std::int32_t first_scratch_page = 0;
};

/// Passed to kernels by value.
struct Pass {
    const PassRow* rows = nullptr;            ///< [num_rows]
    const PassSequence* sequences = nullptr;  ///< [num_sequences]
    const std::int32_t* paths = nullptr;
    std::byte* const* pages = nullptr;
    const KvSlot* slots = nullptr;  ///< [num_slots]
    const float* cos = nullptr;     ///< [num_slots, num_angles]
    const float* sin = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t num_sequences = 0;
    std::int64_t num_slots = 0;
    std::int64_t num_angles = 0;
    std::int64_t longest = 0;  ///< positions that the row which sees most of them sees
};

/// The pass on the host and on the device, until the next one begins.
class CurrentPass {
  public:
    /// `pass` is checked. Its host memory stays as it is until the next call (device.hpp).
    void begin(const Stream& stream, PinnedRing& ring, const PassRows& pass);

    [[nodiscard]] const Pass& on_device() const { return device_; }
    [[nodiscard]] const PassRows& on_host() const { return host_; }

  private:
    Parcel parcel_;
    Workspace memory_;
    PassRows host_;
    Pass device_;
};

}  // namespace longhaul::kernels::cuda
