// What the rows of a pass have in common, in device memory: sent by begin_pass in one copy, read by the kernels of all
// layers, so that no layer waits for the host. Rows, paths and pages of attention are not here: attention sends them in
// the order of its work, with the first layer (attention_plan.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

/// Passed to kernels by value.
struct Pass {
    const KvSlot* slots = nullptr;  ///< [num_slots]
    const float* cos = nullptr;     ///< [num_slots, num_angles]
    const float* sin = nullptr;
    std::int64_t num_slots = 0;
    std::int64_t num_angles = 0;
};

/// The pass on the host and on the device, until the next one begins.
class CurrentPass {
  public:
    /// `pass` is checked. Its host memory stays as it is until the next call (device.hpp).
    void begin(const Stream& stream, PinnedRing& ring, const PassRows& pass);

    [[nodiscard]] const Pass& on_device() const { return device_; }
    [[nodiscard]] const PassRows& on_host() const { return host_; }
    /// From 1: what was made for another pass is stale.
    [[nodiscard]] std::uint64_t number() const { return number_; }

  private:
    Parcel parcel_;
    Workspace memory_;
    PassRows host_;
    Pass device_;
    std::uint64_t number_ = 0;
};

}  // namespace longhaul::kernels::cuda
