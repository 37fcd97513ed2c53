// The activations of MLPs: arguments of Device::gated_matmul, Device::gate_mul and Device::activate.
#pragma once

#include <cstdint>

namespace longhaul::kernels {

/// gate(x) = x / (1 + exp(z)) with z = -x for silu, and z = -2 sqrt(2/pi) (x + 0.044715 x^3) for gelu (the tanh
/// approximation). Its product with `up` is the activation.
///
/// swiglu_oai, gpt-oss's: z = -1.702 x, where x is at most 7; it is multiplied with up + 1, where up is limited to
/// -7..7.
enum class Gate : std::uint8_t { silu, gelu, swiglu_oai };
inline constexpr int num_gates = 3;
inline constexpr float swiglu_oai_alpha = 1.702F, swiglu_oai_limit = 7.0F;

/// What the output of attention, or an embedding of a layer, is multiplied with (Device::output_gate): sigmoid(x) = 1 /
/// (1 + exp(-x)), silu(x), or gelu(x) as Gate has it. sigmoid(x) y is computed as y / (1 + exp(-x)).
enum class OutputGate : std::uint8_t { sigmoid, silu, gelu };
inline constexpr int num_output_gates = 3;

/// The activation of an MLP without a gate (Device::activate): max(x, 0), or its square; gelu(x) as Gate has it, or
/// exact, x Phi(x) (gelu_constants.hpp).
enum class Activation : std::uint8_t { relu, relu_squared, gelu, gelu_exact };
inline constexpr int num_activations = 4;

}  // namespace longhaul::kernels
