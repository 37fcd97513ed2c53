// The activation of a gated MLP: an argument of Device::gated_matmul and Device::gate_mul.
#pragma once

#include <cstdint>

namespace longhaul::kernels {

/// gate(x) = x / (1 + exp(z)) with z = -x for silu, and z = -2 sqrt(2/pi) (x + 0.044715 x^3) for gelu (the tanh
/// approximation).
enum class Gate : std::uint8_t { silu, gelu };

}  // namespace longhaul::kernels
