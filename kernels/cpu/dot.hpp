// How one group of weights (64 bytes: 16 outputs x one pair of bf16 or one f32) is multiplied with one word of input. A
// `Dot` defines how a step loads weights, how it broadcasts an input, and how both are added to the sum; tile.hpp does
// the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longhaul::kernels::cpu {

/// sum[i] += w[i] * x for the W registers of a row: the default if a `Dot` has no better way.
template <class Dot, int W, class Floats>
[[gnu::always_inline]] inline void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
    const Floats in = Dot::input(x);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) Dot::multiply_add(sum[i], w[i], in);
}

/// w[i] = the weights at place(i) in step `step`, for the W registers of a tile: one by one.
template <class Dot, int W, class Floats, class Places>
[[gnu::always_inline]] inline void weights_one_by_one(Floats (&w)[W], const Places& place, int step) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) w[i] = Dot::weights(place(i), step);
}

/// weights_one_by_one, or Dot::weights_of_step if it has one.
template <class Dot, int W, class Floats, class Places>
[[gnu::always_inline]] inline void weights_of_step(Floats (&w)[W], const Places& place, int step) {
    if constexpr (requires { Dot::weights_of_step(w, place, step); }) {
        Dot::weights_of_step(w, place, step);
    } else {
        weights_one_by_one<Dot>(w, place, step);
    }
}

/// f32 weights and inputs.
template <class Isa>
struct DotF32 {
    using Floats = typename Isa::Floats;
    static constexpr int steps = 1;
    static constexpr bool is_bf16 = false;
    static constexpr int max_rows = Isa::width == 16 ? 12 : 6;

    static Floats weights(const std::byte* from, int) { return Isa::load_words(from); }
    static Floats input(const std::uint32_t* word) { return Isa::all(*reinterpret_cast<const float*>(word)); }
    static void multiply_add(Floats& sum, Floats w, Floats x) { Isa::add_product(sum, w, x); }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        Isa::add_products(sum, w, reinterpret_cast<const float*>(x));
    }
};

/// bf16 by fused multiply-adds: step 0 takes the odd elements of the pairs, step 1 the even ones. The conversion is one
/// `and` or one shift besides the loads. Measured on Zen 3: with it, tiles of 6 rows x 2 registers and 4 x 3 reach 99 %
/// of the FMA peak on a core of their own, 86 to 89 % beside a busy neighbour (Avx2::load_odds).
template <class Isa>
struct DotBf16Fma {
    using Floats = typename Isa::Floats;
    static constexpr int steps = 2;
    static constexpr bool is_bf16 = true;
    static constexpr int max_rows = Isa::width == 16 ? 12 : 6;

    static Floats weights(const std::byte* from, int step) {
        return step == 0 ? Isa::load_odd(from) : Isa::load_even(from);
    }
    template <int W, class Places>
    static void weights_of_step(Floats (&w)[W], const Places& place, int step) {
        if constexpr (Isa::width == 8 && W == 2) {
            if (step == 0) return Isa::load_odds(w, place(0), place(1));
        }
        if constexpr (Isa::width == 8 && W == 3) {
            if (step == 0) return Isa::load_odds(w, place(0), place(1), place(2));
        }
        weights_one_by_one<DotBf16Fma>(w, place, step);
    }
    static Floats input(const std::uint32_t* word) { return Isa::all(*reinterpret_cast<const float*>(word)); }
    static void multiply_add(Floats& sum, Floats w, Floats x) { Isa::add_product(sum, w, x); }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        Isa::add_products(sum, w, reinterpret_cast<const float*>(x));
    }
};

/// bf16 with one step per pair and inputs as pairs: emulates vdpbf16ps with two instructions (avx512_emulated_kernels).
template <class Isa>
struct DotBf16Emulated {
    using Floats = typename Isa::Floats;
    static constexpr int steps = 1;
    static constexpr bool is_bf16 = true;
    static constexpr int max_rows = 12;
    static constexpr int max_matmul_rows = 16;

    static Floats weights(const std::byte* from, int) { return Isa::load_words(from); }
    static Floats input(const std::uint32_t* word) { return Isa::all(*reinterpret_cast<const float*>(word)); }
    static void multiply_add(Floats& sum, Floats w, Floats x) {
        Isa::add_product(sum, Isa::odd_of(w), Isa::odd_of(x));
        Isa::add_product(sum, Isa::even_of(w), Isa::even_of(x));
    }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        cpu::multiply_add_row<DotBf16Emulated>(sum, w, x);
    }
};

}  // namespace longhaul::kernels::cpu
