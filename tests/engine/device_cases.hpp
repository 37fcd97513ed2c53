// Devices on which the engine is tested. Which GPUs are among them, emulated or real, is linked.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/engine/model_harness.hpp"

namespace longhaul::engine::testing {

struct DeviceCase {
    std::string name;
    DeviceMaker make;       ///< gives nullptr where there is no such device
    bool as_cpu;            ///< its bits are the CPU's
    int items, tokens;      ///< of a job: as many as are done in seconds
    bool any_split = true;  ///< its bits are the same however many ranks share a model
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) {
    *out << device.name;
}

std::vector<DeviceCase> gpu_cases();

}  // namespace longhaul::engine::testing
