// The order of every sum: what all device variants must reproduce bit for bit (ALGORITHMS.md section 7).
//
// Matmul over K: 8 slices of whole bf16 pairs (K zero-padded to a multiple of 16). Each slice is summed in f32 by fused
//   multiply-adds in ascending pairs, the odd element of a pair first (f32 weights: ascending k), starting from +0;
//   then ((s0+s1)+(s2+s3)) + ((s4+s5)+(s6+s7)). Ranks of row-parallel layers hold whole subtrees.
//   bf16 weights with kernels = amx-bf16: a slice is zero-padded to whole blocks of 32 inputs. In a block, the even
//   elements of the pairs and the odd ones are each summed by fused multiply-adds, ascending, from +0; both sums are
//   added, and the result is added to the slice's sum, blocks ascending, from +0. Slices as above. Likewise attention
//   over bf16 keys and values (below), with blocks of 32 dimensions of q·k, and of 32 absolute positions of o[d].
// Matmul with int8 or int4 weights (quantized.hpp): the inputs of each row and block are quantized, too: m = max |x|,
//   scale = m / 127, q = x * (127 / m) rounded to the nearest even integer by one fused multiply-add onto 1.5 * 2^23 (m
//   < 2^-100: all zero; m infinite or NaN: q = 0, scale NaN). The sum of a block is exact in integers. A slice: from
//   +0, sum = fma(f32(block sum), weight scale * input scale, sum), blocks ascending; then slices as above.
// Sum over a row (norms, softmax denominators, log-sum-exp): 16 lanes; lane i takes elements i, i+16, … by
//   fused multiply-add (squares) or addition, ascending; the lanes are added as a balanced tree (i with i+8, +4, +2,
//   +1). Norm over all heads of q or k: the squares of each head are summed like a row, then these sums by head.
//   Layer norm: the sum for the mean, then the squares of x - mean; fma((x - mean) * scale, gain, bias).
// Attention: chunks of 512 absolute positions. In a chunk:
//   score = (q·k, ascending pairs of dimensions, odd first; f32: ascending) * scale, then with a soft cap that of
//   Device::soft_cap; m = max; p = exp(score - m);
//   l = sum of p (before rounding) in 16 lanes by position modulo 16 and the lane tree;
//   o[d] = sum over position pairs (2j, 2j+1), odd first, of bf16(p) * v (f32 KV: ascending positions, p unrounded),
//   and + 0 at its end (this fixes the sign of a zero, so absent positions may be added with p = 0 or skipped).
//   int8 KV (kv_int8.hpp): a key (value) is quantized with m = max |x|, scale = m / 127, q = x * (127 / m) rounded to
//   nearest even; a query likewise with 32767. Dot products are exact in integers: score = f32(dot) * (query scale /
//   sqrt(head_dim)) * key scale. w = p * value scale (0 if not above 0), m = max w over the chunk, quantized w = w *
//   (32767 / m): o[d] = f32(sum of quantized w * v) * (m / 32767).
//   Positions before a row's window have score -inf, so p = 0; chunks wholly before it are left out.
//   Chunks merge left to right, starting from m = -inf, l = 0, o = 0:
//   m' = max(m, mc); a = exp(m - m'), b = exp(mc - m'); l = l*a + lc*b and o = o*a + oc*b,
//   each multiplication and the addition rounded separately (not fused); out = o / l. A sink is one more chunk, the
//   last, with m = sink, l = 1, o = 0.
// Rank of positions (Device::rank_positions): the queries of a KV head's query heads are added in f32, ascending, and
//   the sum is rounded to the query type (int8 KV: quantized like a query). score = its q·k as in attention, with scale
//   1; tensor cores are not used for it.
// Weighted sums of rows (the experts of a mixture, ascending): each product and each addition is rounded.
// Soft cap of logits: see Device::soft_cap; each operation is rounded.
// Sum over the vocabulary in the logits pipeline (probabilities, eta's entropy; f64): 1024 lanes, token v in lane v
//   modulo 1024, ascending; the lanes are added as a balanced tree (i with i+512, +256, …, +1). Filtered tokens add
//   nothing. Only the prefix of top-p is summed one by one, by descending probability, ties by ascending id. A
//   probability is exp(log weight - greatest log weight of all tokens) divided by the sum of these over the survivors
//   of all filters; each filter only considers tokens that the filters before it kept. The residual distribution of a
//   sampling rule is summed in these lanes, too. A draw from it (f64): a cumulative sum over chunks of 256 tokens, each
//   summed one by one from 0; in the chunk where it exceeds the random threshold, token by token. K-SEQ's accepted mass
//   at gamma: the sum of p over tokens with q >= K p (and q > p), plus the sum of q over tokens with q <= p divided by
//   gamma, plus the sum of min(p, q / gamma) over the others; gamma itself: 1, or the upper end after gamma_steps
//   halvings of [1, K].
// GPU tensor cores (device `cuda`) add the bf16 terms of a matmul in another order, which is fixed as well;
//   cuda/attention_tensor.cuh states it for attention, over int8 KV, too.
// exp, log, rsqrt: from + - * / sqrt and fma alone (exp_constants.hpp for f32, scalar_math.hpp for f64), never libm.
//   FTZ and DAZ are set in every thread that computes, because vdpbf16ps always flushes denormals. Only in attention on
//   tensor cores do results depend on an approximate instruction of the GPU, for 2^x.
#pragma once

#include <cstdint>

namespace longhaul::kernels {

/// Recorded in every checkpoint; incremented if a sum's order, an elementary function or a rounding changes. 2: min-p
/// compares weights, not quotients. 3: sums over the vocabulary in lanes. 4: likewise in the sampling rules;
/// probabilities are divided once; chains are drawn with the noise of their nodes. 5: int4 keeps the integers of
/// weights that had 4 bits before. 6: no arithmetic, but models have other fingerprints.
inline constexpr int numerics_version = 6;

/// Likewise what only tensor cores compute (device `cuda`); part of the device kind, with which a resumed run must
/// agree. 2: 2^x by the GPU's instruction. 3: attention over int8 KV, before as on the CPU.
inline constexpr int tensor_numerics_version = 3;

/// Likewise the orders of kernels = amx-bf16.
inline constexpr int tile_numerics_version = 1;

/// How products of bf16 are added in matmuls and attention: in pairs, or in blocks (amx-bf16).
enum class Bf16Order { pairs, blocks };
inline constexpr std::int64_t bf16_block = 32;

inline constexpr int num_slices = 8;                  ///< of every matmul's sum over K
inline constexpr std::int64_t attention_chunk = 512;  ///< absolute positions
inline constexpr int vocabulary_lanes = 1024;         ///< of a sum over the vocabulary
inline constexpr int draw_chunk = 256;                ///< tokens, in a draw by cumulative sum
inline constexpr int gamma_steps = 50;

/// Number of inputs, padded so that 8 slices are whole bf16 pairs.
constexpr std::int64_t padded_inputs(std::int64_t num_inputs) {
    return (num_inputs + 15) / 16 * 16;
}

}  // namespace longhaul::kernels
