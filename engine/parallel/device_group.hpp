// Sums over the ranks of a group, and their rows, of numbers that lie in a device's memory, by the shortest way there
// is: in place where the device computes on the host, from device to device where each rank has one of its own and they
// are connected (DeviceLinks), else over the host. The order of the sum, and so its bits, are those of
// Group::all_reduce.
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
    /// Group::all_reduce of device memory; an operation like those of the device.
    virtual void all_reduce(float* data, std::int64_t count) = 0;
    /// Group::all_gather of device memory, likewise; false on all ranks, and nothing done, where it would go over the
    /// host.
    virtual bool all_gather(const float* /*data*/, float* /*received*/, std::int64_t /*count*/) { return false; }
    /// Waits until the sums asked for are there. Throws where another rank will never send its part.
    virtual void finish() {}
};

/// The sums of `group`, on whose ranks `device` and its fellows compute. Collective. `notice` is what a user should
/// read once; "" for nothing.
std::unique_ptr<DeviceGroup> make_device_group(kernels::Device& device, Group& group, std::string& notice);

}  // namespace longhaul::engine
