// The table of one variant from its registers and its two ways to multiply.
#pragma once

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/dot.hpp"
#include "kernels/cpu/matmul.hpp"
#include "kernels/cpu/quantize_weights.hpp"
#include "kernels/cpu/quantized.hpp"
#include "kernels/cpu/rows.hpp"

namespace longhaul::kernels::cpu {

template <class Isa, class Dot>
constexpr QuantizedKernels quantized_kernels() {
    return {.steps = Dot::steps, .quantize = quantize_blocks<Dot>, .matmul = quantized_matmul_blocks<Isa, Dot>};
}

template <class Isa, class Bf16, class F32, class Int8, class Int4>
struct Variant {
    static void begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
        if (job.int8) return attention_begin<Isa, DotInt8Kv<Isa>>(job, unit, scratch);
        if (job.bf16) return attention_begin<Isa, Bf16>(job, unit, scratch);
        return attention_begin<Isa, F32>(job, unit, scratch);
    }
    static void chunk(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk, const KvAhead& ahead,
                      const AttentionScratch& scratch, const Softmax& result) {
        if (job.int8) {
            return attention_chunk_of<Isa, DotInt8Kv<Isa>>(job, unit, chunk, ahead, scratch, result);
        }
        if (job.bf16) return attention_chunk_of<Isa, Bf16>(job, unit, chunk, ahead, scratch, result);
        return attention_chunk_of<Isa, F32>(job, unit, chunk, ahead, scratch, result);
    }

    static double peak_loop(std::int64_t iterations, float* sink) {
        using Floats = typename Isa::Floats;
        constexpr int chains = 12;  // two pipes of latency 4 to 6 are busy from 8 to 12 on
        Floats sum[chains];
#pragma GCC unroll 16
        for (int c = 0; c < chains; ++c) sum[c] = Isa::zero();
        const Floats w = Isa::all(*sink);
        const Floats x = Isa::all(*sink);
        for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < chains; ++c) {
                Bf16::multiply_add(sum[c], w, x);
                asm volatile("" : "+x"(sum[c]));  // or the compiler sees that all chains are the same
            }
        }
#pragma GCC unroll 16
        for (int c = 1; c < chains; ++c) sum[0] = Isa::add(sum[0], sum[c]);
        float out[Isa::width];
        Isa::store(out, sum[0]);
        *sink = out[0];
        // A multiply-add is one product of 32-bit lanes in FMA form and two in pairs.
        return static_cast<double>(iterations) * chains * Isa::width * 2 * (Bf16::steps == 2 ? 1 : 2);
    }

    static constexpr KernelTable table(const char* name) {
        return KernelTable{.name = name,
                           .bf16_steps = Bf16::steps,
                           .max_tile_bf16 = Bf16::max_rows,
                           .max_tile_f32 = F32::max_rows,
                           .pack_bf16 = pack_words<Bf16>,
                           .pack_f32 = pack_words<F32>,
                           .matmul_bf16 = matmul_blocks<Isa, Bf16>,
                           .matmul_f32 = matmul_blocks<Isa, F32>,
                           .int8 = quantized_kernels<Isa, Int8>(),
                           .int4 = quantized_kernels<Isa, Int4>(),
                           .quantize_weights = WeightQuantizer<Isa>::run,
                           .rms_norm = rms_norm_rows<Isa>,
                           .layer_norm = layer_norm_rows<Isa>,
                           .relu = relu_rows<Isa>,
                           .round_rows = round_rows<Isa>,
                           .silu_mul = silu_mul_rows<Isa>,
                           .attention_begin = begin,
                           .attention_chunk = chunk,
                           .attention_merge = attention_merge_of<Isa>,
                           .attention_end = attention_end_of<Isa>,
                           .peak_loop = peak_loop};
    }
};

}  // namespace longhaul::kernels::cpu
