// The vector CPU devices (made by variants.cpp): CpuDevice distributes the work of each operation over threads, a
// KernelTable computes.
//
// Threads: a Team, called at most once per operation; an operation with less work than a call is worth stays on the
// calling thread. Outputs are distributed, never sums, so the number of threads does not change any bit. Workspace,
// grown on demand and kept: the rows of matmul inputs that share a pass (at most 48 * K * 4 bytes, with AMX twice as
// much) and, for attention, about 200 KB per thread at head_dim 128 and the deferred chunk results (cpu_attention.cpp):
// at most a tenth of the keys and values that the call reads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/matmul_work.hpp"
#include "kernels/cpu/work_queue.hpp"
#include "kernels/delta_rule.hpp"
#include "kernels/host_memory.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/source_rows.hpp"

namespace longhaul::kernels::cpu {

/// Memory that only grows, 64-byte aligned; its contents are lost when it grows.
class Workspace {
  public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() { release_host(data_, num_bytes_); }

    template <typename T>
    T* get(std::int64_t count) {
        const auto wanted = static_cast<std::size_t>(count) * sizeof(T);
        if (wanted > num_bytes_) grow(wanted);
        return reinterpret_cast<T*>(data_);
    }

  private:
    void grow(std::size_t num_bytes);

    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

// Minimum work per thread before another thread is called. Measured on 2 cores of Zen 3, still with OpenMP: calling and
// joining took 1.0 microsecond while the threads spin, and 42 if they sleep; one thread reads weights from L2 at 36
// GB/s, so 64 KB take 1.8 microseconds.
constexpr std::int64_t matmul_bytes_per_thread = 64 << 10;
constexpr std::int64_t elements_per_thread = 16 << 10;
/// Up to this number of packed input words of a matmul, one thread packs for all. More take longer than a barrier,
/// especially if half of the inputs are in the cache of another core (Zen 5: 16K words 10 microseconds).
constexpr std::int64_t words_packed_alone = 4 << 10;

struct AttentionPlan;

class CpuDevice final : public HostDevice, private DeltaRule {
  public:
    CpuDevice(const KernelTable& table, int threads) : table_(table), threads_(threads), queue_(threads) {}

    [[nodiscard]] std::string_view name() const override { return table_.name; }
    [[nodiscard]] int threads() const override { return threads_; }

    Matrix pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) override;
    Matrix pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                      std::int64_t slice_length) override;
    [[nodiscard]] std::size_t packed_bytes(const Matrix& geometry) const override;
    [[nodiscard]] std::string_view packed_layout() const override;
    void embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) override;
    void matmuls(std::span<const MatmulCall> calls, std::int64_t x_stride) override;
    void gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                      float* sums, DType act, std::byte* out, std::int64_t out_stride) override;
    void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row, std::int64_t dim,
                       float* out) override;
    void add(float* x, const float* y, std::int64_t count) override;
    void scale(float* x, float factor, std::int64_t count) override;
    void soft_cap(float* x, float cap, std::int64_t count) override;
    void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) override;
    void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim, DType act,
                  std::byte* out, std::int64_t out_stride) override;
    void add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                      DType act, std::byte* out, std::int64_t out_stride) override;
    void layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                    std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) override;
    void activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                  std::int64_t out_stride) override;
    void round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                    std::int64_t out_stride) override;
    void gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                  std::int64_t out_stride) override;

    void output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x, std::int64_t num_rows,
                     std::int64_t width, DType act, std::byte* out, std::int64_t out_stride) override;
    [[nodiscard]] DeltaRule* delta_rule() override { return this; }

    [[nodiscard]] std::size_t kv_page_bytes(const KvLayout& layout) const override;
    void begin_pass(const PassRows& pass) override;
    [[nodiscard]] std::int64_t kv_pages_together(const KvLayout& layout) const override;
    void head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                   const HeadGains& gains, float eps) override;
    void head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                      const WholeHeads& of, float* squares) override;
    void whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                    const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                    float eps) override;
    void rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                    std::byte* q_out) override;
    void qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* qkv,
                    const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, std::byte* q_out) override;
    void attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                   const float* sinks, DType act, std::byte* out, std::int64_t out_stride) override;
    void rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                        const PositionRange& range, std::int32_t* positions) override;
    void gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                          const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                          std::int64_t first_slot) override;
    void kv_move(const KvLayout& layout, KvSlot from, KvSlot to) override;
    void kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head, bool values,
                   std::int64_t first, std::int64_t count, std::byte* to_host) const override;
    void kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head, bool values,
                   std::int64_t first, std::int64_t count, const std::byte* from_host) override;

  private:
    // in cpu_delta.cpp
    void mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
             std::int64_t inputs_stride, const float* gates, float* out) override;
    void accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                std::span<const std::int32_t> slots) override;

    /// Number of threads for `work` units if each should get at least `per_thread`.
    [[nodiscard]] int threads_for(std::int64_t work, std::int64_t per_thread) const;
    using RowsKernel = void (*)(const RowsJob& job, std::int64_t first_row, std::int64_t end_row);
    void run_rows(RowsKernel kernel, const RowsJob& job, std::int64_t num_rows, std::int64_t per_thread) const;
    /// For f32 and bf16 weights.
    [[nodiscard]] BlockPlaces places_of(const Matrix& w) const {
        return {w.num_inputs / (w.dtype == DType::bf16 ? 2 : 1), blocks_of(w.num_outputs), table_.blocks_together};
    }
    // in cpu_pack.cpp
    void pack_sources(std::span<const SourceRow> sources, Matrix& matrix);
    // in cpu_matmul.cpp
    /// Maximum rows that share one pass over the weights.
    [[nodiscard]] std::int64_t block_rows_of(const Matrix& w) const;
    void multiply_rows(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                       const MatmulOutput& out);
    void multiply(std::span<const MatmulPart> parts);
    // in cpu_quantized.cpp
    void pack_quantized(std::span<const SourceRow> sources, Matrix& matrix);
    [[nodiscard]] static std::int64_t quantized_block_bytes(const Matrix& geometry);
    void embed_quantized(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out);
    void multiply_quantized(std::span<const MatmulPart> parts);

    const KernelTable& table_;
    int threads_;
    WorkQueue queue_;
    Workspace words_;                          // packed matmul inputs
    Workspace scales_;                         // scales of quantized inputs, and their corrections
    std::vector<DeltaScratch> delta_scratch_;  // by thread
    Workspace attention_;                      // scratch, chunk results and states: see cpu_attention.cpp
    std::vector<std::shared_ptr<const AttentionPlan>>
        plans_;  ///< by group, of the current pass, made in its first layer
};

}  // namespace longhaul::kernels::cpu
