// The oracle of the kernel tests: every operation as plain loops over row-major arrays, in exactly the order that
// numerics.hpp states. Not optimised, so that it can be checked by reading. It has its own layouts:
//   weights  bf16 or f32 [num_outputs, num_inputs]
//   KV page  dtype [layer, kv_head, {key, value}, slot (64), head_dim]
#pragma once

#include <memory>

#include "kernels/host_memory.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::kernels {

/// `threads`: the result of threads(), and the number of threads among which the outputs of a matmul or attention are
/// divided. `order`: of matmuls with bf16 weights and of attention over bf16 keys and values.
std::unique_ptr<Device> make_reference_device(int threads, Bf16Order order = Bf16Order::pairs);

namespace reference {

class ReferenceDevice final : public HostDevice, private DeltaRule {
  public:
    ReferenceDevice(int threads, Bf16Order order) : threads_(threads), order_(order) {}

    [[nodiscard]] std::string_view name() const override { return "reference"; }
    [[nodiscard]] int threads() const override { return threads_; }

    Matrix pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) override;
    [[nodiscard]] std::size_t packed_bytes(const Matrix& geometry) const override;
    [[nodiscard]] std::string_view packed_layout() const override { return "reference-1"; }
    void embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) override;
    void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row, std::int64_t dim,
                       float* out) override;
    void add(float* x, const float* y, std::int64_t count) override;
    void scale(float* x, float factor, std::int64_t count) override;
    void soft_cap(float* x, float cap, std::int64_t count) override;
    void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) override;
    void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim, DType act,
                  std::byte* out, std::int64_t out_stride) override;
    void layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                    std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) override;
    void activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                  std::int64_t out_stride) override;
    void round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                    std::int64_t out_stride) override;
    void gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                  std::int64_t out_stride) override;
    void head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                   const HeadGains& gains, float eps) override;
    void head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                      const WholeHeads& of, float* squares) override;
    void whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                    const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                    float eps) override;

    void output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x, std::int64_t num_rows,
                     std::int64_t width, DType act, std::byte* out, std::int64_t out_stride) override;
    [[nodiscard]] DeltaRule* delta_rule() override { return this; }

    [[nodiscard]] std::size_t kv_page_bytes(const KvLayout& layout) const override;
    void rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                    std::byte* q_out) override;
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
    void mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
             std::int64_t inputs_stride, const float* gates, float* out) override;
    void accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                std::span<const std::int32_t> slots) override;

    int threads_;
    Bf16Order order_;
};

/// Byte offset of one key (or value) in a page.
std::int64_t kv_offset(const KvLayout& layout, std::int64_t layer, std::int64_t kv_head, bool values,
                       std::int64_t slot);

}  // namespace reference
}  // namespace longhaul::kernels
