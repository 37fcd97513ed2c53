// The inner loops of attention: tiles of R rows against keys (tokens across the lanes) and against values (dimensions
// across the lanes), accumulators in registers. Unlike the tiles of tile.hpp they read probabilities from unpacked
// rows, run over several pages without storing the accumulators, and prefetch the keys and values that are read next.
#pragma once

#include "kernels/cpu/dot.hpp"
#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/kv_prefetch.hpp"
#include "kernels/cpu/tile.hpp"

namespace longhaul::kernels::cpu {

/// int8 keys and values times 16-bit integers: pairs as in bf16, integer sums kept as bits in the float registers.
/// Twice the multiply-adds per instruction of f32, and exact in any order.
template <class Isa>
struct DotInt8Kv {
    using Floats = typename Isa::Floats;
    static constexpr int steps = 1;
    static constexpr bool is_bf16 = false;
    static constexpr bool is_int8 = true;
    static constexpr int max_rows = Isa::width == 16 ? 12 : 6;

    static Floats weights(const std::byte* from, int) { return Isa::widen_bytes(from); }
    static Floats input(const std::uint32_t* word) { return Isa::all(*reinterpret_cast<const float*>(word)); }
    static void multiply_add(Floats& sum, Floats w, Floats x) { Isa::add_short_products(sum, w, x); }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        cpu::multiply_add_row<DotInt8Kv>(sum, w, x);
    }
};

template <class Dot>
constexpr bool is_int8_kv = requires {
    Dot::is_int8;
};

/// Elements per output in a group.
template <class Dot>
constexpr std::int64_t elements_of_group = Dot::is_bf16 || is_int8_kv<Dot> ? 2 : 1;

template <class Dot>
constexpr std::int64_t kv_group_bytes = is_int8_kv<Dot> ? group_bytes / 2 : group_bytes;

/// Queries as a tile reads them: [group][step][R].
template <class Dot, int R>
struct QueryWords {
    static constexpr std::int64_t of_group = Dot::steps * R;
    static const std::uint32_t* at(const std::uint32_t* x, int step, int r) { return x + step * R + r; }
};

/// Probabilities as softmax stores them: [R][score_stride], ascending positions. If there are two steps, the first
/// takes the odd position, which is stored second.
template <class Dot>
struct ProbabilityWords {
    static constexpr std::int64_t of_group = Dot::steps;
    static const std::uint32_t* at(const std::uint32_t* x, int step, int r) {
        return x + r * score_stride + (Dot::steps - 1 - step);
    }
};

/// Cache lines that a tile of `num_rows` rows prefetches per iteration: as many as it reads. (For few rows of int8
/// twice as many, so that each line is requested twice: one row at 100K positions takes 8 % less time on Zen 5, for
/// unknown reasons.)
template <class Isa, class Dot>
[[gnu::always_inline]] constexpr int lines_per_turn(std::int64_t num_rows) {
    if (Isa::width == 16) return is_int8_kv<Dot> && num_rows <= 4 ? 4 : 2;
    return num_rows == 1 ? 4 : 2;
}

/// Adds one group to the sums.
template <class Isa, class Dot, class Words, int W, int R, int First>
[[gnu::always_inline]] inline void add_group(typename Isa::Floats (&sum)[R][W], const std::byte* w,
                                             std::int64_t block_stride, const std::uint32_t* x) {
    using Floats = typename Isa::Floats;
    constexpr int regs = lanes / Isa::width;
    constexpr std::int64_t reg_bytes = kv_group_bytes<Dot> / regs;
#pragma GCC unroll 2
    for (int step = 0; step < Dot::steps; ++step) {
        // Forces a reload of the weights in each step. Held across steps, they would push accumulators out of the
        // registers.
        asm("" : "+r"(w));
        const auto weight_at = [&](int i) {
            return Dot::weights(w + (First + i) / regs * block_stride + (First + i) % regs * reg_bytes, step);
        };
        // The fewer of weights and inputs stay in registers; the others are loaded one by one.
        if constexpr (R < W) {
            Floats in[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) in[r] = Dot::input(Words::at(x, step, r));
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                const Floats weight = weight_at(i);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) Dot::multiply_add(sum[r][i], weight, in[r]);
                Isa::load_after(w, sum[R - 1][i]);
            }
        } else {
            Floats weight[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) weight[i] = weight_at(i);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) Dot::multiply_add_row(sum[r], weight, Words::at(x, step, r));
        }
    }
}

/// Adds `num_groups` groups to the sums. `First`: index of the tile's first register in its block.
template <class Isa, class Dot, class Words, int W, int R, int First>
[[gnu::always_inline]] inline void add_groups(typename Isa::Floats (&sum)[R][W], const std::byte* w,
                                              std::int64_t block_stride, const std::uint32_t* x,
                                              std::int64_t num_groups, Prefetcher<Isa>& next) {
    // With many rows, tile after tile reads the chunk from L2. A loop that has nothing to prefetch from memory
    // prefetches its own data (16 rows x 8 heads, 512 positions, Zen 5: saves an eighth of both matmuls).
    constexpr bool prefetches_own = Isa::width == 16 && R > 4;
    constexpr std::int64_t distance = 512;
    auto ahead = next.take(num_groups, w);
    const auto add_one = [&]() __attribute__((always_inline)) {
        add_group<Isa, Dot, Words, W, R, First>(sum, w, block_stride, x);
        w += kv_group_bytes<Dot>;
        x += Words::of_group;
    };
    if (prefetches_own && !ahead.is_active()) {
#pragma GCC unroll 4
        for (std::int64_t g = 0; g < num_groups; ++g) {
            __builtin_prefetch(w + distance, 0, 3);
            if constexpr (W > 1) __builtin_prefetch(w + block_stride + distance, 0, 3);
            add_one();
        }
        return;
    }
    for (std::int64_t g = 0; g < num_groups; ++g) {
        ahead.template prefetch<lines_per_turn<Isa, Dot>(R)>();
        add_one();
    }
}

/// Registers of outputs per tile of R rows. AVX2: 12 accumulators if the 16 registers allow it (tile.hpp), but two
/// tiles of 4 registers for two and three rows, since a page has 8 registers of tokens and a head often 8 of
/// dimensions. AVX-512: two blocks side by side, 2 or 4 KB apart; if four came from memory in one stream, the last
/// would be needed before it arrives (4 heads of 128 dimensions at 50K positions, Zen 5: a fifth of the time). int8
/// blocks are half as large, so few rows take four.
template <class Isa, class Dot, int R>
constexpr int attention_registers() {
    if (Isa::width == 16) return is_int8_kv<Dot> && R <= 4 ? 4 : 2;
    return R == 1 ? 8 : R <= 3 ? 4 : R == 4 ? 3 : 2;
}

/// Calls visit<W, First>(register) for the tiles that cover `num_registers` registers (whole blocks).
template <class Isa, class Dot, int R, class Visit>
void each_tile(std::int64_t num_registers, const Visit& visit) {
    constexpr int W = attention_registers<Isa, Dot, R>();
    constexpr int regs = lanes / Isa::width;
    std::int64_t at = 0;
    if constexpr (W % regs == 0) {
        for (; num_registers - at >= W; at += W) visit.template operator()<W, 0>(at);
    } else {
        for (; num_registers - at >= 2 * W; at += 2 * W) {
            visit.template operator()<W, 0>(at);
            visit.template operator()<W, 1>(at + W);
        }
    }
    if constexpr (W > 2 * regs) {
        for (; num_registers - at >= 2 * regs; at += 2 * regs) visit.template operator()<2 * regs, 0>(at);
    }
    if constexpr (W > regs) {
        for (; at < num_registers; at += regs) visit.template operator()<regs, 0>(at);
    }
}

template <class Isa, class Dot, int R>
std::int64_t tiles_in(std::int64_t num_registers) {
    std::int64_t count = 0;
    each_tile<Isa, Dot, R>(num_registers, [&]<int W, int First>(std::int64_t) { ++count; });
    return count;
}

}  // namespace longhaul::kernels::cpu
