// Tiles whose sums, weights and inputs need more registers than there are.
//
// Beside its sums a tile of two registers of outputs needs two registers of weights and one of inputs. AVX-512's 32
// hold those of 14 rows; of 15 and 16 rows some sums wait in memory. To store a sum and load it again takes as long as
// a group, so every second group takes the rows backwards: sums stored at the beginning of one are needed at the end
// of the next. (GCC 12 sends one more through memory, at no cost that was seen.)
#pragma once

#include <cstdint>

#include "kernels/cpu/dot.hpp"

namespace longhaul::kernels::cpu {

/// Rows of a tile whose second sums find no room.
template <class Isa, int R, int W>
constexpr int spilled_rows = Isa::width == 16 && W == 2 && 2 * R + 3 > 32 ? 2 * R + 3 - 32 : 0;

/// The second sums of the first and of the last `Waiting` rows: each of them waits during every second group.
template <class Isa, int R, int Waiting>
class SpilledSums {
  public:
    [[gnu::always_inline]] void put(int r, typename Isa::Floats sum) {
        Isa::store(place_of(r), sum);
        asm volatile("" : "+m"(sums_));  // or the compiler keeps it in a register, and chooses others to leave
    }
    [[gnu::always_inline]] typename Isa::Floats get(int r) { return Isa::load(place_of(r)); }

  private:
    static_assert(2 * Waiting <= R);
    [[gnu::always_inline]] float* place_of(int r) { return sums_[r < Waiting ? r : r - (R - 2 * Waiting)]; }

    alignas(64) float sums_[2 * Waiting][Isa::width];
};

/// One group of a tile of one step. From the first row to the last, or `Back`: the rows it begins with wait when it
/// ends, those it ends with when it begins.
template <bool Back, class Isa, class Dot, int R, int Waiting, class Places>
[[gnu::always_inline]] inline void multiply_group_in_turn(typename Isa::Floats (&sum)[R][2],
                                                          SpilledSums<Isa, R, Waiting>& waiting, const Places& place,
                                                          const std::uint32_t* x) {
    static_assert(Dot::steps == 1);
    typename Isa::Floats weight[2];
    weights_of_step<Dot>(weight, place, 0);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        const int r = Back ? R - 1 - i : i;
        if (i >= R - Waiting) sum[r][1] = waiting.get(r);
        Dot::multiply_add_row(sum[r], weight, x + r);
        if (i < Waiting) waiting.put(r, sum[r][1]);
    }
}

/// All groups of a slice: with_next_group(multiply) calls multiply(places, inputs) for the next one.
template <class Isa, class Dot, int R, class WithNextGroup>
[[gnu::always_inline]] inline void multiply_slice_in_turn(typename Isa::Floats (&sum)[R][2], std::int64_t num_groups,
                                                          const WithNextGroup& with_next_group) {
    constexpr int num_waiting = spilled_rows<Isa, R, 2>;
    SpilledSums<Isa, R, num_waiting> waiting;
    const auto forth = [&](const auto& place, const std::uint32_t* x) __attribute__((always_inline)) {
        multiply_group_in_turn<false, Isa, Dot>(sum, waiting, place, x);
    };
    const auto back = [&](const auto& place, const std::uint32_t* x) __attribute__((always_inline)) {
        multiply_group_in_turn<true, Isa, Dot>(sum, waiting, place, x);
    };
    const auto get_from = [&](int first) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int r = first; r < first + num_waiting; ++r) sum[r][1] = waiting.get(r);
    };
#pragma GCC unroll 16
    for (int r = R - num_waiting; r < R; ++r) waiting.put(r, sum[r][1]);
    for (std::int64_t g = 0; g + 1 < num_groups; g += 2) {
        with_next_group(forth);
        with_next_group(back);
    }
    if (num_groups % 2 == 0) return get_from(R - num_waiting);
    with_next_group(forth);
    get_from(0);
}

}  // namespace longhaul::kernels::cpu
