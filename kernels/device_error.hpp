// What a device throws that stopped working: neither the caller's mistake nor a lack of memory.
#pragma once

#include <stdexcept>

namespace longhaul::kernels {

class DeviceError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace longhaul::kernels
