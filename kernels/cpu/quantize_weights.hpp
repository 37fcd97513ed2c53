// Quantizes weights to int8 and int4 while they are packed: quantize_block of kernels/quantize_block.hpp for 16 outputs
// at once, one output per lane. Each lane does the steps of quantize_block in the same order and gives the same bits
// (if threads that pack do not flush denormals).
#pragma once

#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

/// `Isa` only keeps the instances of the variants apart (see "the wall" in kernel_table.hpp).
template <class Isa>
struct WeightQuantizer {
    static constexpr int width = 8;
    using Floats = float __attribute__((vector_size(4 * width)));
    using Ints = std::int32_t __attribute__((vector_size(4 * width)));

    [[gnu::always_inline]] static Floats all(float value) { return Floats{} + value; }
    [[gnu::always_inline]] static Floats load(const float* from) {
        Floats values;
        __builtin_memcpy(&values, from, sizeof values);
        return values;
    }
    [[gnu::always_inline]] static Floats magnitude(Floats values) { return Floats(Ints(values) & 0x7fffffff); }

    /// Rounds finite numbers to the nearest even bf16, in the upper half of the word.
    [[gnu::always_inline]] static Floats rounded_to_bf16(Floats values) {
        const Ints bits = Ints(values);
        return Floats((bits + 0x7fff + ((bits >> 16) & 1)) & static_cast<std::int32_t>(0xffff0000U));
    }

    [[gnu::always_inline]] static Floats to_int(Floats values, Floats inverse, float low, float high) {
        const Floats to_nearest = all(12582912.0F);  // 1.5 * 2^23
        Floats whole = (values * inverse + to_nearest) - to_nearest;
        whole = whole < all(low) ? all(low) : whole;
        return all(high) < whole ? all(high) : whole;
    }

    [[gnu::always_inline]] static Floats extreme_of(const float* values, std::int64_t count) {
        Floats extreme = all(0.0F);
        for (std::int64_t i = 0; i < count; ++i) {
            const Floats value = load(values + i * lanes);
            const Ints keep = (magnitude(value) <= magnitude(extreme)) | (extreme != extreme);  // a NaN is kept
            extreme = keep ? extreme : value;
        }
        return extreme;
    }

    [[gnu::always_inline]] static bool any(Ints mask) {
        std::uint64_t words[width / 2], all = 0;
        __builtin_memcpy(words, &mask, sizeof words);
        for (const std::uint64_t word : words) all |= word;
        return all != 0;
    }

    /// Lanes of `of` in which all values are multiples of the lane's step.
    [[gnu::always_inline]] static Ints multiples(const float* values, std::int64_t count, Floats step, Ints of) {
        const Floats inverse = 1.0F / step, to_nearest = all(12582912.0F);
        for (std::int64_t i = 0; i < count; ++i) {
            const Floats value = load(values + i * lanes), whole = (value * inverse + to_nearest) - to_nearest;
            of &= ((Ints(whole * step) ^ Ints(value)) & 0x7fffffff) == 0;
            if (i % 2 == 1 && !any(of)) break;  // the second value ends it for most weights
        }
        return of;
    }

    /// common_step of quantize_block.hpp.
    [[gnu::always_inline]] static Floats common_step(const float* values, std::int64_t count, Floats extreme) {
        Floats step = all(0.0F);
        Ints searching = ~Ints{};
        for (int multiple = 1; multiple <= 15 && any(searching); ++multiple) {
            const Floats candidate = extreme / static_cast<float>(multiple);
            const Ints found = multiples(values, count, candidate, searching);
            step = found ? candidate : step;
            searching &= ~found;
        }
        return step;
    }

    [[gnu::always_inline]] static Floats error_of(const float* values, std::int64_t count, Floats scale) {
        const Floats inverse = 1.0F / scale;
        Floats error = all(0.0F);
        for (std::int64_t i = 0; i < count; ++i) {
            const Floats value = load(values + i * lanes);
            const Floats rest = value - to_int(value, inverse, -8.0F, 7.0F) * scale;
            error = error + rest * rest;
        }
        return error;
    }

    /// Tries several scales near "the largest becomes -8", and the common step, and takes the one with the least
    /// squared error.
    [[gnu::always_inline]] static Floats best_int4_scale(const float* values, std::int64_t count, Floats extreme) {
        constexpr float divisors[] = {-8.0F, -7.6F, -8.4F, -8.8F, -9.3F, 7.2F, 7.7F};
        constexpr int num_divisors = sizeof divisors / sizeof divisors[0];
        Floats scale[num_divisors], inverse[num_divisors], error[num_divisors];
#pragma GCC unroll 8
        for (int d = 0; d < num_divisors; ++d) {
            scale[d] = rounded_to_bf16(extreme / divisors[d]);
            inverse[d] = 1.0F / scale[d];
            error[d] = all(0.0F);
        }
        for (std::int64_t i = 0; i < count; ++i) {
            const Floats value = load(values + i * lanes);
#pragma GCC unroll 8
            for (int d = 0; d < num_divisors; ++d) {
                const Floats rest = value - to_int(value, inverse[d], -8.0F, 7.0F) * scale[d];
                error[d] = error[d] + rest * rest;
            }
        }
        Floats best = scale[0], least = error[0];
        const auto consider = [&](Floats candidate, Floats its_error, Ints where) {
            const Ints better = (its_error < least) & where;
            best = better ? candidate : best;
            least = better ? its_error : least;
        };
#pragma GCC unroll 8
        for (int d = 1; d < num_divisors; ++d) consider(scale[d], error[d], ~Ints{});
        const Floats step = common_step(values, count, extreme);
        const Ints has_step = step != all(0.0F);
        if (!any(has_step)) return best;
        const Floats rounded = rounded_to_bf16(has_step ? step : all(1.0F));
        consider(rounded, error_of(values, count, rounded), has_step);
        consider(-rounded, error_of(values, count, -rounded), has_step);
        return best;
    }

    static void run(const QuantizeWeightsJob& job) {
        constexpr std::int32_t infinity = 0x7f800000, smallest = (127 - 100) << 23;
        for (std::int64_t lane = 0; lane < lanes; lane += width) {
            const float* values = job.values + lane;
            const Floats extreme = extreme_of(values, job.count);
            const Ints bits = Ints(extreme) & 0x7fffffff;
            const Ints usable = (bits < infinity) & (bits >= smallest);
            const Floats safe = usable ? extreme : all(1.0F);
            const Floats scale =
                job.int8 ? rounded_to_bf16(magnitude(safe) / 127.0F) : best_int4_scale(values, job.count, safe);
            const Floats inverse = 1.0F / scale;
            const float low = job.int8 ? -127.0F : -8.0F, high = job.int8 ? 127.0F : 7.0F;
            for (std::int64_t i = 0; i < job.count; ++i) {
                const Floats whole = to_int(load(values + i * lanes), inverse, low, high);
                const Ints q = usable ? __builtin_convertvector(whole, Ints) : Ints{};
                __builtin_memcpy(job.q + i * lanes + lane, &q, sizeof q);
            }
            const Ints without = bits >= infinity ? Ints{} + 0x7fc0 : Ints{};
            const Ints scale_bits = usable ? (Ints(scale) >> 16) & 0xffff : without;
            for (int l = 0; l < width; ++l) job.scales[lane + l] = static_cast<std::uint16_t>(scale_bits[l]);
        }
    }
};

}  // namespace longhaul::kernels::cpu
