// The last attention kernel: merges the partial results of a row and query head in the order of their chunks.
//
// Entries are merged into spans and spans into the result, each left to right (numerics.hpp; spans of one chunk give
// the order of the CPU). The merge factors depend only on the maxima, and a maximum does not depend on the order, so
// all factors are computed in parallel. What remains to be done in order is two multiplications and one addition per
// chunk.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/math.cuh"

namespace longhaul::kernels::cuda {

/// Pointers to device memory.
struct MergeArgs {
    const PlanRow* rows;    ///< rows of the round
    const float* outputs;   ///< [entries, q_heads, head_dim]
    const float2* softmax;  ///< [entries, q_heads]
    int q_heads;
    int head_dim;
    int unit_chunks;
    int span_chunks;
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

/// Bytes of shared memory per block, for rows of up to max_entries entries.
constexpr std::size_t merge_shared_bytes(int max_entries) {
    return static_cast<std::size_t>(max_entries) * sizeof(MergeFactors) + attention_threads * sizeof(float);
}

__device__ __forceinline__ float larger(float left, float right) {
    return left > right ? left : right;
}

class MergeFactorTable {
  public:
    __device__ MergeFactorTable(const MergeArgs& args, const PlanRow& row, int head)
        : args_(args),
          row_(row),
          softmax_(args.softmax + row.first_entry * args.q_heads + head),
          table_(shared_memory<MergeFactors>()),
          part_maxima_(reinterpret_cast<float*>(table_ + row.num_entries)) {}

    /// Called by all threads; the table is filled on return.
    __device__ void fill() {
        const int n = row_.num_entries;
        const int part = (n + attention_threads - 1) / attention_threads;
        const int first = static_cast<int>(threadIdx.x) * part;
        const int end = first + part < n ? first + part : n;
        float maximum = minus_infinity();
        for (int i = first; i < end; ++i) maximum = larger(maximum, entry(i).x);
        part_maxima_[threadIdx.x] = maximum;
        __syncthreads();
        float before = minus_infinity();  // the maximum of all entries before `first`
        for (unsigned t = 0; t < threadIdx.x; ++t) before = larger(before, part_maxima_[t]);
        for (int i = first; i < end; ++i) before = fill_entry(i, before);
        __syncthreads();
    }
    [[nodiscard]] __device__ const MergeFactors& at(int i) const { return table_[i]; }

  private:
    [[nodiscard]] __device__ float2 entry(int i) const { return softmax_[std::int64_t{i} * args_.q_heads]; }
    [[nodiscard]] __device__ int chunk(int i) const {
        if (i >= row_.num_common) return row_.first_own + i - row_.num_common;
        return i == 0 ? row_.first_chunk : (row_.first_chunk / args_.unit_chunks + i) * args_.unit_chunks;
    }
    [[nodiscard]] __device__ bool starts_span(int i) const { return i == 0 || chunk(i) % args_.span_chunks == 0; }

    /// `before`: maximum of all entries before i. Returns the maximum of entries 0 to i.
    __device__ float fill_entry(int i, float before) const {
        const float2 mine = entry(i);
        float span_before = minus_infinity();  // maximum of the span's entries before i
        float earlier = minus_infinity();      // maximum of all entries before the span
        int first = i;
        while (!starts_span(first)) span_before = larger(span_before, entry(--first).x);
        const float span = larger(span_before, mine.x);
        const float whole = larger(before, mine.x);
        const bool ends_span = i + 1 == row_.num_entries || starts_span(i + 1);
        if (ends_span) earlier = first == i ? before : maximum_before(first);
        // The first entry of a span is taken unscaled.
        const bool starts = first == i;
        table_[i] = {.left = starts ? 0.0F : exp_of(__fsub_rn(span_before, span)),
                     .right = starts ? 1.0F : exp_of(__fsub_rn(mine.x, span)),
                     .whole_left = exp_of(__fsub_rn(earlier, whole)),
                     .whole_right = exp_of(__fsub_rn(span, whole)),
                     .sum = mine.y,
                     .ends_span = ends_span ? 1 : 0};
        return whole;
    }
    /// Maximum of all entries before i.
    [[nodiscard]] __device__ float maximum_before(int i) const {
        const int part = (row_.num_entries + attention_threads - 1) / attention_threads;
        float maximum = minus_infinity();
        for (int t = 0; t < i / part; ++t) maximum = larger(maximum, part_maxima_[t]);
        for (int k = i / part * part; k < i; ++k) maximum = larger(maximum, entry(k).x);
        return maximum;
    }

    const MergeArgs& args_;
    const PlanRow& row_;
    const float2* softmax_;
    MergeFactors* table_;
    float* part_maxima_;
};

constexpr int merge_loads = 16;  ///< loads in flight at a time: a row has few entries, far apart in memory

/// One dimension of a row's output, and the softmax sum that divides it.
struct MergedDimension {
    float span = 0.0F;
    float span_sum = 0.0F;
    float whole = 0.0F;
    float whole_sum = 0.0F;

    __device__ void add(float value, const MergeFactors& f) {
        span = __fadd_rn(__fmul_rn(span, f.left), __fmul_rn(value, f.right));
        span_sum = __fadd_rn(__fmul_rn(span_sum, f.left), __fmul_rn(f.sum, f.right));
        if (f.ends_span == 0) return;
        whole = __fadd_rn(__fmul_rn(whole, f.whole_left), __fmul_rn(span, f.whole_right));
        whole_sum = __fadd_rn(__fmul_rn(whole_sum, f.whole_left), __fmul_rn(span_sum, f.whole_right));
    }
    [[nodiscard]] __device__ float result() const { return __fdiv_rn(whole, whole_sum); }
};

/// Grid [rows of the round, q_heads].
__global__ void __launch_bounds__(attention_threads, 4) merge_kernel(MergeArgs args) {
    const PlanRow row = args.rows[blockIdx.x];
    const int head = static_cast<int>(blockIdx.y);
    MergeFactorTable factors(args, row, head);
    factors.fill();
    const std::int64_t step = std::int64_t{args.q_heads} * args.head_dim;
    const std::int64_t out_row = std::int64_t{row.row} * args.out_stride;
    const auto put = [&](std::int64_t column, float value) {
        if (args.act == DType::f32) {
            reinterpret_cast<float*>(args.out)[out_row + column] = value;
        } else {
            reinterpret_cast<std::uint16_t*>(args.out)[out_row + column] = f32_to_bf16(value);
        }
    };
    for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += attention_threads) {
        const float* from = args.outputs + row.first_entry * step + std::int64_t{head} * args.head_dim + d;
        MergedDimension merged;
        for (int i = 0; i < row.num_entries; i += merge_loads) {
            float values[merge_loads];
#pragma unroll
            for (int k = 0; k < merge_loads; ++k) {
                values[k] = i + k < row.num_entries ? __ldg(from + (i + k) * step) : 0.0F;
            }
#pragma unroll
            for (int k = 0; k < merge_loads; ++k) {
                if (i + k < row.num_entries) merged.add(values[k], factors.at(i + k));
            }
        }
        put(std::int64_t{head} * args.head_dim + d, merged.result());
    }
    if (head + 1 < args.q_heads) return;
    for (std::int64_t column = step + threadIdx.x; column < args.out_stride; column += attention_threads) {
        put(column, 0.0F);
    }
}

}  // namespace longhaul::kernels::cuda
