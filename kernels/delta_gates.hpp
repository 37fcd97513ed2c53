// Decay and step of one value head and row in linear attention (delta_rule.hpp). In double precision: a state lives as
// long as the text, and the errors of its decays multiply.
#pragma once

#include "kernels/scalar_math.hpp"

namespace longhaul::kernels {

/// `rate`: with the bias of the head.
inline LONGHAUL_HOST_DEVICE float decay_of(float log_rate, float rate) {
    constexpr double linear_from = 20.0;  // there softplus(x) is x
    const double x = rate;
    const double softplus = x > linear_from ? x : scalar::det_log1p(scalar::det_exp(x));
    return static_cast<float>(scalar::det_exp(-scalar::det_exp(log_rate) * softplus));
}

inline LONGHAUL_HOST_DEVICE float step_of(float input) {
    return static_cast<float>(1.0 / (1.0 + scalar::det_exp(-static_cast<double>(input))));
}

}  // namespace longhaul::kernels
