// The activations of gated MLPs for one element, for gate_mul and gated_matmul: the same bits in both.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/gate.hpp"

namespace longhaul::kernels::cuda {

// All are input / (1 + e^exponent) * factor, of a gate and an up. is_ordinary(): the exponent is in the range of
// one_plus_exp(), that of ordinary_exponent(), and the division needs no scaling.

struct TakenAsTheyAre {
    static constexpr int inputs = 2;
    static __device__ float input(float gate) { return gate; }
    static __device__ float factor(float up) { return up; }
};
struct SiluMul : TakenAsTheyAre {
    static __device__ bool is_ordinary(float gate) { return fabsf(gate) <= 64.0F; }
    static __device__ float ordinary_exponent(float gate) { return -gate; }
    __device__ float operator()(float gate, float up) const { return (gate / (1.0F + exp_of(-gate))) * up; }
};
struct GeluMul : TakenAsTheyAre {
    static __device__ bool is_ordinary(float gate) { return gate >= -9.5F && gate <= 0x1p100F; }
    static __device__ float exponent(float gate) {
        const float cubic = __fmaf_rn(__fmul_rn(gate, gate), exp_constants::gelu_cubic, 1.0F);
        return __fmul_rn(exp_constants::gelu_slope, __fmul_rn(gate, cubic));
    }
    /// Where it is clamped, e to it adds nothing to 1.
    static __device__ float ordinary_exponent(float gate) { return fmaxf(exponent(gate), exp_constants::lowest); }
    __device__ float operator()(float gate, float up) const { return (gate / (1.0F + exp_of(exponent(gate)))) * up; }
};

/// Comparisons, not fminf and fmaxf: NaN stays NaN.
struct SwigluOaiMul {
    static constexpr int inputs = 2;
    static __device__ float input(float gate) { return gate > swiglu_oai_limit ? swiglu_oai_limit : gate; }
    static __device__ float factor(float up) {
        const float limited = input(up);
        return __fadd_rn(limited < -swiglu_oai_limit ? -swiglu_oai_limit : limited, 1.0F);
    }
    static __device__ bool is_ordinary(float gate) { return gate >= -37.0F; }
    static __device__ float ordinary_exponent(float gate) { return __fmul_rn(-swiglu_oai_alpha, input(gate)); }
    __device__ float operator()(float gate, float up) const {
        return (input(gate) / (1.0F + exp_of(ordinary_exponent(gate)))) * factor(up);
    }
};

__device__ __forceinline__ float gated(Gate function, float gate, float up) {
    if (function == Gate::silu) return SiluMul()(gate, up);
    return function == Gate::gelu ? GeluMul()(gate, up) : SwigluOaiMul()(gate, up);
}

/// Function() of several elements, with the same bits. They wait less for each other than one after another, and one
/// branch, not one for each division, decides whether any of the warp, which calls this together, is not ordinary.
template <class Function, int count>
__device__ __forceinline__ void gate_together(const float (&gates)[count], const float (&ups)[count],
                                              float (&active)[count]) {
    bool all_ordinary = true;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        all_ordinary = all_ordinary && Function::is_ordinary(gates[i]);
        const float divisor = one_plus_exp(Function::ordinary_exponent(gates[i]));
        active[i] = __fmul_rn(quotient_of(Function::input(gates[i]), divisor), Function::factor(ups[i]));
    }
    if (__any_sync(full_warp, all_ordinary ? 0 : 1) == 0) return;
#pragma unroll
    for (int i = 0; i < count; ++i) active[i] = Function()(gates[i], ups[i]);
}

}  // namespace longhaul::kernels::cuda
