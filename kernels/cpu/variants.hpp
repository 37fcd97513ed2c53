// Variants beyond those that device.hpp offers: for tests.
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace longhaul::kernels::cpu {

/// The avx512 blocking on AVX2 registers (kernel_table.hpp); runs where avx2 runs.
std::unique_ptr<Device> make_emulated_avx512_device(int threads);

}  // namespace longhaul::kernels::cpu
