// Row operations: norms, activations and rotation (called by CpuDevice through the kernel table), and the exponential
// that they share with attention.
#pragma once

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/exp_constants.hpp"
#include "kernels/gelu_constants.hpp"

namespace longhaul::kernels::cpu {

/// Prefetches the elements 2 KB after `x`: a matmul leaves half of a row in the cache of another core, and fetching a
/// line from a core with another L3 takes 250 ns and more (Zen 5, 16 rows, time with this prefetch relative to none:
/// SiLU 0.76, rotation 0.91).
[[gnu::always_inline]] inline void prefetch_elements(const float* x) {
    __builtin_prefetch(x + 512, 0, 3);
}

/// Registers of exponentials that are computed together next to a division (attention computes more).
template <class Isa>
constexpr int exps_at_once = Isa::width == 16 ? 4 : 2;

/// e^x for x <= highest (or NaN), step by step as in exp_constants.hpp, in place. Several registers at a time hide the
/// latency of each. Inputs below `lowest` need not be clamped: their result is set to 0 in any case.
template <class Isa, int N>
[[gnu::always_inline]] inline void exps_of_bounded(typename Isa::Floats (&x)[N]) {
    namespace c = exp_constants;
    using Floats = typename Isa::Floats;
    typename Isa::Mask here[N];
    Floats t[N], n[N], r[N], q[N];
    const auto each = [](const auto& step) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) step(i);
    };
    const auto fold = [&](float constant) __attribute__((always_inline)) {
        each([&](int i) __attribute__((always_inline)) { q[i] = Isa::fma(r[i], q[i], Isa::all(constant)); });
    };
    each([&](int i) __attribute__((always_inline)) { here[i] = Isa::not_below(x[i], c::lowest); });
    each([&](int i)
             __attribute__((always_inline)) { t[i] = Isa::fma(x[i], Isa::all(c::log2_e), Isa::all(c::round_magic)); });
    each([&](int i) __attribute__((always_inline)) { n[i] = Isa::sub(t[i], Isa::all(c::round_magic)); });
    each([&](int i) __attribute__((always_inline)) { r[i] = Isa::fma(n[i], Isa::all(-c::ln2_high), x[i]); });
    each([&](int i) __attribute__((always_inline)) { r[i] = Isa::fma(n[i], Isa::all(-c::ln2_low), r[i]); });
    each([&](int i) __attribute__((always_inline)) { q[i] = Isa::all(c::c4); });
    fold(c::c3);
    fold(c::c2);
    fold(c::c1);
    fold(c::c0);
    each([&](int i) __attribute__((always_inline)) {
        q[i] = Isa::add(Isa::fma(Isa::mul(r[i], r[i]), q[i], r[i]), Isa::all(1.0F));
    });
    each([&](int i) __attribute__((always_inline)) { x[i] = Isa::scale_where(here[i], q[i], n[i], t[i]); });
}

/// e^x for any x.
template <class Isa>
typename Isa::Floats exp_of(typename Isa::Floats x) {
    typename Isa::Floats bounded[1] = {Isa::min(Isa::all(exp_constants::highest), x)};
    exps_of_bounded<Isa>(bounded);
    return bounded[0];
}

/// Loads up to a register from the end of an array; zeros beyond the end.
template <class Isa>
typename Isa::Floats load_some(const float* from, std::int64_t count) {
    if (count >= Isa::width) return Isa::load(from);
    float rest[Isa::width] = {};
    for (std::int64_t i = 0; i < count; ++i) rest[i] = from[i];
    return Isa::load(rest);
}

/// Stores a register to columns index.. of a row, rounded to bf16 or as f32. `Computed`: x is a result of arithmetic,
/// in which denormals are already flushed (the instruction that rounds to bf16 flushes them, too).
template <class Isa, bool Computed = true>
[[gnu::always_inline]] inline void store_whole(std::byte* row, bool bf16, std::int64_t index, typename Isa::Floats x) {
    if (bf16 && Computed) {
        Isa::store_bf16_quiet(row + index * 2, x);
    } else if (bf16) {
        Isa::store_bf16(row + index * 2, x);
    } else {
        Isa::store(reinterpret_cast<float*>(row) + index, x);
    }
}

/// store_whole for the first `count` values. Inlined, because a function with vectors as arguments leaves the upper
/// halves of the registers in use, and then SSE instructions are many times slower on processors of Intel.
template <class Isa, bool Computed = true>
[[gnu::always_inline]] inline void store_act(std::byte* row, bool bf16, std::int64_t index, std::int64_t count,
                                             typename Isa::Floats x) {
    if (count >= Isa::width) return store_whole<Isa, Computed>(row, bf16, index, x);
    alignas(64) std::byte rest[Isa::width * 4];
    store_whole<Isa, Computed>(rest, bf16, 0, x);
    const std::int64_t element = bf16 ? 2 : 4;
    __builtin_memcpy(row + index * element, rest, count * element);
}

/// Stores the first `count` values of a register.
template <class Isa>
void store_some(float* to, std::int64_t count, typename Isa::Floats x) {
    store_act<Isa>(reinterpret_cast<std::byte*>(to), false, 0, count, x);
}

/// `Adds`: first adds job.addend to x and stores the result in job.sums.
template <class Isa, bool Adds>
void rms_norm_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* x = job.x + r * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        Floats squares[regs];
        for (Floats& sum : squares) sum = Isa::zero();
        for (std::int64_t i = 0; i < job.width; i += lanes) {
            for (std::int64_t v = 0; v < regs && i + v * Isa::width < job.width; ++v) {
                const std::int64_t at = i + v * Isa::width;
                Floats value = load_some<Isa>(x + at, job.width - at);
                if constexpr (Adds) {
                    const std::int64_t in_job = r * job.width + at;
                    prefetch_elements(job.addend + in_job);
                    value = Isa::add(value, load_some<Isa>(job.addend + in_job, job.width - at));
                    store_some<Isa>(job.sums + in_job, job.width - at, value);
                }
                squares[v] = Isa::fma(value, value, squares[v]);
            }
        }
        const float mean = Isa::lane_total(squares) / static_cast<float>(job.width);
        const Floats scale = Isa::all(1.0F / __builtin_sqrtf(mean + job.eps));
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const std::int64_t left = job.width - i;
            const Floats scaled = Isa::mul(load_some<Isa>(x + i, left), scale);
            store_act<Isa>(out, job.bf16, i, left, Isa::mul(scaled, load_some<Isa>(job.gain + i, left)));
        }
        __builtin_memset(out + job.width * element, 0, (job.out_stride - job.width) * element);
    }
}

/// Sums of squares, added as by rms_norm.
template <class Isa>
void square_sums(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    using Floats = typename Isa::Floats;
    constexpr std::int64_t regs = lanes / Isa::width;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* x = job.x + r * job.width;
        Floats squares[regs];
        for (Floats& sum : squares) sum = Isa::zero();
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const Floats value = load_some<Isa>(x + i, job.width - i);
            Floats& sum = squares[i / Isa::width % regs];
            sum = Isa::fma(value, value, sum);
        }
        job.sums[r] = Isa::lane_total(squares);
    }
}

/// x - mean, loaded as by load_some: zeros beyond the end, which add nothing to a sum of squares.
template <class Isa>
typename Isa::Floats load_centred(const float* from, std::int64_t count, float mean) {
    if (count >= Isa::width) return Isa::sub(Isa::load(from), Isa::all(mean));
    float rest[Isa::width] = {};
    for (std::int64_t i = 0; i < count; ++i) rest[i] = from[i] - mean;
    return Isa::load(rest);
}

/// Mean of a row, and 1 / sqrt(variance + eps).
template <class Isa>
struct RowMoments {
    float mean;
    float scale;

    RowMoments(const float* x, std::int64_t width, float eps) {
        using Floats = typename Isa::Floats;
        constexpr std::int64_t regs = lanes / Isa::width;
        Floats sums[regs];
        for (Floats& sum : sums) sum = Isa::zero();
        for (std::int64_t i = 0; i < width; i += Isa::width) {
            Floats& sum = sums[i / Isa::width % regs];
            sum = Isa::add(sum, load_some<Isa>(x + i, width - i));
        }
        mean = Isa::lane_total(sums) / static_cast<float>(width);
        for (Floats& sum : sums) sum = Isa::zero();
        for (std::int64_t i = 0; i < width; i += Isa::width) {
            const Floats value = load_centred<Isa>(x + i, width - i, mean);
            Floats& sum = sums[i / Isa::width % regs];
            sum = Isa::fma(value, value, sum);
        }
        scale = 1.0F / __builtin_sqrtf(Isa::lane_total(sums) / static_cast<float>(width) + eps);
    }
};

template <class Isa>
void layer_norm_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    using Floats = typename Isa::Floats;
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* x = job.x + r * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        const RowMoments<Isa> moments(x, job.width, job.eps);
        const Floats scale = Isa::all(moments.scale);
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const std::int64_t left = job.width - i;
            const Floats scaled = Isa::mul(load_centred<Isa>(x + i, left, moments.mean), scale);
            const Floats gain = load_some<Isa>(job.gain + i, left);
            store_act<Isa>(out, job.bf16, i, left, Isa::fma(scaled, gain, load_some<Isa>(job.bias + i, left)));
        }
        __builtin_memset(out + job.width * element, 0, (job.out_stride - job.width) * element);
    }
}

/// out[i] = f(x[i]), a register at a time.
template <class Isa, class Function>
void map_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row, Function function) {
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* x = job.x + r * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const std::int64_t left = job.width - i;
            store_act<Isa, false>(out, job.bf16, i, left, function(load_some<Isa>(x + i, left)));
        }
        __builtin_memset(out + job.width * element, 0, (job.out_stride - job.width) * element);
    }
}

template <class Isa>
void round_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    map_rows<Isa>(job, first_row, end_row, [](typename Isa::Floats x) { return x; });
}

/// The exponent of a gate: its output is x / (1 + exp(exponent)).
template <class Isa, Gate gate>
[[gnu::always_inline]] inline typename Isa::Floats gate_exponent(typename Isa::Floats x) {
    if constexpr (gate == Gate::silu) return Isa::negate(x);
    if constexpr (gate == Gate::swiglu_oai) return Isa::mul(Isa::all(-swiglu_oai_alpha), x);
    const auto cubic = Isa::fma(Isa::mul(x, x), Isa::all(exp_constants::gelu_cubic), Isa::all(1.0F));
    return Isa::mul(Isa::all(exp_constants::gelu_slope), Isa::mul(x, cubic));
}

template <class Isa>
[[gnu::always_inline]] inline typename Isa::Floats gelu_exact(typename Isa::Floats x) {
    namespace c = gelu_constants;
    const auto a = Isa::abs(x);
    const auto t = Isa::div(Isa::all(1.0F), Isa::fma(Isa::all(c::slope), a, Isa::all(1.0F)));
    auto p = Isa::all(c::coefficient(c::degree));
#pragma GCC unroll 8
    for (int i = c::degree - 1; i >= 0; --i) p = Isa::fma(t, p, Isa::all(c::coefficient(i)));
    typename Isa::Floats e[1] = {Isa::mul(Isa::all(-0.5F), Isa::mul(x, x))};
    exps_of_bounded<Isa>(e);
    const auto tail = Isa::mul(Isa::mul(t, p), e[0]);
    return Isa::fma(Isa::negate(a), tail, Isa::max(Isa::zero(), x));
}

/// The order of the operands keeps NaN: max returns its second one if either is NaN.
template <class Isa, Activation f>
[[gnu::always_inline]] inline typename Isa::Floats activated(typename Isa::Floats x) {
    if constexpr (f == Activation::gelu_exact) return gelu_exact<Isa>(x);
    if constexpr (f == Activation::gelu)
        return Isa::div(x, Isa::add(Isa::all(1.0F), exp_of<Isa>(gate_exponent<Isa, Gate::gelu>(x))));
    const auto positive = Isa::max(Isa::zero(), x);
    return f == Activation::relu_squared ? Isa::mul(positive, positive) : positive;
}

template <class Isa, Activation f>
void activate_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    map_rows<Isa>(job, first_row, end_row, [](typename Isa::Floats x) { return activated<Isa, f>(x); });
}

/// What a gate takes of its input, and what it is multiplied with. The order of the operands keeps NaN, as in
/// `activated`.
template <class Isa, Gate gate>
[[gnu::always_inline]] inline typename Isa::Floats gate_input(typename Isa::Floats x) {
    if constexpr (gate != Gate::swiglu_oai) return x;
    return Isa::min(Isa::all(swiglu_oai_limit), x);
}
template <class Isa, Gate gate>
[[gnu::always_inline]] inline typename Isa::Floats gate_factor(typename Isa::Floats up) {
    if constexpr (gate != Gate::swiglu_oai) return up;
    const auto limited = Isa::max(Isa::all(-swiglu_oai_limit), Isa::min(Isa::all(swiglu_oai_limit), up));
    return Isa::add(limited, Isa::all(1.0F));
}

/// out[i] = gate(gate) * up for N registers from column i on. With N == 1, only `left` columns may be there.
template <class Isa, Gate kind, int N, class GateAt, class UpAt>
[[gnu::always_inline]] inline void gate_mul_registers(const GateAt& gate_at, const UpAt& up_at, std::int64_t i,
                                                      std::int64_t left, bool bf16, std::byte* out) {
    using Floats = typename Isa::Floats;
    const auto load = [&](const float* from) __attribute__((always_inline)) {
        if constexpr (N > 1) return Isa::load(from);
        return load_some<Isa>(from, left);
    };
    Floats gate[N], e[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
        gate[v] = gate_input<Isa, kind>(load(gate_at(i + v * Isa::width)));
        e[v] = Isa::min(Isa::all(exp_constants::highest), gate_exponent<Isa, kind>(gate[v]));
    }
    exps_of_bounded<Isa>(e);
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
        const std::int64_t at = i + v * Isa::width;
        const Floats factor = gate_factor<Isa, kind>(load(up_at(at)));
        const Floats gated = Isa::mul(Isa::div(gate[v], Isa::add(Isa::all(1.0F), e[v])), factor);
        if constexpr (N > 1) {
            store_whole<Isa>(out, bf16, at, gated);
        } else {
            store_act<Isa>(out, bf16, at, left, gated);
        }
    }
}

/// gate_mul_registers for `width` columns; gate_at(i) and up_at(i) return the addresses of column i.
template <class Isa, Gate kind, class GateAt, class UpAt>
[[gnu::always_inline]] inline void gate_mul_row(const GateAt& gate_at, const UpAt& up_at, std::int64_t width, bool bf16,
                                                std::byte* out) {
    constexpr int at_once = exps_at_once<Isa>;
    std::int64_t i = 0;
    for (; i + at_once * Isa::width <= width; i += at_once * Isa::width)
        gate_mul_registers<Isa, kind, at_once>(gate_at, up_at, i, width - i, bf16, out);
    for (; i < width; i += Isa::width) gate_mul_registers<Isa, kind, 1>(gate_at, up_at, i, width - i, bf16, out);
}

template <class Isa, Gate kind>
void gate_mul_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* gates = job.x + r * 2 * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        const auto prefetched = [](const float* from) __attribute__((always_inline)) {
            prefetch_elements(from);
            return from;
        };
        gate_mul_row<Isa, kind>(
            [&](std::int64_t i) __attribute__((always_inline)) { return prefetched(gates + i); },
            [&](std::int64_t i) __attribute__((always_inline)) { return prefetched(gates + job.width + i); }, job.width,
            job.bf16, out);
        __builtin_memset(out + job.width * element, 0, (job.out_stride - job.width) * element);
    }
}

/// gate_mul for the alternating blocks of GatedJob, right after their matmul.
template <class Isa, Gate kind>
void gate_rows(const GatedJob& job) {
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = 0; r < job.num_rows; ++r) {
        const float* gates = job.sums + r * job.row_stride;
        std::byte* out = job.out + r * job.out_stride * element;
        const auto gate_at = [&](std::int64_t i) __attribute__((always_inline)) {
            return gates + i + i / lanes * lanes;
        };
        gate_mul_row<Isa, kind>(
            gate_at, [&](std::int64_t i) __attribute__((always_inline)) { return gate_at(i) + lanes; }, job.width,
            job.bf16, out);
    }
}

/// Device::soft_cap of elements [first, end).
template <class Isa>
void soft_cap(float* x, float cap, std::int64_t first, std::int64_t end) {
    using Floats = typename Isa::Floats;
    const Floats slope = Isa::all(2.0F / cap), twice = Isa::all(2.0F * cap);
    for (std::int64_t i = first; i < end; i += Isa::width) {
        const Floats e = exp_of<Isa>(Isa::mul(load_some<Isa>(x + i, end - i), slope));
        store_some<Isa>(x + i, end - i, Isa::sub(Isa::all(cap), Isa::div(twice, Isa::add(Isa::all(1.0F), e))));
    }
}

/// y[i] = x[i] cos[i] - x[i + half] sin[i], y[i + half] = x[i + half] cos[i] + x[i] sin[i], each operation rounded.
template <class Isa>
void rotate_row(const RotateJob& job) {
    using Floats = typename Isa::Floats;
    for (std::int64_t i = 0; i < job.half; i += Isa::width) {
        const std::int64_t left = job.half - i;
        prefetch_elements(job.x + i);
        prefetch_elements(job.x + job.half + i);
        const Floats low = load_some<Isa>(job.x + i, left), high = load_some<Isa>(job.x + job.half + i, left);
        const Floats c = load_some<Isa>(job.cos + i, left), s = load_some<Isa>(job.sin + i, left);
        const Floats turned_low = Isa::sub(Isa::mul(low, c), Isa::mul(high, s));
        const Floats turned_high = Isa::add(Isa::mul(high, c), Isa::mul(low, s));
        store_act<Isa>(job.out, job.bf16, i, left, turned_low);
        store_act<Isa>(job.out, job.bf16, job.half + i, left, turned_high);
    }
}

}  // namespace longhaul::kernels::cpu
