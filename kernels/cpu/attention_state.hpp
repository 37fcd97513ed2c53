// The state of an attention unit: softmax results merged chunk by chunk, and the final division. Called by
// cpu_attention.cpp through the kernel table.
#pragma once

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/rows.hpp"

namespace longhaul::kernels::cpu {

[[gnu::always_inline]] inline bool is_finite(float x) {
    return __builtin_fabsf(x) < __builtin_inff();
}

/// Initialises the state with the unit's first chunk, or as empty for rows whose maximum is not finite. Returns whether
/// there are such rows.
template <class Isa>
bool begin_state(const Softmax& result, std::int64_t num_rows, std::int64_t padded_dim, const Softmax& state) {
    bool all_finite = true;
    for (std::int64_t m = 0; m < num_rows; ++m) {
        const bool finite = is_finite(result.maximum[m]);
        all_finite &= finite;
        state.maximum[m] = finite ? result.maximum[m] : -__builtin_inff();
        state.sum[m] = finite ? result.sum[m] : 0.0F;
        for (std::int64_t i = m * padded_dim; i < (m + 1) * padded_dim; i += Isa::width) {
            Isa::store(state.output + i, finite ? Isa::add(Isa::zero(), Isa::load(result.output + i)) : Isa::zero());
        }
    }
    return !all_finite;
}

/// Merges a chunk: m' = max(m, mc); a = exp(m - m'), b = exp(mc - m'); l = l*a + lc*b; o = o*a + oc*b. The empty state
/// is m = -inf, l = o = 0, from which a finite mc gives lc and 0 + oc. (Factors are computed for a register of tile
/// rows at a time; their arrays are padded.)
template <class Isa>
void attention_merge_of(const AttentionJob& job, const AttentionUnit& unit, std::int64_t chunk, const Softmax& result,
                        const Softmax& state) {
    const std::int64_t num_rows = unit.num_rows * job.group_heads;
    const bool begins = chunk == unit.first_chunk();
    if (begins && !begin_state<Isa>(result, num_rows, job.padded_dim, state)) return;
    const auto takes_part = [&](std::int64_t m) {
        const UnitRow& row = unit.rows[m / job.group_heads];
        if (row.is_past(chunk)) return false;
        if (begins) return !is_finite(result.maximum[m]);
        return row.position >= chunk * chunk_tokens;
    };
    for (std::int64_t first = 0; first < num_rows; first += Isa::width) {
        const auto before = Isa::load(state.maximum + first), of_chunk = Isa::load(result.maximum + first);
        const auto both = Isa::max(before, of_chunk);
        const auto a = exp_of<Isa>(Isa::sub(before, both)), b = exp_of<Isa>(Isa::sub(of_chunk, both));
        float maximum[Isa::width], sum[Isa::width], left[Isa::width], right[Isa::width];
        Isa::store(maximum, both);
        Isa::store(sum,
                   Isa::add(Isa::mul(Isa::load(state.sum + first), a), Isa::mul(Isa::load(result.sum + first), b)));
        Isa::store(left, a);
        Isa::store(right, b);
        for (std::int64_t i = 0; i < Isa::width && first + i < num_rows; ++i) {
            if (!takes_part(first + i)) continue;
            state.maximum[first + i] = maximum[i];
            state.sum[first + i] = sum[i];
            const std::int64_t at = (first + i) * job.padded_dim;
            for (std::int64_t d = at; d < at + job.padded_dim; d += Isa::width) {
                Isa::store(state.output + d, Isa::add(Isa::mul(Isa::load(state.output + d), Isa::all(left[i])),
                                                      Isa::mul(Isa::load(result.output + d), Isa::all(right[i]))));
            }
        }
    }
}

template <class Isa>
void attention_end_of(const AttentionJob& job, const AttentionUnit& unit, const Softmax& state) {
    for (std::int64_t m = 0; m < unit.num_rows * job.group_heads; ++m) {
        const std::int64_t head = unit.kv_head * job.group_heads + m % job.group_heads;
        const std::int64_t first = unit.rows[m / job.group_heads].index * job.out_stride + head * job.head_dim;
        auto sum = Isa::all(state.sum[m]), factor = Isa::all(1.0F);
        if (job.sinks != nullptr) {
            const auto before = Isa::all(state.maximum[m]), sink = Isa::all(job.sinks[head]);
            const auto both = Isa::max(before, sink);
            factor = exp_of<Isa>(Isa::sub(before, both));
            sum = Isa::add(Isa::mul(sum, factor), exp_of<Isa>(Isa::sub(sink, both)));
        }
        for (std::int64_t i = 0; i < job.head_dim; i += Isa::width) {
            const auto output = Isa::mul(Isa::load(state.output + m * job.padded_dim + i), factor);
            const auto value = Isa::div(output, sum);
            store_act<Isa>(job.out, job.act_bf16, first + i, job.head_dim - i, value);
        }
    }
}

}  // namespace longhaul::kernels::cpu
