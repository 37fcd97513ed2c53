// Helpers for functions that the host and GPU kernels share.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define LONGHAUL_HOST_DEVICE __host__ __device__
#else
#define LONGHAUL_HOST_DEVICE
#endif

namespace longhaul::kernels {

/// Number of zero bits above the highest set bit; the width of the type if no bit is set.
inline LONGHAUL_HOST_DEVICE int leading_zeros(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __clz(static_cast<int>(bits));
#else
    return std::countl_zero(bits);
#endif
}
inline LONGHAUL_HOST_DEVICE int leading_zeros(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
    return __clzll(static_cast<long long>(bits));
#else
    return std::countl_zero(bits);
#endif
}

}  // namespace longhaul::kernels
