// Measures where the time of a pass goes: a device that forwards all calls to another device and times them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::runner {

/// Totals of all calls of one operation (for matmuls: of one shape).
struct DevicePart {
    std::int64_t calls = 0;
    double seconds = 0;
    double bytes = 0;  ///< weights or KV that must come from memory
    double flops = 0;  ///< of matmuls and attention; 0 for operations where only the time matters
};

/// Times the inner device's operations by name ("product 5632 x 2048", "attention", …) and returns the inner device's
/// results. Single-threaded like every Device.
class TimedDevice final : public kernels::Device, private kernels::DeltaRule {
  public:
    explicit TimedDevice(std::unique_ptr<kernels::Device> inner) : owned_(std::move(inner)), inner_(*owned_) {}

    void reset() { parts_.clear(); }
    [[nodiscard]] const std::map<std::string, DevicePart>& parts() const { return parts_; }

    [[nodiscard]] std::string_view name() const override { return inner_.name(); }
    [[nodiscard]] int threads() const override { return inner_.threads(); }
    [[nodiscard]] std::string place() const override { return inner_.place(); }
    [[nodiscard]] double measure_peak_flops() override { return inner_.measure_peak_flops(); }
    [[nodiscard]] std::vector<std::string> choices() const override { return inner_.choices(); }
    [[nodiscard]] std::optional<kernels::DeviceMemory> own_memory() const override { return inner_.own_memory(); }
    [[nodiscard]] std::int64_t operation_bytes(const kernels::KvLayout& layout,
                                               const kernels::PassSize& pass) const override {
        return inner_.operation_bytes(layout, pass);
    }
    [[nodiscard]] kernels::DeviceLinks* links() override { return inner_.links(); }
    void finish() override { inner_.finish(); }
    std::byte* allocate_staging(std::size_t num_bytes) override { return inner_.allocate_staging(num_bytes); }
    void release_staging(std::byte* data, std::size_t num_bytes) noexcept override {
        inner_.release_staging(data, num_bytes);
    }
    std::byte* allocate(std::size_t num_bytes) override { return inner_.allocate(num_bytes); }
    [[nodiscard]] bool can_use_host_memory() const override { return inner_.can_use_host_memory(); }
    std::byte* allocate_in_host_memory(std::size_t num_bytes) override {
        return inner_.allocate_in_host_memory(num_bytes);
    }
    void release(std::byte* data, std::size_t num_bytes) noexcept override { inner_.release(data, num_bytes); }
    void upload(std::byte* to, const void* from_host, std::size_t num_bytes) override;
    void download(void* to_host, const std::byte* from, std::size_t num_bytes) override;
    void copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) override;
    kernels::Matrix pack(kernels::DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                         std::int64_t slice_length) override;
    kernels::Matrix pack_gated(kernels::DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                               std::int64_t slice_length) override;
    [[nodiscard]] std::size_t packed_bytes(const kernels::Matrix& geometry) const override {
        return inner_.packed_bytes(geometry);
    }
    [[nodiscard]] std::string_view packed_layout() const override { return inner_.packed_layout(); }
    kernels::Buffer adopt(const std::byte* data, std::size_t num_bytes) override {
        return inner_.adopt(data, num_bytes);
    }
    void embed(const kernels::Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void matmul(const kernels::Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                float* y) override;
    void matmuls(std::span<const kernels::MatmulCall> calls, std::int64_t x_stride) override;
    void layer_matmul(const kernels::Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                      float* y) override;
    void gated_matmul(const kernels::Matrix& w, kernels::Gate gate, const std::byte* x, std::int64_t x_stride,
                      std::int64_t num_rows, float* sums, kernels::DType act, std::byte* out,
                      std::int64_t out_stride) override;
    void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                       float* out) override;
    void weighted_sums(const float* x, std::span<const kernels::WeightedRow> terms, std::int64_t per_row,
                       std::int64_t dim, float* out) override;
    void add(float* x, const float* y, std::int64_t count) override;
    void scale(float* x, float factor, std::int64_t count) override;
    void soft_cap(float* x, float cap, std::int64_t count) override;
    void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) override;
    void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                  kernels::DType act, std::byte* out, std::int64_t out_stride) override;
    void add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                      kernels::DType act, std::byte* out, std::int64_t out_stride) override;
    void layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                    std::int64_t dim, kernels::DType act, std::byte* out, std::int64_t out_stride) override;
    void activate(kernels::Activation f, const float* x, std::int64_t num_rows, std::int64_t width, kernels::DType act,
                  std::byte* out, std::int64_t out_stride) override;
    void round_rows(const float* x, std::int64_t num_rows, std::int64_t width, kernels::DType act, std::byte* out,
                    std::int64_t out_stride) override;
    void gate_mul(kernels::Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, kernels::DType act,
                  std::byte* out, std::int64_t out_stride) override;
    void output_gate(kernels::OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                     std::int64_t num_rows, std::int64_t width, kernels::DType act, std::byte* out,
                     std::int64_t out_stride) override;
    [[nodiscard]] kernels::DeltaRule* delta_rule() override { return inner_.delta_rule() != nullptr ? this : nullptr; }
    void mix(const kernels::KvLayout& layout, std::int64_t layer, const kernels::DeltaWeights& weights,
             const float* inputs, std::int64_t inputs_stride, const float* gates, float* out) override;
    void accept(const kernels::KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                std::span<const std::int32_t> slots) override {
        inner_.delta_rule()->accept(layout, state, scratch_pages, slots);
    }
    [[nodiscard]] std::size_t kv_page_bytes(const kernels::KvLayout& layout) const override;
    [[nodiscard]] std::int64_t kv_pages_together(const kernels::KvLayout& layout) const override;
    void begin_pass(const kernels::PassRows& pass) override;
    void head_norm(const kernels::KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                   const kernels::HeadGains& gains, float eps) override;
    void head_squares(const kernels::KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                      const kernels::WholeHeads& of, float* squares) override;
    void whole_norm(const kernels::KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                    const kernels::WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                    float eps) override;
    void rope_store(const kernels::KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                    std::byte* q_out) override;
    void qkv_matmul(const kernels::Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                    float* qkv, const kernels::KvLayout& layout, std::int64_t layer, std::int64_t q_heads,
                    std::byte* q_out) override;
    void attention(const kernels::KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                   const float* sinks, kernels::DType act, std::byte* out, std::int64_t out_stride) override;
    void rank_positions(const kernels::KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                        const kernels::PositionRange& range, std::int32_t* positions) override;
    void gather_positions(const kernels::KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                          const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                          std::int64_t first_slot) override;
    void kv_move(const kernels::KvLayout& layout, kernels::KvSlot from, kernels::KvSlot to) override;
    void kv_export(const kernels::KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                   bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const override;
    void kv_import(const kernels::KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                   bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) override;
    void kv_export_box(const kernels::KvLayout& layout, std::span<std::byte* const> pages, const kernels::KvBox& box,
                       std::byte* to_host, std::size_t head_stride) const override {
        inner_.kv_export_box(layout, pages, box, to_host, head_stride);
    }
    void kv_import_box(const kernels::KvLayout& layout, std::span<std::byte* const> pages, const kernels::KvBox& box,
                       const std::byte* from_host, std::size_t head_stride) override {
        inner_.kv_import_box(layout, pages, box, from_host, head_stride);
    }
    [[nodiscard]] kernels::TokenChooser* token_chooser() const override {
        return inner_.token_chooser() != nullptr ? &chooser_ : nullptr;
    }

  private:
    class Chooser final : public kernels::TokenChooser {
      public:
        explicit Chooser(TimedDevice& device) : device_(device) {}
        void choose(float* logits, std::int64_t stride, std::int64_t vocab_size,
                    std::span<const kernels::Choice> choices, std::span<std::int32_t> tokens) override;
        void draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const kernels::Choice> choices,
                  std::int64_t count, std::span<kernels::Drawn> drawn) override;
        void decide(float* logits, std::int64_t stride, std::int64_t vocab_size, kernels::TrialRule rule,
                    std::span<const kernels::NodeTrials> nodes, std::span<kernels::Decided> decided) override;

      private:
        TimedDevice& device_;
    };

    void timed_matmul(const kernels::Matrix& w, std::int64_t num_rows, const std::function<void()>& run);
    void timed(const std::string& part, double bytes, double flops, const std::function<void()>& run);

    std::unique_ptr<kernels::Device> owned_;
    kernels::Device& inner_;
    kernels::PassRows pass_;
    std::map<std::string, DevicePart> parts_;
    mutable Chooser chooser_{*this};
};

}  // namespace longhaul::runner
