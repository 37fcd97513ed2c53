// Every call of the CUDA runtime goes through here.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Throws CudaError, or std::bad_alloc where memory ended.
void check(cudaError_t result, std::source_location where = std::source_location::current());

}  // namespace longhaul::kernels::cuda
