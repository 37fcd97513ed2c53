// The table of one variant from its registers and its two ways to multiply.
#pragma once

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/dot.hpp"
#include "kernels/cpu/matmul.hpp"
#include "kernels/cpu/rows.hpp"

namespace longhaul::kernels::cpu {

template <class Isa, class Bf16, class F32>
struct Variant {
    static void begin(const AttentionJob& job, const AttentionUnit& unit, const AttentionScratch& scratch) {
        if (job.bf16) return attention_begin<Isa, Bf16>(job, unit, scratch);
        return attention_begin<Isa, F32>(job, unit, scratch);
    }
    static void chunk(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk,
                      const AttentionScratch& scratch, const Softmax& result) {
        if (job.bf16) return attention_chunk_of<Isa, Bf16>(job, unit, chunk, scratch, result);
        return attention_chunk_of<Isa, F32>(job, unit, chunk, scratch, result);
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
                           .rms_norm = rms_norm_rows<Isa>,
                           .silu_mul = silu_mul_rows<Isa>,
                           .attention_begin = begin,
                           .attention_chunk = chunk,
                           .attention_merge = attention_merge_of<Isa>,
                           .attention_end = attention_end_of<Isa>};
    }
};

}  // namespace longhaul::kernels::cpu
