// The order of scores in Device::rank_positions, as integers: a greater key ranks first.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.hpp"

namespace longhaul::kernels {

inline LONGHAUL_HOST_DEVICE std::uint32_t rank_key(float score) {
#if defined(__CUDA_ARCH__)
    const std::uint32_t bits = __float_as_uint(score + 0.0F);  // -0 becomes +0
#else
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);
#endif
    constexpr std::uint32_t sign = 0x80000000U, negative_infinity = 0xff800000U;
    if (!(score == score)) return ~negative_infinity;
    return (bits & sign) != 0 ? ~bits : bits | sign;
}

}  // namespace longhaul::kernels
