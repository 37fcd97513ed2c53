// The activations of gated MLPs for one element, for gate_mul and gated_matmul: the same bits in both.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/gate.hpp"

namespace longhaul::kernels::cuda {

/// gate / (1 + e^exponent) * up. `most`: with gates up to this, the divisor is far from overflow.
struct SiluMul {
    static constexpr int inputs = 2;
    static constexpr float most = 64.0F;
    static __device__ float exponent(float gate) { return -gate; }
    __device__ float operator()(float gate, float up) const { return (gate / one_plus_exp(exponent(gate))) * up; }
};
struct GeluMul {
    static constexpr int inputs = 2;
    static constexpr float most = 8.0F;
    static __device__ float exponent(float gate) {
        const float cubic = __fmaf_rn(__fmul_rn(gate, gate), exp_constants::gelu_cubic, 1.0F);
        return __fmul_rn(exp_constants::gelu_slope, __fmul_rn(gate, cubic));
    }
    __device__ float operator()(float gate, float up) const { return (gate / one_plus_exp(exponent(gate))) * up; }
};

__device__ __forceinline__ float gated(Gate function, float gate, float up) {
    return function == Gate::silu ? SiluMul()(gate, up) : GeluMul()(gate, up);
}

/// The same of several elements, which wait less for each other than one after another. A division has a branch for
/// operands that need scaling; here one branch decides for all elements of a warp, which calls this together.
template <class Function, int count>
__device__ __forceinline__ void gate_together(const float (&gates)[count], const float (&ups)[count],
                                              float (&active)[count]) {
    constexpr float least = 0x1p-96F;  // the remainder of the division is not denormal
    bool needs_scaling = false;        // as NaN does
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float size = fabsf(gates[i]);
        needs_scaling = needs_scaling || !(size >= least && size <= Function::most);
        active[i] = __fmul_rn(quotient_of(gates[i], one_plus_exp(Function::exponent(gates[i]))), ups[i]);
    }
    if (__any_sync(full_warp, needs_scaling ? 1 : 0) == 0) return;
#pragma unroll
    for (int i = 0; i < count; ++i) active[i] = Function()(gates[i], ups[i]);
}

}  // namespace longhaul::kernels::cuda
