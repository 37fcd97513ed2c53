// Error check for calls of the CUDA runtime; every call goes through it.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Throws CudaError, or std::bad_alloc if the GPU is out of memory.
void check(cudaError_t result, std::source_location where = std::source_location::current());

}  // namespace longhaul::kernels::cuda
