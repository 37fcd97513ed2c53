// Creates GPU devices (called by runner/job/device_choice.cpp). In a build without GPU kernels these functions exist
// too and find no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// How a GPU computes (cuda/cuda_device.hpp). exact: the bits of the CPU. tensor: tensor cores, faster, with bits of
/// their own. library: as tensor, but prompts by cuBLASLt, whose bits depend on its version and the GPU.
enum class GpuArithmetic : std::uint8_t { exact, tensor, library };

/// How a step's kernels are launched (cuda/launches.hpp): most of them in CUDA graphs, or each by itself, for
/// comparison.
enum class GpuLaunches : std::uint8_t { graphs, single };

/// Whether this program has kernels for GPUs.
bool built_for_gpus();
/// Number of GPUs that this process sees.
int num_gpus();
/// "sm_90" for GPU number `gpu`; "" if this process does not see it. Tensor cores of different generations group the
/// additions within one instruction differently, so their bits differ.
std::string gpu_generation(int gpu);
/// The properties that determine cuBLASLt's choice of kernels: "cuBLASLt 13.1.0 on 132 multiprocessors"; "" if this
/// process does not see the GPU. Throws DeviceError if the library is missing.
std::string gpu_library(int gpu);
/// Whether GPUs of several processes can be connected by NCCL, and add in its order (SumOrder::library).
bool built_with_nccl();
/// GPU number `gpu`. `order`: of sums over the GPUs of several processes. Throws std::invalid_argument with the cause
/// and the fix.
std::unique_ptr<Device> make_gpu_device(GpuArithmetic arithmetic, int gpu, GpuLaunches launches = GpuLaunches::graphs,
                                        SumOrder order = SumOrder::fixed);

}  // namespace longhaul::kernels
