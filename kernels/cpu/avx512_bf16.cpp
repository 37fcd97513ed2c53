// The avx512 variant with vdpbf16ps. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16
// -mprfchw.
#include "kernels/cpu/isa_avx512.hpp"
#include "kernels/cpu/self_test.hpp"
#include "kernels/cpu/variant.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Avx512 with the instructions that round to bf16.
struct Avx512Bf16 : Avx512 {
    static void store_bf16_quiet(std::byte* to, Floats x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
    static void store_bf16_quiet(std::byte* to, Floats low, Floats high) {
        _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
};

/// One vdpbf16ps per group: sum + odd * odd, then + even * even, each rounded once (the self-test checks this).
struct DotBf16Native {
    using Floats = __m512;
    static constexpr int steps = 1;
    static constexpr bool is_bf16 = true;
    static constexpr int max_rows = 12;         // 2 blocks x 12 rows = 24 accumulators in 32 registers
    static constexpr int max_matmul_rows = 16;  // with 15 and 16, some sums are spilled (spilled_sums.hpp)

    static Floats weights(const std::byte* from, int) { return Avx512::load_words(from); }
    static Floats input(const std::uint32_t* word) {
        return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*word)));
    }
    static void multiply_add(Floats& sum, Floats w, Floats x) {
        sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
    }
    template <int W>
    static void multiply_add_row(Floats (&sum)[W], const Floats (&w)[W], const std::uint32_t* x) {
        cpu::multiply_add_row<DotBf16Native>(sum, w, x);
    }
};

constexpr KernelTable table =
    Variant<Avx512Bf16, DotBf16Native, DotF32<Avx512Bf16>, DotInt8<Avx512Bf16>, DotInt4<Avx512Bf16>>::table("avx512",
                                                                                                            true);

/// Whether the instruction agrees with two fused multiply-adds in 16 lanes.
bool lanes_agree(Numbers& numbers, std::uint32_t exponent_from, std::uint32_t exponents) {
    alignas(64) std::uint32_t a[16], b[16], c[16];
    for (int i = 0; i < 16; ++i) {
        a[i] = numbers.next_pair(exponent_from, exponents);
        b[i] = numbers.next_pair(exponent_from, exponents);
        c[i] = numbers.next(2 * exponent_from - 127 + exponents / 2, exponents);
    }
    const __m512 x = _mm512_load_ps(a);
    const __m512 y = _mm512_load_ps(b);
    const __m512 start = _mm512_load_ps(c);
    __m512 instruction = start;
    DotBf16Native::multiply_add(instruction, x, y);
    const __m512 odd = _mm512_fmadd_ps(Avx512::odd_of(x), Avx512::odd_of(y), start);
    const __m512 both = _mm512_fmadd_ps(Avx512::even_of(x), Avx512::even_of(y), odd);
    return _mm512_cmpeq_epi32_mask(_mm512_castps_si512(instruction), _mm512_castps_si512(both)) == 0xffff;
}

}  // namespace

const KernelTable* avx512_bf16_kernels() {
    return &table;
}

bool avx512_bf16_self_test() {
    const FlushHere flush;
    Numbers numbers;
    bool agree = true;
    for (int i = 0; i < 256; ++i) {
        agree = agree && lanes_agree(numbers, 120, 12);  // sums of similar magnitude: rounding and cancellation
        agree = agree && lanes_agree(numbers, 64, 12);   // around the smallest normal number: flushing
    }
    return agree;
}

}  // namespace longhaul::kernels::cpu
