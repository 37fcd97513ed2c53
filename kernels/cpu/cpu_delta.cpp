// Linear attention on the vector CPU devices: the key heads of all sequences are divided among the threads.
#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {

void CpuDevice::output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                            std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                            std::int64_t out_stride) {
    check_act_rows("output_gate", act, num_rows, width, out_stride);
    const OutputGateJob job{.gate = gate,
                            .gate_stride = gate_stride,
                            .x = x,
                            .width = width,
                            .bf16 = act == DType::bf16,
                            .out = out,
                            .out_stride = out_stride};
    Team::mine().run(threads_for(num_rows * width, elements_per_thread), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_rows);
        table_.output_gate[static_cast<std::size_t>(f)](job, first, end);
    });
}

void CpuDevice::mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
                    std::int64_t inputs_stride, const float* gates, float* out) {
    const GroupRows rows = pass().group(layout.group);
    check_delta(layout, layer, rows, inputs_stride);
    const DeltaCall call{layout, layer, weights, inputs, inputs_stride, gates, out};
    const std::vector<DeltaSequence> sequences = delta_sequences(rows);
    const std::int64_t heads = layout.delta.num_key_heads, num_jobs = heads * std::ssize(sequences);
    delta_scratch_.resize(static_cast<std::size_t>(threads_));
    for (DeltaScratch& scratch : delta_scratch_) {
        for (const DeltaSequence& sequence : sequences) scratch.prepare(layout.delta, sequence.max_depth);
    }
    Team::mine().run(static_cast<int>(std::min<std::int64_t>(threads_, num_jobs)), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_jobs);
        for (std::int64_t job = first; job < end; ++job)
            mix_head(table_.delta, call, rows, sequences[static_cast<std::size_t>(job / heads)], job % heads,
                     delta_scratch_[static_cast<std::size_t>(member.index())]);
    });
}

void CpuDevice::accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                       std::span<const std::int32_t> slots) {
    const std::int64_t heads = layout.delta.num_key_heads, num_jobs = heads * layout.num_layers;
    Team::mine().run(static_cast<int>(std::min<std::int64_t>(threads_, num_jobs)), [&](Member& member) {
        const FlushDenormals flush;
        const auto [first, end] = member.share_of(num_jobs);
        for (std::int64_t job = first; job < end; ++job)
            accept_head(table_.delta, layout, job / heads, job % heads, state, scratch_pages, slots);
    });
}

}  // namespace longhaul::kernels::cpu
