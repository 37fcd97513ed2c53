// CPU devices for tests, in addition to those of device.hpp.
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace longhaul::kernels::cpu {

/// The avx512 blocking on AVX2 registers (kernel_table.hpp); runs on every machine with AVX2.
std::unique_ptr<Device> make_emulated_avx512_device(int threads);

}  // namespace longhaul::kernels::cpu
