// Arithmetic of the gated delta rule for one head and row (kernels/delta_rule.hpp), called by CpuDevice through the
// kernel table.
#pragma once

#include "kernels/cpu/rows.hpp"

namespace longhaul::kernels::cpu {

/// Filters and activates columns first..first + count - 1 of the convolution.
template <class Isa>
void convolve_columns(const ConvolveJob& job, std::int64_t first, std::int64_t count, float* out) {
    using Floats = typename Isa::Floats;
    const std::int64_t channels = 2 * job.key_dim + job.values_width;
    const float* const bias = job.bias;
    for (std::int64_t c = first; c < first + count; c += Isa::width) {
        Floats sum = bias == nullptr ? Isa::zero() : Isa::load(bias + c);
        for (std::int64_t t = 0; t < job.taps; ++t)
            sum = Isa::fma(Isa::load(job.filter + t * channels + c), Isa::load(job.rows[t] + c), sum);
        const Floats e = exp_of<Isa>(Isa::negate(sum));
        Isa::store(out + c - first, Isa::div(sum, Isa::add(Isa::all(1.0F), e)));
    }
}

/// x *= factor / sqrt(sum of squares + eps)
template <class Isa>
void scale_to_length(float* x, std::int64_t dim, float factor) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    Floats squares[regs];
    for (Floats& sum : squares) sum = Isa::zero();
    for (std::int64_t i = 0; i < dim; i += Isa::width) {
        const Floats value = Isa::load(x + i);
        Floats& sum = squares[i / Isa::width % regs];
        sum = Isa::fma(value, value, sum);
    }
    const Floats scale = Isa::all(factor / __builtin_sqrtf(Isa::lane_total(squares) + delta_eps));
    for (std::int64_t i = 0; i < dim; i += Isa::width) Isa::store(x + i, Isa::mul(Isa::load(x + i), scale));
}

template <class Isa>
void delta_convolve(const ConvolveJob& job) {
    const std::int64_t dim = job.key_dim;
    convolve_columns<Isa>(job, 0, dim, job.query);
    convolve_columns<Isa>(job, dim, dim + job.values_width, job.update);
    if (job.rule == StateRule::sum) return;
    scale_to_length<Isa>(job.query, dim, 1.0F / __builtin_sqrtf(static_cast<float>(dim)));
    scale_to_length<Isa>(job.update, dim, 1.0F);
}

/// A panel of columns of the state, as many as have their sums in registers.
template <class Isa, int N, StateRule rule>
[[gnu::always_inline]] inline void fold_columns(const FoldJob& job, std::int64_t first) {
    using Floats = typename Isa::Floats;
    Floats sum[N], delta[N];
    const float* from = job.from + first;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] = Isa::zero();
    if constexpr (rule == StateRule::delta) {
        for (std::int64_t i = 0; i < job.key_dim; ++i, from += job.value_dim) {
            const Floats key = Isa::all(job.key[i]);
#pragma GCC unroll 8
            for (int v = 0; v < N; ++v) sum[v] = Isa::fma(Isa::load(from + v * Isa::width), key, sum[v]);
        }
    }
    const Floats decay = Isa::all(job.decay), step = Isa::all(job.step);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
        const Floats value = Isa::load(job.value + first + v * Isa::width);
        delta[v] = Isa::mul(step, rule == StateRule::delta ? Isa::sub(value, Isa::mul(decay, sum[v])) : value);
        sum[v] = Isa::zero();
    }
    from = job.from + first;
    float* to = job.to + first;
    for (std::int64_t i = 0; i < job.key_dim; ++i, from += job.value_dim, to += job.value_dim) {
        const Floats key = Isa::all(job.key[i]), query = Isa::all(job.query != nullptr ? job.query[i] : 0.0F);
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) {
            const Floats state = Isa::fma(key, delta[v], Isa::mul(decay, Isa::load(from + v * Isa::width)));
            Isa::store(to + v * Isa::width, state);
            sum[v] = Isa::fma(state, query, sum[v]);
        }
    }
    if (job.query == nullptr) return;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
        if constexpr (rule == StateRule::sum)
            sum[v] = Isa::fma(Isa::all(job.skip), Isa::load(job.value + first + v * Isa::width), sum[v]);
        Isa::store(job.out + first + v * Isa::width, sum[v]);
    }
}

template <class Isa, StateRule rule>
void fold_state(const FoldJob& job) {
    constexpr int at_once = 4;
    std::int64_t first = 0;
    for (; first + at_once * Isa::width <= job.value_dim; first += at_once * Isa::width)
        fold_columns<Isa, at_once, rule>(job, first);
    for (; first < job.value_dim; first += Isa::width) fold_columns<Isa, 1, rule>(job, first);
}

template <class Isa>
void delta_fold(const FoldJob& job) {
    job.rule == StateRule::sum ? fold_state<Isa, StateRule::sum>(job) : fold_state<Isa, StateRule::delta>(job);
}

/// out = gate(x) * factor, row by row (Device::output_gate).
template <class Isa, OutputGate kind>
void output_gate_rows(const OutputGateJob& job, std::int64_t first_row, std::int64_t end_row) {
    using Floats = typename Isa::Floats;
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* gates = job.gate + r * job.gate_stride;
        const float* x = job.x + r * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const std::int64_t left = job.width - i;
            const Floats gate = load_some<Isa>(gates + i, left), factor = load_some<Isa>(x + i, left);
            constexpr Gate as = kind == OutputGate::gelu ? Gate::gelu : Gate::silu;
            const Floats below = Isa::add(Isa::all(1.0F), exp_of<Isa>(gate_exponent<Isa, as>(gate)));
            Floats gated = Isa::div(kind == OutputGate::sigmoid ? factor : gate, below);
            if constexpr (kind != OutputGate::sigmoid) gated = Isa::mul(gated, factor);
            store_act<Isa>(out, job.bf16, i, left, gated);
        }
        __builtin_memset(out + job.width * element, 0, (job.out_stride - job.width) * element);
    }
}

}  // namespace longhaul::kernels::cpu
