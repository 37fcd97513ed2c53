// How a group of quantized weights (64 bytes: 16 outputs x 4 int8 or 8 int4 inputs) is multiplied with its inputs, 4
// int8 per word (used by cpu/quantized.hpp). The sum of a block is exact in integers, so its order is free. Stored
// weights are q + Dot::offset, unsigned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

// sums_words: sums are 32-bit from the first group on, so that they can start with the correction for the offset.
// rows_outside: a tile loads its weights once and iterates over rows; otherwise it loads weight by weight.

/// int8 with the instruction unsigned x signed bytes -> 32 bits (VNNI).
template <class Isa>
struct DotInt8 {
    using Ints = typename Isa::Ints;
    using Weights = Ints;
    static constexpr std::int64_t block = 64;  ///< inputs that share a scale
    static constexpr int steps = 1;            ///< words per group
    static constexpr int max_rows = 6;
    static constexpr int latency = 8;  ///< number of sums that keeps the execution units busy
    static constexpr bool sums_words = true;
    static constexpr bool rows_outside = true;
    static constexpr int offset = 128;

    static Weights weights(const std::byte* from) { return Isa::load_ints(from); }
    static void multiply_add(Ints& sum, Weights w, const std::uint32_t* word, std::int64_t) {
        sum = Isa::add_byte_products(sum, w, Isa::all_ints(*word));
    }
    static Ints total(Ints sum) { return sum; }
};

/// int8 without VNNI: unsigned x signed bytes -> 16 bits saturates, but |w| x (x with the sign of w) does not.
template <class Isa>
struct DotInt8Signed {
    using Ints = typename Isa::Ints;
    struct Weights {
        Ints magnitude, value;
    };
    static constexpr std::int64_t block = 64;
    static constexpr int steps = 1;
    static constexpr int max_rows = 4;
    static constexpr int latency = 1;
    static constexpr bool sums_words = false;
    static constexpr bool rows_outside = false;
    static constexpr int offset = 0;  ///< `weights` removes it

    static Weights weights(const std::byte* from) {
        const Ints value = Isa::flip_sign_bits(Isa::load_ints(from));
        return {Isa::magnitude_of_bytes(value), value};
    }
    static void multiply_add(Ints& sum, const Weights& w, const std::uint32_t* word, std::int64_t) {
        const Ints x = Isa::bytes_with_sign_of(Isa::all_ints(*word), w.value);
        sum = Isa::add_ints(sum, Isa::add_pairs(Isa::pairs_of_byte_products(w.magnitude, x)));
    }
    static Ints total(Ints sum) { return sum; }
};

/// int4: the low nibbles of a word's bytes are inputs 0..3 of the group, the high nibbles 4..7.
template <class Isa>
struct DotInt4 {
    using Ints = typename Isa::Ints;
    struct Weights {
        Ints low, high;
    };
    static constexpr std::int64_t block = 32;
    static constexpr int steps = 2;
    static constexpr int max_rows = 6;
    static constexpr int latency = 4;
    static constexpr bool sums_words = true;
    static constexpr bool rows_outside = true;
    static constexpr int offset = 8;

    static Weights weights(const std::byte* from) {
        const Ints both = Isa::load_ints(from);
        return {Isa::low_halves(both), Isa::high_halves(both)};
    }
    /// `stride`: words from the first step to the second.
    static void multiply_add(Ints& sum, const Weights& w, const std::uint32_t* word, std::int64_t stride) {
        sum = Isa::add_byte_products(sum, w.low, Isa::all_ints(word[0]));
        sum = Isa::add_byte_products(sum, w.high, Isa::all_ints(word[stride]));
    }
    static Ints total(Ints sum) { return sum; }
};

/// int4 without VNNI, summed in 16 bits: the 16 products per lane of a block are at most 16 x 15 x 127 = 30480.
template <class Isa>
struct DotInt4Pairs {
    using Ints = typename Isa::Ints;
    using Weights = typename DotInt4<Isa>::Weights;
    static constexpr std::int64_t block = 32;
    static constexpr int steps = 2;
    static constexpr int max_rows = 4;
    static constexpr int latency = 1;
    static constexpr bool sums_words = false;
    static constexpr bool rows_outside = false;
    static constexpr int offset = 8;

    static Weights weights(const std::byte* from) { return DotInt4<Isa>::weights(from); }
    static void multiply_add(Ints& sum, const Weights& w, const std::uint32_t* word, std::int64_t stride) {
        sum = Isa::add_shorts(sum, Isa::pairs_of_byte_products(w.low, Isa::all_ints(word[0])));
        sum = Isa::add_shorts(sum, Isa::pairs_of_byte_products(w.high, Isa::all_ints(word[stride])));
    }
    static Ints total(Ints sum) { return Isa::add_pairs(sum); }
};

}  // namespace longhaul::kernels::cpu
