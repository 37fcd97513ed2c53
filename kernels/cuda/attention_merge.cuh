// The last attention kernel: merges the partial results of a row and query head in the order of their chunks.
//
// Entries are merged into spans and spans into the result, each left to right (numerics.hpp; spans of one chunk give
// the order of the CPU). The merge factors depend only on the maxima, and a maximum does not depend on the order, so
// all factors are computed in parallel, from a scan of the maxima. What remains to be done in order is two
// multiplications and one addition per chunk. The first values are loaded before the factors are computed, the others
// while those before them are merged.
//
// tensor: entries are those of attention_tensor.cuh, with maxima in units of log2.
#pragma once

#include "kernels/cuda/attention_tensor_shape.cuh"
#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {

/// Pointers to device memory.
struct MergeArgs {
    const PlanRow* rows;    ///< rows of the round
    const float* outputs;   ///< [entries, q_heads, head_dim]
    const float2* softmax;  ///< [entries, q_heads]
    const float* sinks;     ///< [q_heads]; nullptr: none
    int q_heads;
    int head_dim;
    bool whole_spans;  ///< common units cover spans
    DType act;
    std::byte* out;  ///< act [rows of the pass, out_stride]
    std::int64_t out_stride;
};

/// Factors of one entry. Within its span: before * left + entry * right. At the end of a span: whole * whole_left +
/// span * whole_right.
struct MergeFactors {
    float left, right;
    float whole_left, whole_right;
    float sum;  ///< softmax sum of the entry
    int ends_span;
};

__device__ __forceinline__ float larger(float left, float right) {
    return left > right ? left : right;
}

/// The factors between maxima: 2 or e to their difference.
template <bool tensor>
__device__ __forceinline__ float merge_factor(float from, float to) {
    const float difference = __fsub_rn(from, to);
    return tensor ? exp2_of(difference) : exp_of(difference);
}

/// The sink of a head, merged last: before * left, and right more in the sum. Without one nothing changes.
struct SinkFactors {
    float left = 1.0F, right = 0.0F;
};

/// `maximum`: of all entries.
template <bool tensor>
__device__ __forceinline__ SinkFactors sink_factors(const float* sinks, int head, float maximum) {
    if (sinks == nullptr) return {};
    const float sink = tensor ? __fmul_rn(sinks[head], exp_constants::log2_e) : sinks[head];
    const float whole = larger(maximum, sink);
    return {merge_factor<tensor>(maximum, whole), merge_factor<tensor>(sink, whole)};
}

/// The factors of an entry with maximum `mine`. Maxima before it: `before` of all entries, `before_span` of all before
/// its span, `span_before` of its span's entries. `starts`, `ends`: whether it is the first or last one of its span.
template <bool tensor>
__device__ __forceinline__ MergeFactors merge_factors(float mine, float sum, float before, float before_span,
                                                      float span_before, bool starts, bool ends) {
    const float span = larger(span_before, mine), whole = larger(before, mine);
    // The first entry of a span is taken unscaled.
    return {.left = starts ? 0.0F : merge_factor<tensor>(span_before, span),
            .right = starts ? 1.0F : merge_factor<tensor>(mine, span),
            .whole_left = merge_factor<tensor>(before_span, whole),
            .whole_right = merge_factor<tensor>(span, whole),
            .sum = sum,
            .ends_span = ends ? 1 : 0};
}

/// Which entries of a row begin and end a span.
template <bool tensor>
struct RowSpans {
    const MergeArgs& args;
    const PlanRow& row;

    /// The chunk where entry i begins. Entries cover one chunk each, or common ones a whole span.
    [[nodiscard]] __device__ int chunk(int i) const {
        if (i >= row.num_common) return row.first_own + i - row.num_common;
        if (!args.whole_spans || i == 0) return row.first_chunk + i;
        return (row.first_chunk / tensor_span_chunks + i) * tensor_span_chunks;
    }
    [[nodiscard]] __device__ bool begins_at(int i) const {
        return !tensor || i == 0 || chunk(i) % tensor_span_chunks == 0;  // the CPU's spans are chunks
    }
    [[nodiscard]] __device__ bool ends_at(int i) const { return i + 1 == row.num_entries || begins_at(i + 1); }
};

constexpr int merge_warps = attention_threads / 32;

/// Bytes of shared memory per block, for rows of up to max_entries entries.
constexpr std::size_t merge_shared_bytes(int max_entries) {
    return static_cast<std::size_t>(max_entries) * (sizeof(MergeFactors) + 2 * sizeof(float)) +
           merge_warps * sizeof(float);
}

template <bool tensor>
class MergeFactorTable {
  public:
    __device__ MergeFactorTable(const MergeArgs& args, const PlanRow& row, int head)
        : args_(args),
          row_(row),
          softmax_(args.softmax + row.first_entry * args.q_heads + head),
          table_(shared_memory<MergeFactors>()),
          maxima_(reinterpret_cast<float*>(table_ + row.num_entries)),
          before_(maxima_ + row.num_entries),
          warp_maxima_(before_ + row.num_entries) {}

    /// Called by all threads; the table is filled on return.
    __device__ void fill() {
        scan_maxima();
        for (int i = static_cast<int>(threadIdx.x); i < row_.num_entries; i += attention_threads) fill_entry(i);
        __syncthreads();
    }
    [[nodiscard]] __device__ const MergeFactors& at(int i) const { return table_[i]; }
    /// The largest maximum of all entries.
    [[nodiscard]] __device__ float maximum() const {
        return larger(before_[row_.num_entries - 1], maxima_[row_.num_entries - 1]);
    }

  private:
    [[nodiscard]] __device__ float2 entry(int i) const { return softmax_[std::int64_t{i} * args_.q_heads]; }
    /// Sets maxima_[i] to the maximum of entry i, and before_[i] to that of all entries before i. Each thread takes a
    /// run of entries; the maxima of the runs are scanned in warps, and those of the warps by each thread.
    __device__ void scan_maxima() {
        const int n = row_.num_entries, lane = static_cast<int>(threadIdx.x) % 32;
        const int run = (n + attention_threads - 1) / attention_threads;
        const int first = static_cast<int>(threadIdx.x) * run;
        const int end = first + run < n ? first + run : n;
        float maximum = minus_infinity();
        for (int i = first; i < end; ++i) {
            const float2 mine = entry(i);
            maxima_[i] = mine.x;
            table_[i].sum = mine.y;
            maximum = larger(maximum, mine.x);
        }
        for (int step = 1; step < 32; step *= 2) {
            const float earlier = __shfl_up_sync(full_warp, maximum, step);
            if (lane >= step) maximum = larger(earlier, maximum);
        }
        const float earlier = __shfl_up_sync(full_warp, maximum, 1);
        if (lane == 31) warp_maxima_[threadIdx.x / 32] = maximum;
        __syncthreads();
        float before = minus_infinity();
        for (unsigned w = 0; w < threadIdx.x / 32; ++w) before = larger(before, warp_maxima_[w]);
        if (lane > 0) before = larger(before, earlier);
        for (int i = first; i < end; ++i) {
            before_[i] = before;
            before = larger(before, maxima_[i]);
        }
        __syncthreads();
    }

    __device__ void fill_entry(int i) {
        const RowSpans<tensor> spans{args_, row_};
        float span_before = minus_infinity();
        int first = i;
        while (!spans.begins_at(first)) span_before = larger(span_before, maxima_[--first]);
        table_[i] = merge_factors<tensor>(maxima_[i], table_[i].sum, before_[i], before_[first], span_before,
                                          first == i, spans.ends_at(i));
    }

    const MergeArgs& args_;
    const PlanRow& row_;
    const float2* softmax_;
    MergeFactors* table_;
    float* maxima_;       ///< [entries]
    float* before_;       ///< [entries]
    float* warp_maxima_;  ///< [merge_warps]
};

/// Loads in flight at a time. A row with many entries waits for them, far apart in memory; for few, a multiprocessor
/// holds more blocks if they need fewer registers.
constexpr int merge_loads(bool many) {
    return many ? 16 : 8;
}
constexpr int many_entries = 17;

/// One dimension of a row's output, and the softmax sum that divides it.
template <bool tensor>
struct MergedDimension {
    float span = 0.0F;
    float span_sum = 0.0F;
    float whole = 0.0F;
    float whole_sum = 0.0F;

    __device__ void add(float value, const MergeFactors& f) {
        span = merge(span, f.left, value, f.right);
        span_sum = merge(span_sum, f.left, f.sum, f.right);
        if (f.ends_span == 0) return;
        whole = merge(whole, f.whole_left, span, f.whole_right);
        whole_sum = merge(whole_sum, f.whole_left, span_sum, f.whole_right);
    }
    [[nodiscard]] __device__ float result(const SinkFactors& sink) const {
        const float sum = __fadd_rn(__fmul_rn(whole_sum, sink.left), sink.right);
        return __fdiv_rn(__fmul_rn(tensor ? finite_or_nan(whole) : whole, sink.left), sum);
    }

  private:
    __device__ static float merge(float before, float left, float now, float right) {
        if (tensor) return __fmaf_rn(now, right, __fmul_rn(before, left));
        return __fadd_rn(__fmul_rn(before, left), __fmul_rn(now, right));
    }
    /// Returns the sum + 0, or NaN for any sum that is not finite: the sign of a zero, and whether a sum that is not
    /// finite is infinite or NaN, depend on the tiles. Nothing else depends on these.
    __device__ static float finite_or_nan(float value) {
        return (__float_as_uint(value) & 0x7f800000U) == 0x7f800000U ? quiet_nan() : __fadd_rn(value, 0.0F);
    }
};

/// Grid [rows of the round, q_heads]. `many`: whether a row may have many_entries or more.
template <bool tensor, bool many>
__global__ void __launch_bounds__(attention_threads, many ? 4 : 8) merge_kernel(MergeArgs args) {
    let_next_start();
    constexpr int loads = merge_loads(many);
    const PlanRow row = args.rows[blockIdx.x];
    const int head = static_cast<int>(blockIdx.y);
    const std::int64_t step = std::int64_t{args.q_heads} * args.head_dim;
    const float* const outputs = args.outputs + row.first_entry * step + std::int64_t{head} * args.head_dim;
    const std::int64_t out_row = std::int64_t{row.row} * args.out_stride;
    const auto put = [&](std::int64_t column, float value) {
        if (args.act == DType::f32) {
            reinterpret_cast<float*>(args.out)[out_row + column] = value;
        } else {
            reinterpret_cast<std::uint16_t*>(args.out)[out_row + column] = f32_to_bf16(value);
        }
    };
    /// The values of dimension d in the entries from `first` on.
    const auto load = [&](int d, int first, float(&values)[loads]) {
#pragma unroll
        for (int k = 0; k < loads; ++k) {
            values[k] =
                d < args.head_dim && first + k < row.num_entries ? __ldg(outputs + (first + k) * step + d) : 0.0F;
        }
    };
    float next[loads];
    load(static_cast<int>(threadIdx.x), 0, next);
    MergeFactorTable<tensor> factors(args, row, head);
    factors.fill();
    const SinkFactors sink = sink_factors<tensor>(args.sinks, head, factors.maximum());
    for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += attention_threads) {
        MergedDimension<tensor> merged;
        for (int i = 0; i < row.num_entries; i += loads) {
            float values[loads];
#pragma unroll
            for (int k = 0; k < loads; ++k) values[k] = next[k];
            load(d, i + loads, next);
#pragma unroll
            for (int k = 0; k < loads; ++k) {
                if (i + k < row.num_entries) merged.add(values[k], factors.at(i + k));
            }
        }
        put(std::int64_t{head} * args.head_dim + d, merged.result(sink));
        load(d + attention_threads, 0, next);
    }
    if (head + 1 < args.q_heads) return;
    for (std::int64_t column = step + threadIdx.x; column < args.out_stride; column += attention_threads) {
        put(column, 0.0F);
    }
}

}  // namespace longhaul::kernels::cuda
