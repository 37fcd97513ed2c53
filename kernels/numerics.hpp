// The order of every sum, in one place: what all variants must reproduce bit for bit (algorithms.md section 7).
//
// Product over K: 8 slices of whole bf16 pairs (K zero-padded to a multiple of 16), each summed in f32 by fused
//   multiply-adds in ascending pairs, the odd element of a pair first (f32 weights: ascending k), starting from +0;
//   then ((s0+s1)+(s2+s3)) + ((s4+s5)+(s6+s7)). Row-parallel ranks hold whole subtrees.
// Product with int8 or int4 weights (quantized.hpp): the inputs of each row and block become integers, too: m = max
// |x|,
//   scale = m / 127, q = nearest even whole number of x * (127 / m), by one fused multiply-add onto 1.5 * 2^23 (m <
//   2^-100: all zero; m infinite or NaN: q = 0, scale NaN). A block's sum is exact in integers. A slice: from +0, sum =
//   fma(f32(block's sum), weight scale * input scale, sum), blocks ascending; then slices as above.
// Sum over a row (norms, softmax denominators, log-sum-exp): 16 lanes; lane i takes elements i, i+16, … by
//   fused multiply-add (squares) or addition, ascending; lanes are added as a balanced tree (i with i+8, +4, +2, +1).
//   Layer norm: the sum for the mean, then the squares of x - mean; fma((x - mean) * scale, gain, bias).
// Attention: chunks of 512 absolute positions. In a chunk:
//   score = (q·k, ascending pairs of dimensions, odd first; f32: ascending) * scale; m = max; p = exp(score - m);
//   l = sum of p (before rounding) in 16 lanes by position modulo 16 and the lane tree;
//   o[d] = sum over position pairs (2j, 2j+1), odd first, of bf16(p) * v (f32 KV: ascending positions, p unrounded),
//   and + 0 at its end (a zero has no sign: absent places may be added as products of zero or left out).
//   int8 KV (kv_int8.hpp): a key (value) is m = max |x|, scale = m / 127, whole = x * (127 / m) to the nearest even; a
//   query likewise with 32767. Sums of products are exact in integers: score = f32(sum) * (query scale /
//   sqrt(head_dim)) * key scale. w = p * value scale (not above 0: 0), its m over the chunk, whole = w * (32767 / m):
//   o[d] = f32(sum of whole * v) * (m / 32767).
//   Chunks merge left to right, starting from m = -inf, l = 0, o = 0:
//   m' = max(m, mc); a = exp(m - m'), b = exp(mc - m'); l = l*a + lc*b and o = o*a + oc*b,
//   each product and the sum rounded on its own; out = o / l.
// Sum over the tokens of a vocabulary in the logits pipeline (probabilities, eta's entropy; f64): 1024 lanes, token v
//   in lane v modulo 1024, ascending; lanes are added as a balanced tree (i with i+512, +256, …, +1). Tokens that a
//   filter took away add nothing. Only the prefix of top-p is summed one by one, in order of descending probability,
//   equal ones by ascending id. A probability is exp(log weight - greatest log weight of all) over the sum of these
//   over the survivors of all filters; filters compare what each found. What a sampling rule leaves of a distribution
//   is summed in these lanes, too. Its draw (f64): the sum over tokens goes up in chunks of 256 tokens, each summed
//   one by one from 0, and from token to token in the chunk where it passes the mark. K-SEQ's accepted mass at gamma:
//   the sum of p over tokens of q >= K p (and q > p), plus that of q over tokens of q <= p over gamma, plus that of
//   min(p, q / gamma) over the others; gamma itself: 1, or the upper end after gamma_steps halvings of [1, K].
// GPU tensor cores (device `cuda`) add the products of bf16 otherwise, in an order of their own that is as fixed:
//   cuda/attention_tensor.cuh says which for attention.
// exp, log, rsqrt: from + - * / sqrt and fma alone (exp_constants.hpp for f32, scalar_math.hpp for f64), never libm.
//   FTZ and DAZ are set in every thread that computes: vdpbf16ps always flushes denormals.
#pragma once

#include <cstdint>

namespace longhaul::kernels {

/// Recorded in every checkpoint; raised whenever a sum's order or an elementary function changes.
/// 2: min-p compares weights, not quotients. 3: sums over the vocabulary in lanes. 4: likewise in the sampling rules;
/// probabilities are divided once; chains are drawn with the noise of their nodes.
inline constexpr int numerics_version = 4;

inline constexpr int num_slices = 8;                  ///< of every product over K
inline constexpr std::int64_t attention_chunk = 512;  ///< absolute positions
inline constexpr int vocabulary_lanes = 1024;         ///< of a sum over tokens
inline constexpr int draw_chunk = 256;                ///< tokens, of a draw by a mark
inline constexpr int gamma_steps = 50;

/// Inputs padded so that 8 slices are whole bf16 pairs.
constexpr std::int64_t padded_inputs(std::int64_t num_inputs) {
    return (num_inputs + 15) / 16 * 16;
}

}  // namespace longhaul::kernels
