// The last steps of reductions over all lanes, shared by registers of 8 and of 16 lanes. Include only in translation
// units compiled for AVX.
#pragma once

#include <immintrin.h>

namespace longhaul::kernels::cpu {
namespace {

/// No lane may be NaN.
inline float largest_of_eight(__m256 x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/// A balanced tree: i with i + 4, then + 2, + 1.
inline float total_of_eight(__m256 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace longhaul::kernels::cpu
