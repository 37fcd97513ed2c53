// Devices on which the engine is tested. The linked source file (emulated_gpus.cpp or real_gpus.cpp) decides which GPUs
// are among them.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/engine/model_harness.hpp"

namespace longhaul::engine::testing {

struct DeviceCase {
    std::string name;
    DeviceMaker make;       ///< returns nullptr if there is no such device
    bool as_cpu;            ///< its results are bit-identical to the CPU's
    int items, tokens;      ///< job size that finishes in seconds
    bool any_split = true;  ///< its results do not depend on the number of ranks
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) {
    *out << device.name;
}

std::vector<DeviceCase> gpu_cases();

}  // namespace longhaul::engine::testing
