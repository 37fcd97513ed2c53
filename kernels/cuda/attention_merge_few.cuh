// The last attention kernel for rows of few entries: the same sums as attention_merge.cuh, by one warp per query head.
//
// Lane i computes the factors of entry i, and all lanes get them from there: no thread waits for another warp, and no
// shared memory is used. A lane merges four dimensions, so that 128 bytes per thread are on their way at a time.
#pragma once

#include "kernels/cuda/attention_merge.cuh"

namespace longhaul::kernels::cuda {

static_assert(many_entries <= 32);

/// The factors of the lane's entry, if the row has so many. softmax: of the head's first entry. maximum: of all
/// entries.
template <bool tensor>
__device__ __forceinline__ MergeFactors factors_of_lane(const MergeArgs& args, const PlanRow& row,
                                                        const float2* softmax, float& maximum) {
    const RowSpans<tensor> spans{args, row};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool is_entry = lane < row.num_entries;
    const int i = is_entry ? lane : 0;
    const float2 mine = is_entry ? softmax[std::int64_t{lane} * args.q_heads] : make_float2(minus_infinity(), 0.0F);
    float whole = mine.x;
    for (int step = 1; step < 32; step *= 2) {
        const float earlier = __shfl_up_sync(full_warp, whole, step);
        if (lane >= step) whole = larger(earlier, whole);
    }
    maximum = __shfl_sync(full_warp, whole, 31);
    float before = __shfl_up_sync(full_warp, whole, 1);
    if (lane == 0) before = minus_infinity();
    int first = i;
    while (!spans.begins_at(first)) --first;
    float span_before = minus_infinity();
    for (int step = 1; step < tensor_span_chunks; ++step) {
        const float earlier = __shfl_up_sync(full_warp, mine.x, step);
        if (step <= i - first) span_before = larger(span_before, earlier);
    }
    const float before_span = __shfl_sync(full_warp, before, first);
    return merge_factors<tensor>(mine.x, mine.y, before, before_span, span_before, first == i, spans.ends_at(i));
}

__device__ __forceinline__ MergeFactors factors_from(const MergeFactors& mine, int lane) {
    const auto from = [&](float value) { return __shfl_sync(full_warp, value, lane); };
    return {from(mine.left),        from(mine.right), from(mine.whole_left),
            from(mine.whole_right), from(mine.sum),   __shfl_sync(full_warp, mine.ends_span, lane)};
}

/// Grid [rows of the round, q_heads / merge_warps]. Fewer than many_entries entries per row; head_dim and out_stride
/// are multiples of 4.
template <bool tensor>
__global__ void __launch_bounds__(attention_threads, 5) merge_few_kernel(MergeArgs args) {
    let_next_start();
    constexpr int count = 4, loads = 8;  // entries on their way at a time
    const PlanRow row = args.rows[blockIdx.x];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int head = static_cast<int>(blockIdx.y) * merge_warps + static_cast<int>(threadIdx.x) / 32;
    if (head >= args.q_heads) return;
    const std::int64_t step = std::int64_t{args.q_heads} * args.head_dim,
                       first_column = std::int64_t{head} * args.head_dim;
    const float* const outputs = args.outputs + row.first_entry * step + first_column;
    const std::int64_t out_row = std::int64_t{row.row} * args.out_stride;
    const bool is_bf16 = args.act == DType::bf16;
    const auto load = [&](int d, int first, float(&values)[loads][count]) {
#pragma unroll
        for (int k = 0; k < loads; ++k)
            if (d < args.head_dim && first + k < row.num_entries)
                load_floats(outputs + (first + k) * step + d, values[k]);
    };
    float values[loads][count] = {};
    load(lane * count, 0, values);
    float maximum;
    const MergeFactors mine =
        factors_of_lane<tensor>(args, row, args.softmax + row.first_entry * args.q_heads + head, maximum);
    const SinkFactors sink = sink_factors<tensor>(args.sinks, head, maximum);
#pragma unroll 1
    for (int d = lane * count; d - lane * count < args.head_dim; d += 32 * count) {
        MergedDimension<tensor> merged[count];
#pragma unroll 1
        for (int i = 0; i < row.num_entries; i += loads) {
            if (i > 0 || d > lane * count) load(d, i, values);
#pragma unroll
            for (int k = 0; k < loads; ++k) {
                if (i + k >= row.num_entries) break;
                const MergeFactors factors = factors_from(mine, i + k);
                for (int v = 0; v < count; ++v) merged[v].add(values[k][v], factors);
            }
        }
        float results[count];
        for (int v = 0; v < count; ++v) results[v] = merged[v].result(sink);
        if (d < args.head_dim) store_act(args.out, is_bf16, out_row + first_column + d, results);
    }
    if (head + 1 < args.q_heads) return;
    const float zero[1] = {0.0F};
    for (std::int64_t column = step + lane; column < args.out_stride; column += 32)
        store_act(args.out, is_bf16, out_row + column, zero);
}

}  // namespace longhaul::kernels::cuda
