// Register operations for 16 floats (AVX-512), the counterpart of isa_avx2.hpp with the same names. Include only in
// translation units compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/eight_lanes.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Some intrinsics are `maskz` with all lanes set, because GCC 12's plain ones cause warnings about variables in its
/// own header.
struct Avx512 {
    using Floats = __m512;
    static constexpr int width = 16;

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats all(float value) { return _mm512_set1_ps(value); }
    static Floats load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static void add_product(Floats& sum, Floats a, Floats b) { sum = fma(a, b, sum); }
    template <int W>
    static void add_products(Floats (&sum)[W], const Floats (&w)[W], const float* x) {
        for (int i = 0; i < W; ++i) add_product(sum[i], w[i], all(*x));
    }
    template <class T>
    static void load_after(const T*&, Floats&) {}
    static Floats max(Floats a, Floats b) { return _mm512_maskz_max_ps(0xffff, a, b); }
    static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
    using Mask = __mmask16;
    static Mask not_below(Floats x, float bound) { return _mm512_cmp_ps_mask(x, all(bound), _CMP_NLT_UQ); }
    static Floats abs(Floats x) { return _mm512_abs_ps(x); }
    static Floats negate(Floats x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0F)); }
    static Floats scale_where(Mask here, Floats x, Floats n, Floats) { return _mm512_maskz_scalef_ps(here, x, n); }
    static Floats round_bf16(Floats x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i rounded = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
        return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static Floats round_bf16_quiet(Floats x) { return round_bf16(x); }
    static void store_bf16(std::byte* to, Floats x) {
        const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(round_bf16(x)), 16);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(high));
    }
    static void store_bf16_quiet(std::byte* to, Floats x) { store_bf16(to, x); }
    static void store_bf16_quiet(std::byte* to, Floats low, Floats high) {
        store_bf16(to, low);
        store_bf16(to + 32, high);
    }
    template <int Half>
    static __m256 half_of(Floats x) {
        return _mm512_maskz_extractf32x8_ps(0xff, x, Half);
    }
    static float largest(Floats x) { return largest_of_eight(_mm256_max_ps(half_of<0>(x), half_of<1>(x))); }
    static float lane_total(const Floats (&sums)[1]) {
        return total_of_eight(_mm256_add_ps(half_of<0>(sums[0]), half_of<1>(sums[0])));
    }
    static Floats load_words(const std::byte* from) { return _mm512_load_ps(reinterpret_cast<const float*>(from)); }
    static Floats shift_up(Floats x, int bits) {
        return _mm512_castsi512_ps(_mm512_sll_epi32(_mm512_castps_si512(x), _mm_cvtsi32_si128(bits)));
    }
    static Floats odd_of(Floats pairs) {
        return _mm512_castsi512_ps(
            _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static Floats even_of(Floats pairs) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
    }
    static Floats load_odd(const std::byte* from) { return odd_of(load_words(from)); }
    static Floats load_even(const std::byte* from) { return even_of(load_words(from)); }
    static Floats widen_bytes(const std::byte* from) {
        return _mm512_castsi512_ps(_mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(from))));
    }
    static void add_short_products(Floats& sum, Floats a, Floats b) {
        sum = _mm512_castsi512_ps(
            _mm512_dpwssd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(a), _mm512_castps_si512(b)));
    }
    static Floats from_int(Floats x) { return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_castps_si512(x)); }
    static void store_low_halves(std::byte* to, Floats x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_castps_si512(x)));
    }
    static Floats load_bf16(const std::byte* from) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }

    struct Places {
        __m512i index;
        __mmask16 here;

        static Places of(const std::int32_t* numbers, std::int64_t count, std::int64_t first) {
            const __mmask16 read = all_below(count);
            const __m512i index =
                _mm512_sub_epi32(_mm512_maskz_loadu_epi32(read, numbers), _mm512_set1_epi32(static_cast<int>(first)));
            return {index, _mm512_mask_cmplt_epu32_mask(read, index, _mm512_set1_epi32(64))};
        }
    };
    static void store_picked(float* to, const float* from, const Places& places, bool few) {
        __m512 picked = _mm512_permutexvar_ps(places.index, load(from));
        if (!few) {
            const __m512 low = _mm512_permutex2var_ps(load(from), places.index, load(from + 16));
            const __m512 high = _mm512_permutex2var_ps(load(from + 32), places.index, load(from + 48));
            picked = _mm512_mask_blend_ps(_mm512_cmpge_epu32_mask(places.index, _mm512_set1_epi32(32)), low, high);
        }
        _mm512_mask_storeu_ps(to, places.here, picked);
    }
    static void pad_with_lowest(float* row, std::int64_t count) {
        const std::int64_t last = count / 16 * 16;
        if (last < count)
            store(row + last, _mm512_mask_loadu_ps(all(-__builtin_inff()), all_below(count - last), row + last));
    }

    using Ints = __m512i;
    static Ints no_ints() { return _mm512_setzero_si512(); }
    static Ints all_ints(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
    static Ints load_ints(const std::byte* from) { return _mm512_load_si512(from); }
    static void store_ints(std::byte* to, Ints x) { _mm512_store_si512(to, x); }
    static Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    static Ints add_bytes(Ints a, Ints b) { return _mm512_add_epi8(a, b); }
    static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
    static Ints low_halves(Ints bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f)); }
    static Ints high_halves(Ints bytes) { return low_halves(_mm512_srli_epi16(bytes, 4)); }
    /// In assembly, because with the intrinsic GCC 12 copies every sum twice. (With a variable of its own, because an
    /// array that assembly writes to would stay in memory.)
    static Ints add_byte_products(Ints sum, Ints a, Ints b) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }

  private:
    static __mmask16 all_below(std::int64_t count) { return static_cast<__mmask16>((1U << count) - 1); }
};

}  // namespace
}  // namespace longhaul::kernels::cpu
