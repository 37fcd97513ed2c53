// Functions that CPU devices, the reference and GPU kernels share.
#pragma once

#if defined(__CUDACC__)
#define LONGHAUL_HOST_DEVICE __host__ __device__
#else
#define LONGHAUL_HOST_DEVICE
#endif
