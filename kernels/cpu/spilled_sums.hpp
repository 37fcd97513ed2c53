// Manual register spilling for tiles (tile.hpp) whose accumulators, weights and inputs do not fit in the registers.
//
// Besides its accumulators, a tile of two registers of outputs needs two registers of weights and one of inputs.
// AVX-512's 32 registers suffice for 14 rows; with 15 and 16 rows, some accumulators are spilled to memory. A store and
// reload takes as long as a group, so every second group processes the rows in reverse: accumulators stored at the
// beginning of one group are needed at the end of the next. (GCC 12 spills one more, at no measurable cost.)
#pragma once

#include <cstdint>

#include "kernels/cpu/dot.hpp"

namespace longhaul::kernels::cpu {

/// Number of rows of a tile whose second accumulator does not fit in the registers.
template <class Isa, int R, int W>
constexpr int spilled_rows = Isa::width == 16 && W == 2 && 2 * R + 3 > 32 ? 2 * R + 3 - 32 : 0;

/// The second accumulators of the first and of the last `Spilled` rows. Each is in memory during every second group.
template <class Isa, int R, int Spilled>
class SpilledSums {
  public:
    [[gnu::always_inline]] void put(int r, typename Isa::Floats sum) {
        Isa::store(place_of(r), sum);
        asm volatile("" : "+m"(sums_));  // or the compiler keeps it in a register and spills others
    }
    [[gnu::always_inline]] typename Isa::Floats get(int r) { return Isa::load(place_of(r)); }

  private:
    static_assert(2 * Spilled <= R);
    [[gnu::always_inline]] float* place_of(int r) { return sums_[r < Spilled ? r : r - (R - 2 * Spilled)]; }

    alignas(64) float sums_[2 * Spilled][Isa::width];
};

/// Multiplies one group of a tile whose `Dot` has one step. Rows are processed from first to last, or in reverse if
/// `Back`. The rows processed first are spilled when the group ends, the rows processed last when it begins.
template <bool Back, class Isa, class Dot, int R, int Spilled, class Places>
[[gnu::always_inline]] inline void multiply_group_spilled(typename Isa::Floats (&sum)[R][2],
                                                          SpilledSums<Isa, R, Spilled>& spilled, const Places& place,
                                                          const std::uint32_t* x) {
    static_assert(Dot::steps == 1);
    typename Isa::Floats weight[2];
    weights_of_step<Dot>(weight, place, 0);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        const int r = Back ? R - 1 - i : i;
        if (i >= R - Spilled) sum[r][1] = spilled.get(r);
        Dot::multiply_add_row(sum[r], weight, x + r);
        if (i < Spilled) spilled.put(r, sum[r][1]);
    }
}

/// Multiplies all groups of a slice: with_next_group(multiply) calls multiply(places, inputs) for the next group.
template <class Isa, class Dot, int R, class WithNextGroup>
[[gnu::always_inline]] inline void multiply_slice_spilled(typename Isa::Floats (&sum)[R][2], std::int64_t num_groups,
                                                          const WithNextGroup& with_next_group) {
    constexpr int num_spilled = spilled_rows<Isa, R, 2>;
    SpilledSums<Isa, R, num_spilled> spilled;
    const auto forth = [&](const auto& place, const std::uint32_t* x) __attribute__((always_inline)) {
        multiply_group_spilled<false, Isa, Dot>(sum, spilled, place, x);
    };
    const auto back = [&](const auto& place, const std::uint32_t* x) __attribute__((always_inline)) {
        multiply_group_spilled<true, Isa, Dot>(sum, spilled, place, x);
    };
    const auto get_from = [&](int first) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int r = first; r < first + num_spilled; ++r) sum[r][1] = spilled.get(r);
    };
#pragma GCC unroll 16
    for (int r = R - num_spilled; r < R; ++r) spilled.put(r, sum[r][1]);
    for (std::int64_t g = 0; g + 1 < num_groups; g += 2) {
        with_next_group(forth);
        with_next_group(back);
    }
    if (num_groups % 2 == 0) return get_from(R - num_spilled);
    with_next_group(forth);
    get_from(0);
}

}  // namespace longhaul::kernels::cpu
