// Builds the KernelTable of one variant from its register operations (`Isa`) and its `Dot` types. Used by avx2.cpp,
// avx512.cpp and avx512_bf16.cpp.
#pragma once

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/attention_state.hpp"
#include "kernels/cpu/delta_rule.hpp"
#include "kernels/cpu/dot.hpp"
#include "kernels/cpu/matmul.hpp"
#include "kernels/cpu/quantize_weights.hpp"
#include "kernels/cpu/quantized.hpp"
#include "kernels/cpu/rows.hpp"

namespace longhaul::kernels::cpu {

template <class Isa, class Dot>
constexpr QuantizedKernels quantized_kernels() {
    return {.quantize = quantize_blocks<Dot, InputWords<Dot>>, .matmul = quantized_matmul_blocks<Isa, Dot>};
}

template <class Isa, class Bf16, class F32, class Int8, class Int4>
struct Variant {
    static void begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
        if (job.int8) return attention_begin<Isa, DotInt8Kv<Isa>>(job, unit, scratch);
        if (job.bf16) return attention_begin<Isa, Bf16>(job, unit, scratch);
        return attention_begin<Isa, F32>(job, unit, scratch);
    }
    static void chunk(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                      const ChunkPrefetch& ahead, const AttentionScratch& scratch, const Softmax& result) {
        if (job.int8) {
            return attention_chunk_of<Isa, DotInt8Kv<Isa>>(job, unit, chunk, ahead, scratch, result);
        }
        if (job.bf16) return attention_chunk_of<Isa, Bf16>(job, unit, chunk, ahead, scratch, result);
        return attention_chunk_of<Isa, F32>(job, unit, chunk, ahead, scratch, result);
    }
    static void rank(const AttentionJob& job, const AttentionUnit& unit, std::int64_t first_page,
                     std::int64_t num_pages, const AttentionScratch& scratch, float* scores) {
        if (job.int8) {
            return rank_scores_of<Isa, DotInt8Kv<Isa>>(job, unit, first_page, num_pages, scratch, scores);
        }
        if (job.bf16) return rank_scores_of<Isa, Bf16>(job, unit, first_page, num_pages, scratch, scores);
        return rank_scores_of<Isa, F32>(job, unit, first_page, num_pages, scratch, scores);
    }

    /// Enough sums to keep two execution units busy even if one result is late: multiply-adds take 4 cycles, vdpbf16ps
    /// takes 6 (Zen 5: 12 sums reach 0.94 of what 24 do).
    static constexpr int peak_chains = Isa::width == 16 ? 24 : 12;

    template <class Sum, class MultiplyAdd>
    static void multiply_on_registers(std::int64_t iterations, Sum zero, MultiplyAdd multiply_add, float* sink) {
        Sum sum[peak_chains];
#pragma GCC unroll 32
        for (int c = 0; c < peak_chains; ++c) sum[c] = zero;
        for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
            for (int c = 0; c < peak_chains; ++c) {
                multiply_add(sum[c]);
                asm volatile("" : "+v"(sum[c]));  // or the compiler sees that all chains are equal
            }
        }
        Sum all = sum[0];
#pragma GCC unroll 32
        for (int c = 1; c < peak_chains; ++c) all = all + sum[c];
        __builtin_memcpy(sink, &all, sizeof *sink);
    }

    template <class Dot>
    static double peak_loop(std::int64_t iterations, float* sink) {
        const auto w = Isa::all(*sink);
        multiply_on_registers(
            iterations, Isa::zero(), [&](typename Isa::Floats& sum) { Dot::multiply_add(sum, w, w); }, sink);
        // A multiply-add multiplies 32-bit lanes in FMA form and two bf16 per lane in pair form.
        return static_cast<double>(iterations) * peak_chains * Isa::width * 2 *
               (Dot::is_bf16 && Dot::steps == 1 ? 2 : 1);
    }
    static double peak_loop_int8(std::int64_t iterations, float* sink) {
        if constexpr (Isa::width == 16) {
            const auto w = Isa::all_ints(0x01020304);
            multiply_on_registers(
                iterations, Isa::no_ints(), [&](typename Isa::Ints& sum) { sum = Isa::add_byte_products(sum, w, w); },
                sink);
            return static_cast<double>(iterations) * peak_chains * Isa::width * 8;
        }
        return peak_loop<Bf16>(iterations, sink);
    }

    static constexpr KernelTable table(const char* name, bool streams_kv) {
        return KernelTable{
            .name = name,
            .bf16_steps = Bf16::steps,
            .bf16_slice_unit = 1,
            .bf16_block_rows = block_rows,
            .max_tile_bf16 = Bf16::max_rows,
            .max_tile_f32 = F32::max_rows,
            .streams_kv = streams_kv,
            .blocks_per_piece = Isa::width == 16 ? 4 : 6,
            .blocks_together = blocks_together<Isa>,
            .quantized_block_rows = block_rows,
            .pack_bf16 = pack_words<Bf16>,
            .pack_f32 = pack_words<F32>,
            .matmul_bf16 = matmul_blocks<Isa, Bf16>,
            .matmul_f32 = matmul_blocks<Isa, F32>,
            .int8 = quantized_kernels<Isa, Int8>(),
            .int4 = quantized_kernels<Isa, Int4>(),
            .quantize_weights = WeightQuantizer<Isa>::run,
            .rms_norm = rms_norm_rows<Isa, false>,
            .add_rms_norm = rms_norm_rows<Isa, true>,
            .square_sums = square_sums<Isa>,
            .layer_norm = layer_norm_rows<Isa>,
            .round_rows = round_rows<Isa>,
            .activate = {activate_rows<Isa, Activation::relu>, activate_rows<Isa, Activation::relu_squared>,
                         activate_rows<Isa, Activation::gelu>, activate_rows<Isa, Activation::gelu_exact>},
            .gate_mul = {gate_mul_rows<Isa, Gate::silu>, gate_mul_rows<Isa, Gate::gelu>,
                         gate_mul_rows<Isa, Gate::swiglu_oai>},
            .gate = {gate_rows<Isa, Gate::silu>, gate_rows<Isa, Gate::gelu>, gate_rows<Isa, Gate::swiglu_oai>},
            .soft_cap = soft_cap<Isa>,
            .output_gate = {output_gate_rows<Isa, OutputGate::sigmoid>, output_gate_rows<Isa, OutputGate::silu>,
                            output_gate_rows<Isa, OutputGate::gelu>},
            .rotate = rotate_row<Isa>,
            .delta = {.convolve = delta_convolve<Isa>, .fold = delta_fold<Isa>},
            .attention_begin = begin,
            .attention_chunk = chunk,
            .attention_merge = attention_merge_of<Isa>,
            .attention_end = attention_end_of<Isa>,
            .rank_scores = rank,
            .peak_bf16 = peak_loop<Bf16>,
            .peak_f32 = peak_loop<F32>,
            .peak_int8 = peak_loop_int8};
    }
};

}  // namespace longhaul::kernels::cpu
