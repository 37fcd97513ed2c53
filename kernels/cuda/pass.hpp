// Data of a pass in device memory that all layers share: sent by begin_pass in one copy and read by the kernels of all
// layers, so that no layer waits for the host. Rows, paths and pages of attention are not included: attention sends
// them with the first layer, in the order in which it processes them (attention_plan.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

/// What the layers of one group read. Passed to kernels by value.
struct Pass {
    const KvSlot* slots = nullptr;  ///< [num_slots]
    std::int64_t num_slots = 0;
};

/// The current pass on host and device, valid until the next one begins.
class CurrentPass {
  public:
    /// `pass` must be valid (check_pass). Its host memory must stay unchanged until the next call (device.hpp).
    void begin(const Stream& stream, PinnedRing& ring, const PassRows& pass);

    [[nodiscard]] const Pass& on_device(std::int64_t group) const {
        return device_.at(static_cast<std::size_t>(group));
    }
    /// In device memory. Throws std::logic_error if the pass does not have the layout's angles.
    [[nodiscard]] PassAngles angles_on_device(const KvLayout& layout) const {
        return angles_of({.sequences = {}, .rows = {}, .slots = {}, .angles = angles_}, layout);
    }
    [[nodiscard]] const PassRows& on_host() const { return host_; }
    /// Counts passes from 1, so that data made for another pass can be detected as stale.
    [[nodiscard]] std::uint64_t number() const { return number_; }

  private:
    Parcel parcel_;
    Workspace memory_;
    PassRows host_;
    std::vector<Pass> device_;  ///< by group
    std::vector<PassAngles> angles_;
    std::uint64_t number_ = 0;
};

}  // namespace longhaul::kernels::cuda
