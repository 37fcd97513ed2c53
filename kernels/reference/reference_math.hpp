// Sums and functions of numerics.hpp for single values; the order of operations is part of the contract.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/exp_constants.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels::reference {

/// e^x as exp_constants.hpp defines it. NaN stays NaN.
inline float exp_of(float x) {
    namespace c = exp_constants;
    const float below_highest = c::highest < x ? c::highest : x;
    const float clamped = c::lowest > below_highest ? c::lowest : below_highest;
    const float t = std::fma(clamped, c::log2_e, c::round_magic);
    const float n = t - c::round_magic;
    const float r = std::fma(n, -c::ln2_low, std::fma(n, -c::ln2_high, clamped));
    float q = std::fma(r, c::c4, c::c3);
    q = std::fma(r, q, c::c2);
    q = std::fma(r, q, c::c1);
    q = std::fma(r, q, c::c0);
    const float mantissa = std::fma(r * r, q, r) + 1.0F;
    const auto power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(t) << 23) + 0x3f800000U);
    return x < c::lowest ? 0.0F : mantissa * power;
}

/// See Device::soft_cap.
inline float soft_capped(float x, float cap) {
    return cap - 2.0F * cap / (1.0F + exp_of(x * (2.0F / cap)));
}

/// Sums of 1, 2, 4 or 8 slices, added as a balanced tree.
inline float tree_of_slices(std::array<float, 8> sums, int num_slices) {
    const auto count = static_cast<std::size_t>(num_slices);
    for (std::size_t step = 1; step < count; step *= 2) {
        for (std::size_t s = 0; s < count; s += 2 * step) sums[s] += sums[s + step];
    }
    return sums[0];
}

/// Sum of the products x(i) * y(i) of bf16 values in Bf16Order::blocks.
template <class X, class Y>
float sum_in_blocks(std::int64_t count, const X& x, const Y& y) {
    float sum = 0.0F;
    for (std::int64_t block = 0; block < count; block += bf16_block) {
        std::array<float, 2> even_odd{};
        for (std::int64_t i = block; i < block + bf16_block; ++i) {
            float& to = even_odd[static_cast<std::size_t>(i % 2)];
            to = i < count ? std::fma(x(i), y(i), to) : std::fma(0.0F, 0.0F, to);
        }
        sum += even_odd[0] + even_odd[1];
    }
    return sum;
}

/// 16 partial sums, added as a balanced tree: i with i+8, then +4, +2, +1.
class LaneSum {
  public:
    /// Element `index` of the row joins lane index mod 16.
    void add(std::int64_t index, float value) { lane(index) += value; }
    void add_square(std::int64_t index, float value) { lane(index) = std::fma(value, value, lane(index)); }

    [[nodiscard]] float total() const {
        std::array<float, 16> sums = lanes_;
        for (std::size_t half = 8; half > 0; half /= 2) {
            for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
        }
        return sums[0];
    }

  private:
    float& lane(std::int64_t index) { return lanes_[index % 16]; }

    std::array<float, 16> lanes_{};
};

}  // namespace longhaul::kernels::reference
