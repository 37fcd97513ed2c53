// All-reduce and all-gather of device memory over the ranks of a group, called by the model between its matmuls. Takes
// the fastest available path: in place if the device computes in host memory; from device to device if each rank has
// its own device and these are connected (DeviceLinks); otherwise through host memory. The order of the sum, and so its
// bits, are those of Group::all_reduce, unless the links are made for another one (SumOrder::library).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

class DeviceGroup {
  public:
    virtual ~DeviceGroup() = default;
    /// Group::all_reduce of device memory. May be asynchronous, like the operations of Device. Collective.
    virtual void all_reduce(float* data, std::int64_t count) = 0;
    /// Group::all_gather of device memory, likewise. Returns false on all ranks, and does nothing, if it would have to
    /// go through host memory. Collective.
    virtual bool all_gather(const float* /*data*/, float* /*received*/, std::int64_t /*count*/) { return false; }
    /// Waits until all requested collectives are complete. Throws if another rank will never send its part.
    virtual void finish() {}
};

/// Creates the collectives of `group` for `device`, one device per rank. Collective. `notice` receives a message for
/// the user if the devices could not be connected. Throws InputError on all ranks if they had to be
/// (SumOrder::library).
std::unique_ptr<DeviceGroup> make_device_group(kernels::Device& device, Group& group, std::string& notice);

}  // namespace longhaul::engine
