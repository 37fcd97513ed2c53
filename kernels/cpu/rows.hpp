// Operations on rows: norms and activations, and the exponential they share with attention.
#pragma once

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/exp_constants.hpp"

namespace longhaul::kernels::cpu {

/// Asks for the elements that follow those at `x` by 2 KB: products leave half of a row in the cache of another core,
/// and to fetch them from behind another third cache lasts 250 ns (Zen 5, 16 rows: SiLU 0.76 of its time, rotation
/// 0.91).
[[gnu::always_inline]] inline void ask_for_elements(const float* x) {
    __builtin_prefetch(x + 512, 0, 3);
}

/// Registers of exponentials at once that a loop should take.
template <class Isa>
constexpr int exps_at_once = Isa::width == 16 ? 4 : 2;

/// e^x for x <= highest (or NaN), step by step as exp_constants.hpp states it, in place. Several registers at once keep
/// the processor's units busy while each waits for itself.
template <class Isa, int N>
[[gnu::always_inline]] inline void exps_of_bounded(typename Isa::Floats (&x)[N]) {
    namespace c = exp_constants;
    using Floats = typename Isa::Floats;
    Floats t[N], n[N], r[N], q[N], clamped[N];
    const auto each = [](const auto& step) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) step(i);
    };
    const auto fold = [&](float constant) __attribute__((always_inline)) {
        each([&](int i) __attribute__((always_inline)) { q[i] = Isa::fma(r[i], q[i], Isa::all(constant)); });
    };
    each([&](int i) __attribute__((always_inline)) { clamped[i] = Isa::max(Isa::all(c::lowest), x[i]); });
    each([&](int i) __attribute__((always_inline)) {
        t[i] = Isa::fma(clamped[i], Isa::all(c::log2_e), Isa::all(c::round_magic));
    });
    each([&](int i) __attribute__((always_inline)) { n[i] = Isa::sub(t[i], Isa::all(c::round_magic)); });
    each([&](int i) __attribute__((always_inline)) { r[i] = Isa::fma(n[i], Isa::all(-c::ln2_high), clamped[i]); });
    each([&](int i) __attribute__((always_inline)) { r[i] = Isa::fma(n[i], Isa::all(-c::ln2_low), r[i]); });
    each([&](int i) __attribute__((always_inline)) { q[i] = Isa::all(c::c4); });
    fold(c::c3);
    fold(c::c2);
    fold(c::c1);
    fold(c::c0);
    each([&](int i) __attribute__((always_inline)) {
        q[i] = Isa::add(Isa::fma(Isa::mul(r[i], r[i]), q[i], r[i]), Isa::all(1.0F));
    });
    each([&](int i) __attribute__((always_inline)) {
        x[i] = Isa::zero_below(x[i], Isa::all(c::lowest), Isa::mul(q[i], Isa::power_of_two(t[i])));
    });
}

/// e^x of any x.
template <class Isa>
typename Isa::Floats exp_of(typename Isa::Floats x) {
    typename Isa::Floats bounded[1] = {Isa::min(Isa::all(exp_constants::highest), x)};
    exps_of_bounded<Isa>(bounded);
    return bounded[0];
}

/// e^x of one value, by the same code.
template <class Isa>
float exp_of_one(float x) {
    float out[Isa::width];
    Isa::store(out, exp_of<Isa>(Isa::all(x)));
    return out[0];
}

/// Loads up to a register from the end of an array, zeros beyond.
template <class Isa>
typename Isa::Floats load_some(const float* from, std::int64_t count) {
    if (count >= Isa::width) return Isa::load(from);
    float rest[Isa::width] = {};
    for (std::int64_t i = 0; i < count; ++i) rest[i] = from[i];
    return Isa::load(rest);
}

/// Stores `count` leading values of a register, rounded to bf16 or as f32.
template <class Isa>
void store_act(std::byte* row, bool bf16, std::int64_t index, std::int64_t count, typename Isa::Floats x) {
    constexpr std::int64_t width = Isa::width;
    alignas(64) std::byte rest[width * 4];
    std::byte* to = row + index * (bf16 ? 2 : 4);
    std::byte* target = count >= width ? to : rest;
    if (bf16) {
        Isa::store_bf16(target, x);
    } else {
        Isa::store(reinterpret_cast<float*>(target), x);
    }
    if (count < width) __builtin_memcpy(to, rest, static_cast<std::size_t>(count * (bf16 ? 2 : 4)));
}

template <class Isa>
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
                const Floats value = load_some<Isa>(x + at, job.width - at);
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
        __builtin_memset(out + job.width * element, 0,
                         static_cast<std::size_t>((job.out_stride - job.width) * element));
    }
}

/// x - mean, as load_some loads: zeros beyond the end, which add nothing to a sum of squares.
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
        __builtin_memset(out + job.width * element, 0,
                         static_cast<std::size_t>((job.out_stride - job.width) * element));
    }
}

/// out[i] = f(x[i]), registers at a time.
template <class Isa, class Function>
void map_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row, Function function) {
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* x = job.x + r * job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        for (std::int64_t i = 0; i < job.width; i += Isa::width) {
            const std::int64_t left = job.width - i;
            store_act<Isa>(out, job.bf16, i, left, function(load_some<Isa>(x + i, left)));
        }
        __builtin_memset(out + job.width * element, 0,
                         static_cast<std::size_t>((job.out_stride - job.width) * element));
    }
}

template <class Isa>
void relu_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    // The order of the two keeps NaN: max gives its second where either is one.
    map_rows<Isa>(job, first_row, end_row, [](typename Isa::Floats x) { return Isa::max(Isa::zero(), x); });
}

template <class Isa>
void round_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    map_rows<Isa>(job, first_row, end_row, [](typename Isa::Floats x) { return x; });
}

template <class Isa>
void silu_mul_rows(const RowsJob& job, std::int64_t first_row, std::int64_t end_row) {
    using Floats = typename Isa::Floats;
    const std::int64_t element = job.bf16 ? 2 : 4;
    for (std::int64_t r = first_row; r < end_row; ++r) {
        const float* gates = job.x + r * 2 * job.width;
        const float* ups = gates + job.width;
        std::byte* out = job.out + r * job.out_stride * element;
        const auto registers = [&]<int N>(std::int64_t i) __attribute__((always_inline)) {
            Floats gate[N], e[N];
#pragma GCC unroll 4
            for (int v = 0; v < N; ++v) {
                const std::int64_t at = i + v * Isa::width;
                ask_for_elements(gates + at);
                ask_for_elements(ups + at);
                gate[v] = load_some<Isa>(gates + at, job.width - at);
                e[v] = Isa::min(Isa::all(exp_constants::highest), Isa::negate(gate[v]));
            }
            exps_of_bounded<Isa>(e);
#pragma GCC unroll 4
            for (int v = 0; v < N; ++v) {
                const std::int64_t at = i + v * Isa::width;
                const Floats up = load_some<Isa>(ups + at, job.width - at);
                const Floats gated = Isa::div(gate[v], Isa::add(Isa::all(1.0F), e[v]));
                store_act<Isa>(out, job.bf16, at, job.width - at, Isa::mul(gated, up));
            }
        };
        constexpr int at_once = exps_at_once<Isa>;
        std::int64_t i = 0;
        for (; i + at_once * Isa::width <= job.width; i += at_once * Isa::width) {
            registers.template operator()<at_once>(i);
        }
        for (; i < job.width; i += Isa::width) registers.template operator()<1>(i);
        __builtin_memset(out + job.width * element, 0,
                         static_cast<std::size_t>((job.out_stride - job.width) * element));
    }
}

/// y[i] = x[i] cos[i] - x[i + half] sin[i], y[i + half] = x[i + half] cos[i] + x[i] sin[i], each operation rounded.
template <class Isa>
void rotate_row(const RotateJob& job) {
    using Floats = typename Isa::Floats;
    for (std::int64_t i = 0; i < job.half; i += Isa::width) {
        const std::int64_t left = job.half - i;
        ask_for_elements(job.x + i);
        ask_for_elements(job.x + job.half + i);
        const Floats low = load_some<Isa>(job.x + i, left), high = load_some<Isa>(job.x + job.half + i, left);
        const Floats c = load_some<Isa>(job.cos + i, left), s = load_some<Isa>(job.sin + i, left);
        const Floats turned_low = Isa::sub(Isa::mul(low, c), Isa::mul(high, s));
        const Floats turned_high = Isa::add(Isa::mul(high, c), Isa::mul(low, s));
        store_act<Isa>(job.out, job.bf16, i, left, turned_low);
        store_act<Isa>(job.out, job.bf16, job.half + i, left, turned_high);
    }
}

}  // namespace longhaul::kernels::cpu
