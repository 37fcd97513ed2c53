// Decay and step of one value head and row in linear attention (delta_rule.hpp). In double precision: a state lives as
// long as the text, and the errors of its decays multiply.
#pragma once

#include "kernels/scalar_math.hpp"

namespace longhaul::kernels {

inline LONGHAUL_HOST_DEVICE double softplus(double x) {
    constexpr double linear_from = 20.0;  // there it is x
    return x > linear_from ? x : scalar::det_log1p(scalar::det_exp(x));
}

/// `rate`: with the bias of the head.
inline LONGHAUL_HOST_DEVICE float decay_of(float log_rate, float rate) {
    return static_cast<float>(scalar::det_exp(-scalar::det_exp(log_rate) * softplus(rate)));
}

/// With StateRule::sum.
inline LONGHAUL_HOST_DEVICE float step_of_rate(float rate) {
    return static_cast<float>(softplus(rate));
}

inline LONGHAUL_HOST_DEVICE float step_of(float input) {
    return static_cast<float>(1.0 / (1.0 + scalar::det_exp(-static_cast<double>(input))));
}

}  // namespace longhaul::kernels
