// GPUs as devices, for whoever chooses one. Also there in a build without GPU kernels, which sees no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// How a GPU computes (cuda/cuda_device.hpp): as the CPU to the bit; with tensor cores, faster and with bits of its
/// own; or so, but prompts by cuBLASLt, whose bits belong to its version and the GPU.
enum class GpuArithmetic : std::uint8_t { exact, tensor, library };

/// How a step's kernels reach the GPU (cuda/launches.hpp): most of them in graphs, or each by itself, for comparison.
enum class GpuLaunches : std::uint8_t { graphs, single };

/// Whether this program has kernels for GPUs.
bool built_for_gpus();
/// GPUs that this process sees.
int num_gpus();
/// "sm_90" of GPU number `gpu`; "" where this process does not see it. Tensor cores of two generations add the products
/// of one instruction in other groups, so their bits differ.
std::string gpu_generation(int gpu);
/// What cuBLASLt's choice of kernels follows from: "cuBLASLt 13.1.0 on 132 multiprocessors"; "" where this process does
/// not see the GPU. Throws DeviceError where the library is not there.
std::string gpu_library(int gpu);
/// GPU number `gpu`. Throws std::invalid_argument with what is missing and how to get it.
std::unique_ptr<Device> make_gpu_device(GpuArithmetic arithmetic, int gpu, GpuLaunches launches = GpuLaunches::graphs);

}  // namespace longhaul::kernels
