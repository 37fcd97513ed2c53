// A device whose memory the host cannot access and whose operations run asynchronously, like a GPU's. The engine and
// the runner are tested on it. It forwards every operation to an inner device that computes on the host, with
// translated addresses: the addresses it returns are mapped without access rights, so that a host read or write ends
// the test where it happens. Host memory passed in place of device memory is refused. Operations wait in a queue until
// a result is requested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine::testing {

class RemoteDevice final : public kernels::Device {
  public:
    explicit RemoteDevice(std::unique_ptr<kernels::Device> inner) : inner_(std::move(inner)) {}
    ~RemoteDevice() override;

    kernels::DeviceMemory memory{std::int64_t{4} << 30, std::int64_t{4} << 30};  ///< what own_memory reports
    kernels::DeviceLinks* device_links = nullptr;
    std::function<void()> pass_begins;            ///< called by each begin_pass
    std::function<void(std::size_t)> downloads;   ///< called by each download, with its size in bytes
    std::function<void(std::size_t)> allocates;   ///< called by each allocate, with its size in bytes
    std::function<void(std::size_t)> releases;    ///< likewise by each release
    mutable std::function<void()> export_begins;  ///< called at the start of each export, on its thread
    std::int64_t operations_take = 0;             ///< what operation_bytes returns
    mutable kernels::PassSize last_pass{};        ///< argument of the last operation_bytes call
    bool chooses = false;                         ///< report a token chooser even if the inner device has none
    std::int64_t widest_head = 1024;              ///< what max_head_dim reports
    bool host_memory = true;                      ///< what can_use_host_memory reports
    std::function<void()> host_allocates;         ///< called by each allocate_in_host_memory

    [[nodiscard]] std::string_view name() const override { return inner_->name(); }
    [[nodiscard]] int threads() const override { return inner_->threads(); }
    [[nodiscard]] std::string place() const override { return "far away"; }
    [[nodiscard]] std::optional<kernels::DeviceMemory> own_memory() const override { return memory; }
    [[nodiscard]] std::int64_t operation_bytes(const kernels::KvLayout& /*layout*/,
                                               const kernels::PassSize& pass) const override {
        last_pass = pass;
        return operations_take;
    }
    [[nodiscard]] std::int64_t max_head_dim(kernels::DType /*kv*/) const override { return widest_head; }
    [[nodiscard]] kernels::DeviceLinks* links() override { return device_links; }
    void finish() override;

    std::byte* allocate(std::size_t num_bytes) override;
    [[nodiscard]] bool can_use_host_memory() const override { return host_memory; }
    std::byte* allocate_in_host_memory(std::size_t num_bytes) override;
    void release(std::byte* data, std::size_t num_bytes) noexcept override;
    void upload(std::byte* to, const void* from_host, std::size_t num_bytes) override;
    void download(void* to_host, const std::byte* from, std::size_t num_bytes) override;
    void copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) override;
    kernels::Matrix pack(kernels::DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                         std::int64_t slice_length) override;
    kernels::Matrix pack_gated(kernels::DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                               std::int64_t slice_length) override;
    [[nodiscard]] std::size_t packed_bytes(const kernels::Matrix& geometry) const override {
        return inner_->packed_bytes(geometry);
    }
    [[nodiscard]] std::string_view packed_layout() const override { return inner_->packed_layout(); }
    kernels::Buffer adopt(const std::byte* data, std::size_t num_bytes) override;
    void embed(const kernels::Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void matmul(const kernels::Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                float* y) override;
    void layer_matmul(const kernels::Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                      float* y) override;
    void gated_matmul(const kernels::Matrix& w, kernels::Gate gate, const std::byte* x, std::int64_t x_stride,
                      std::int64_t num_rows, float* sums, kernels::DType act, std::byte* out,
                      std::int64_t out_stride) override;
    void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                       float* out) override;
    void add(float* x, const float* y, std::int64_t count) override;
    void scale(float* x, float factor, std::int64_t count) override;
    void soft_cap(float* x, float cap, std::int64_t count) override;
    void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) override;
    void weighted_sums(const float* x, std::span<const kernels::WeightedRow> terms, std::int64_t per_row,
                       std::int64_t dim, float* out) override;
    void add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                     const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) override;
    void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
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
    [[nodiscard]] std::size_t kv_page_bytes(const kernels::KvLayout& layout) const override {
        return inner_->kv_page_bytes(layout);
    }
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
                       std::byte* to_host, std::size_t head_stride) const override;
    void kv_import_box(const kernels::KvLayout& layout, std::span<std::byte* const> pages, const kernels::KvBox& box,
                       const std::byte* from_host, std::size_t head_stride) override;
    [[nodiscard]] kernels::TokenChooser* token_chooser() const override {
        return chooses || inner_->token_chooser() != nullptr ? &chooser_ : nullptr;
    }
    [[nodiscard]] kernels::DeltaRule* delta_rule() override {
        return inner_->delta_rule() == nullptr ? nullptr : &delta_;
    }

  private:
    class Chooser final : public kernels::TokenChooser {
      public:
        explicit Chooser(RemoteDevice& device) : device_(device) {}
        void choose(float* logits, std::int64_t stride, std::int64_t vocab_size,
                    std::span<const kernels::Choice> choices, std::span<std::int32_t> tokens) override;
        void draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const kernels::Choice> choices,
                  std::int64_t count, std::span<kernels::Drawn> drawn) override;
        void decide(float* logits, std::int64_t stride, std::int64_t vocab_size, kernels::TrialRule rule,
                    std::span<const kernels::NodeTrials> nodes, std::span<kernels::Decided> decided) override;

      private:
        RemoteDevice& device_;
    };
    class Delta final : public kernels::DeltaRule {
      public:
        explicit Delta(RemoteDevice& device) : device_(device) {}
        void mix(const kernels::KvLayout& layout, std::int64_t layer, const kernels::DeltaWeights& weights,
                 const float* inputs, std::int64_t inputs_stride, const float* gates, float* out) override;
        void accept(const kernels::KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                    std::span<const std::int32_t> slots) override;

      private:
        RemoteDevice& device_;
    };
    struct Block {
        std::byte* inner = nullptr;
        std::size_t num_bytes = 0, mapped_bytes = 0;
    };
    /// A pass with the inner device's addresses.
    struct InnerPass {
        struct Group {
            std::vector<std::vector<std::byte*>> pages;
            std::vector<kernels::AttentionSequence> sequences;
            std::vector<kernels::KvSlot> slots;
        };
        std::vector<Group> groups;
        std::vector<kernels::GroupRows> rows;
    };

    /// Translates an address of this device to one of the inner device.
    template <typename T>
    T* inner(T* data) const;
    [[nodiscard]] std::vector<std::byte*> inner_pages(std::span<std::byte* const> pages) const;
    std::byte* map_block(std::byte* inner, std::size_t num_bytes);
    kernels::Matrix taken(kernels::Matrix matrix);
    [[nodiscard]] kernels::Matrix inner_matrix(const kernels::Matrix& matrix) const;
    void begin_inner_pass(const kernels::PassRows& pass);
    void later(std::function<void()> operation);
    void run_queue() const;  ///< the caller holds the lock

    std::unique_ptr<kernels::Device> inner_;
    mutable std::recursive_mutex mutex_;
    std::map<const std::byte*, Block> blocks_;
    mutable std::vector<std::function<void()>> queue_;
    InnerPass pass_;
    mutable Chooser chooser_{*this};
    Delta delta_{*this};
};

/// Computes with the fastest CPU kernels, in one thread.
inline std::unique_ptr<RemoteDevice> make_remote() {
    return std::make_unique<RemoteDevice>(kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1));
}

}  // namespace longhaul::engine::testing
