// Conversions between number types, one value at a time, by integer arithmetic alone: the bits do not depend on the
// processor's rounding and denormal modes. Not for translation units built with vector flags (the linker could keep
// their copy of these inline functions for the whole program).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/device.hpp"
#include "kernels/host_device.hpp"

namespace longhaul::kernels {

LONGHAUL_HOST_DEVICE inline float bf16_to_f32(std::uint16_t value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Rounds to nearest even; NaN stays NaN (quiet).
LONGHAUL_HOST_DEVICE inline std::uint16_t f32_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// Exact: every f16 is an f32.
LONGHAUL_HOST_DEVICE inline float f16_to_f32(std::uint16_t value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
    const std::uint32_t exponent = (value >> 10) & 0x1fU;
    std::uint32_t mantissa = value & 0x3ffU;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    if (mantissa == 0) return std::bit_cast<float>(sign);
    // A denormal f16 is mantissa * 2^-24: shift its highest bit to the position of the hidden one.
    const int shift = std::countl_zero(mantissa) - 21;
    mantissa = (mantissa << shift) & 0x3ffU;
    return std::bit_cast<float>(sign | (static_cast<std::uint32_t>(113 - shift) << 23) | (mantissa << 13));
}

/// Element `index` of an array of `dtype`.
LONGHAUL_HOST_DEVICE inline float load_as_f32(const std::byte* data, DType dtype, std::int64_t index) {
    if (dtype == DType::f32) {
        float value;
        std::memcpy(&value, data + index * 4, 4);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, data + index * 2, 2);
    return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// Rounds `value` to `dtype` (bf16 or f32) and stores it as element `index`.
LONGHAUL_HOST_DEVICE inline void store_rounded(std::byte* data, DType dtype, std::int64_t index, float value) {
    if (dtype == DType::f32) {
        std::memcpy(data + index * 4, &value, 4);
        return;
    }
    const std::uint16_t bits = f32_to_bf16(value);
    std::memcpy(data + index * 2, &bits, 2);
}

}  // namespace longhaul::kernels
