// The activations of gated MLPs for one element, for gate_mul and gated_matmul: the same bits in both.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/gate.hpp"

namespace longhaul::kernels::cuda {

struct SiluMul {
    static constexpr int inputs = 2;
    __device__ float operator()(float gate, float up) const { return (gate / (1.0F + exp_of(-gate))) * up; }
};
struct GeluMul {
    static constexpr int inputs = 2;
    __device__ float operator()(float gate, float up) const {
        const float cubic = __fmaf_rn(__fmul_rn(gate, gate), exp_constants::gelu_cubic, 1.0F);
        const float exponent = __fmul_rn(exp_constants::gelu_slope, __fmul_rn(gate, cubic));
        return (gate / (1.0F + exp_of(exponent))) * up;
    }
};

__device__ __forceinline__ float gated(Gate function, float gate, float up) {
    return function == Gate::silu ? SiluMul()(gate, up) : GeluMul()(gate, up);
}

}  // namespace longhaul::kernels::cuda
