// Register operations for 8 floats (AVX2), the `Isa` of the kernel templates. Include only in translation units
// compiled with -mavx2 -mfma. The struct is in the anonymous namespace of each translation unit, so nothing of it is
// shared ("the wall" in kernel_table.hpp).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/eight_lanes.hpp"

namespace longhaul::kernels::cpu {
namespace {

struct Avx2 {
    using Floats = __m256;
    static constexpr int width = 8;

    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats all(float value) { return _mm256_set1_ps(value); }
    static Floats load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
    static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    /// fma(a, b, sum) with the result in the register of `sum`. Without this, the compiler moves 12 sums around the
    /// registers until one is spilled in every iteration, and the latency of that chain limits the loop.
    static void add_product(Floats& sum, Floats a, Floats b) {
        asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    }
    /// sum[i] += w[i] * *x. One asm block for the same reason: W sums, W weights and the input are all that fits in
    /// registers (measured on Zen 3, tiles of 4 rows x 3 and 6 rows x 2: 61 and 70 % of the peak without it, 75 and 82
    /// % with it).
    static void add_products(Floats (&sum)[2], const Floats (&w)[2], const float* x) {
        Floats in;
        asm("vbroadcastss %3, %2\n\t"
            "vfmadd231ps %4, %2, %0\n\t"
            "vfmadd231ps %5, %2, %1"
            : "+&x"(sum[0]), "+x"(sum[1]), "=&x"(in)
            : "m"(*x), "x"(w[0]), "x"(w[1]));
    }
    static void add_products(Floats (&sum)[3], const Floats (&w)[3], const float* x) {
        Floats in;
        asm("vbroadcastss %4, %3\n\t"
            "vfmadd231ps %5, %3, %0\n\t"
            "vfmadd231ps %6, %3, %1\n\t"
            "vfmadd231ps %7, %3, %2"
            : "+&x"(sum[0]), "+&x"(sum[1]), "+x"(sum[2]), "=&x"(in)
            : "m"(*x), "x"(w[0]), "x"(w[1]), "x"(w[2]));
    }
    /// Prevents the compiler from loading from `at` before `sum` is computed: an early load costs a register, and a
    /// tile needs all of them.
    template <class T>
    static void load_after(const T*& at, Floats& sum) {
        asm("" : "+r"(at), "+x"(sum));
    }
    /// a > b ? a : b, so b where either is NaN.
    static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
    /// a < b ? a : b, so b where either is NaN.
    static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
    /// Lanes that scale_where keeps.
    using Mask = Floats;
    /// x >= bound or NaN.
    static Mask not_below(Floats x, float bound) { return _mm256_cmp_ps(x, all(bound), _CMP_NLT_UQ); }
    static Floats abs(Floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }
    static Floats negate(Floats x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0F)); }
    /// here ? x * 2^n : 0, for any x and n in the other lanes; `sum`: n + 1.5 * 2^23 (exp_constants.hpp).
    static Floats scale_where(Mask here, Floats x, Floats, Floats sum) {
        const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(sum), 23);
        const __m256i power = _mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000));
        return _mm256_and_ps(here, mul(x, _mm256_castsi256_ps(power)));
    }
    /// The nearest bf16 (ties to even, NaN stays NaN), as an f32.
    static Floats round_bf16(Floats x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_blendv_epi8(sum, quiet, nan), high));
    }
    /// round_bf16 for results of arithmetic on bf16 numbers: their NaNs are quiet with zero low bits, so rounding keeps
    /// them NaN.
    static Floats round_bf16_quiet(Floats x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static void store_bf16(std::byte* to, Floats x) {
        const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x)), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
    }
    /// For results of arithmetic, in which denormals are already flushed.
    static void store_bf16_quiet(std::byte* to, Floats x) { store_bf16(to, x); }
    static void store_bf16_quiet(std::byte* to, Floats low, Floats high) {
        store_bf16(to, low);
        store_bf16(to + 16, high);
    }
    /// Maximum over all lanes; no lane may be NaN.
    static float largest(Floats x) { return largest_of_eight(x); }
    /// Sum over 16 lanes as a balanced tree: i with i + 8, then + 4, + 2, + 1.
    static float lane_total(const Floats (&sums)[2]) { return total_of_eight(_mm256_add_ps(sums[0], sums[1])); }
    static Floats load_words(const std::byte* from) { return _mm256_load_ps(reinterpret_cast<const float*>(from)); }
    /// The odd (high) and even (low) bf16 of each 32-bit lane, widened.
    static Floats odd_of(Floats pairs) {
        return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static Floats even_of(Floats pairs) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
    }
    /// Shifts the words of all lanes to the left.
    static Floats shift_up(Floats x, int bits) {
        return _mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(x), _mm_cvtsi32_si128(bits)));
    }
    /// odd_of(load_words(from)) in one asm block, loaded again each time: if the pairs were kept between two uses, they
    /// would push sums out of the registers. The mask stays in memory, because a tile needs all 16 registers.
    static Floats load_odd(const std::byte* from) {
        Floats odd;
        asm("vmovaps %1, %0\n\t"
            "vandps %2, %0, %0"
            : "=x"(odd)
            : "m"(floats_at(from)), "m"(high_halves_mask()));
        return odd;
    }
    /// load_odd for several words. The register for the last word holds the mask until then, so each word costs one
    /// operation and one load less. (If the core's other hardware thread, perhaps of another virtual machine, takes
    /// every second cycle of the decoder, the number of operations is the limit: measured on Zen 3.)
    static void load_odds(Floats (&odd)[2], const std::byte* a, const std::byte* b) {
        asm("vmovaps %4, %1\n\t"
            "vandps %2, %1, %0\n\t"
            "vandps %3, %1, %1"
            : "=&x"(odd[0]), "=&x"(odd[1])
            : "m"(floats_at(a)), "m"(floats_at(b)), "m"(high_halves_mask()));
    }
    static void load_odds(Floats (&odd)[3], const std::byte* a, const std::byte* b, const std::byte* c) {
        asm("vmovaps %6, %2\n\t"
            "vandps %3, %2, %0\n\t"
            "vandps %4, %2, %1\n\t"
            "vandps %5, %2, %2"
            : "=&x"(odd[0]), "=&x"(odd[1]), "=&x"(odd[2])
            : "m"(floats_at(a)), "m"(floats_at(b)), "m"(floats_at(c)), "m"(high_halves_mask()));
    }
    static Floats load_even(const std::byte* from) {
        Floats even;
        asm("vmovaps %1, %0\n\t"
            "vpslld $16, %0, %0"
            : "=x"(even)
            : "m"(floats_at(from)));
        return even;
    }
    /// 16 bytes as 8 pairs of 16-bit integers, one pair per lane.
    static Floats widen_bytes(const std::byte* from) {
        return _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
    }
    /// sum + the products of both 16-bit halves, in integers, lane by lane.
    static void add_short_products(Floats& sum, Floats a, Floats b) {
        const __m256i products = _mm256_madd_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b));
        sum = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), products));
    }
    /// Converts integers (as bits in `x`) to floats.
    static Floats from_int(Floats x) { return _mm256_cvtepi32_ps(_mm256_castps_si256(x)); }
    /// Stores the low 16 bits of each lane.
    static void store_low_halves(std::byte* to, Floats x) {
        const __m256i low = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
    }
    static Floats load_bf16(const std::byte* from) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }

    /// Scratch slots to pick from a page of 64: `count` <= 16 numbers, less `first`. Those outside 0..63 are not on the
    /// page.
    struct Places {
        const std::int32_t* numbers;
        std::int64_t count, first;

        static Places of(const std::int32_t* numbers, std::int64_t count, std::int64_t first) {
            return {numbers, count, first};
        }
    };
    /// to[i] = from[place i] for the places on the page. `few`: all of them are below 16.
    static void store_picked(float* to, const float* from, const Places& places, bool /*few*/) {
        for (std::int64_t i = 0; i < places.count; ++i) {
            const std::int64_t place = places.numbers[i] - places.first;
            if (place >= 0 && place < 64) to[i] = from[place];
        }
    }
    /// Writes -infinity behind `count` floats, up to the next multiple of 16.
    static void pad_with_lowest(float* row, std::int64_t count) {
        for (std::int64_t i = count; i % 16 != 0; ++i) row[i] = -__builtin_inff();
    }

    using Ints = __m256i;  ///< 8 x 32-bit, or 16-bit integers, or bytes
    static Ints no_ints() { return _mm256_setzero_si256(); }
    static Ints all_ints(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
    static Ints load_ints(const std::byte* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }
    static void store_ints(std::byte* to, Ints x) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), x); }
    static Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
    static Ints add_bytes(Ints a, Ints b) { return _mm256_add_epi8(a, b); }
    static Ints add_shorts(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
    static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
    static Ints low_halves(Ints bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f)); }
    static Ints high_halves(Ints bytes) { return low_halves(_mm256_srli_epi16(bytes, 4)); }
    static Ints flip_sign_bits(Ints bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)); }
    static Ints magnitude_of_bytes(Ints bytes) { return _mm256_abs_epi8(bytes); }
    static Ints bytes_with_sign_of(Ints bytes, Ints sign) { return _mm256_sign_epi8(bytes, sign); }
    /// Unsigned bytes times signed bytes, neighbours added, in 16 bits with saturation.
    static Ints pairs_of_byte_products(Ints a, Ints b) { return _mm256_maddubs_epi16(a, b); }
    static Ints add_pairs(Ints shorts) { return _mm256_madd_epi16(shorts, _mm256_set1_epi16(1)); }
    /// sum + the products of 4 unsigned and 4 signed bytes, exact: emulates vpdpbusd, for tests of the blocking.
    static Ints add_byte_products(Ints sum, Ints a, Ints b) {
        const Ints even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                                            _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
        const Ints odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
        return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
    }

  private:
    static const Floats& floats_at(const std::byte* from) { return *reinterpret_cast<const Floats*>(from); }
    static const Floats& high_halves_mask() {
        alignas(32) static constexpr std::uint32_t mask[8] = {0xffff0000U, 0xffff0000U, 0xffff0000U, 0xffff0000U,
                                                              0xffff0000U, 0xffff0000U, 0xffff0000U, 0xffff0000U};
        return *reinterpret_cast<const Floats*>(mask);
    }
};

}  // namespace
}  // namespace longhaul::kernels::cpu
