// Thrown if a device has stopped working: not a wrong call and not a lack of memory.
#pragma once

#include <stdexcept>

namespace longhaul::kernels {

class DeviceError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace longhaul::kernels
