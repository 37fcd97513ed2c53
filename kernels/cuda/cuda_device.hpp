// The GPU as a Device. Operations are queued on one stream and run asynchronously; only `download` waits for results.
// `policy` decides which kernels of a step become CUDA graphs (launches.hpp).
//
// There are three arithmetics. `exact` follows the contract of the CPU devices, bit for bit. `tensor` computes matmuls
// with bf16 weights and attention over bf16 keys on tensor cores, whose sums round differently: its numerics differ
// from the CPU's, but a row's result still depends only on its own path. `library` is `tensor`, except that prompt rows
// are multiplied by a library (prompt_matmul.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/cuda/runtime.hpp"
#include "kernels/device.hpp"
#include "kernels/linear_attention.hpp"
#include "kernels/source_rows.hpp"

namespace longhaul::kernels::cuda {

enum class Arithmetic : std::uint8_t { exact, tensor, library };

/// Device memory that grows on demand and never shrinks; growing loses the contents.
class Workspace {
  public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() {
        if (data_ != nullptr) release_memory(data_);
    }

    /// Waits for `stream` if it has to grow, because kernels in flight may use the old memory.
    template <typename T>
    T* get(const Stream& stream, std::int64_t count) {
        const auto wanted = static_cast<std::size_t>(count) * sizeof(T);
        if (wanted > num_bytes_) grow(stream, wanted);
        return reinterpret_cast<T*>(data_);
    }

  private:
    void grow(const Stream& stream, std::size_t num_bytes);

    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// Throws std::invalid_argument if the kernels cannot run on this GPU.
void check_gpu(const GpuProperties& gpu);

class CudaDevice final : public Device, private DeltaRule {
  public:
    CudaDevice(Arithmetic arithmetic, int gpu, const GraphPolicy& policy = {}, SumOrder order = SumOrder::fixed);
    ~CudaDevice() override;

    [[nodiscard]] std::string_view name() const override;
    [[nodiscard]] int threads() const override { return 1; }

    // cuda_device.cu
    [[nodiscard]] std::string place() const override;
    [[nodiscard]] std::optional<DeviceMemory> own_memory() const override;
    [[nodiscard]] DeviceLinks* links() override;
    [[nodiscard]] TokenChooser* token_chooser() const override;
    [[nodiscard]] DeltaRule* delta_rule() override { return this; }
    void finish() override;
    std::byte* allocate_staging(std::size_t num_bytes) override;
    void release_staging(std::byte* data, std::size_t num_bytes) noexcept override;
    std::byte* allocate(std::size_t num_bytes) override;
    [[nodiscard]] bool can_use_host_memory() const override { return true; }
    std::byte* allocate_in_host_memory(std::size_t num_bytes) override;
    void release(std::byte* data, std::size_t num_bytes) noexcept override;
    void upload(std::byte* to, const void* from_host, std::size_t num_bytes) override;
    void download(void* to_host, const std::byte* from, std::size_t num_bytes) override;
    void copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) override;
    Buffer adopt(const std::byte* data, std::size_t num_bytes) override;
    void begin_pass(const PassRows& pass) override;

    // pack.cu, matmul.cu
    Matrix pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) override;
    Matrix pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                      std::int64_t slice_length) override;
    [[nodiscard]] std::size_t packed_bytes(const Matrix& geometry) const override;
    [[nodiscard]] std::string_view packed_layout() const override;
    void embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) override;

    // prompt_matmul.cu
    void layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                      float* y) override;
    void gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                      float* sums, DType act, std::byte* out, std::int64_t out_stride) override;
    [[nodiscard]] std::vector<std::string> choices() const override;

    // peak.cu
    [[nodiscard]] double measure_peak_flops() override;

    // rows.cu
    void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) override;
    void gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                       float* out) override;
    void weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row, std::int64_t dim,
                       float* out) override;
    void add(float* x, const float* y, std::int64_t count) override;
    void scale(float* x, float factor, std::int64_t count) override;
    void soft_cap(float* x, float cap, std::int64_t count) override;
    void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) override;
    void add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                     const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) override;
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

    // kv.cu, kv_transfers.cu, attention.cu, rank.cu
    [[nodiscard]] std::int64_t max_head_dim(DType kv) const override { return kv == DType::bf16 ? 640 : 512; }
    [[nodiscard]] std::int64_t operation_bytes(const KvLayout& layout, const PassSize& pass) const override;
    [[nodiscard]] std::size_t kv_page_bytes(const KvLayout& layout) const override;
    void head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                   const HeadGains& gains, float eps) override;
    void head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                      const WholeHeads& of, float* squares) override;
    void whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                    const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                    float eps) override;
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
    void kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::byte* to_host,
                       std::size_t head_stride) const override;
    void kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                       const std::byte* from_host, std::size_t head_stride) override;

  private:
    // delta.cu
    void mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
             std::int64_t inputs_stride, const float* gates, float* out) override;
    void accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                std::span<const std::int32_t> slots) override;

    /// The rows of the pass, first..end, that a library multiplies; empty: none.
    struct PromptRows {
        std::int64_t first = 0, end = 0;
    };
    [[nodiscard]] PromptRows library_rows(const Matrix& w, std::int64_t x_stride, std::int64_t num_rows) const;

    /// Where gated_matmul stores its result: act [rows, stride].
    struct GatedOutput {
        Gate gate;
        DType act;
        std::byte* out;
        std::int64_t stride;
    };
    /// y = W x; if `gated` is given, y is scratch and the result is gated.
    void multiply(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y,
                  const GatedOutput* gated);
    void pack_sources(std::span<const SourceRow> sources, Matrix& matrix);

    struct State;  // state of the files above between calls (cuda_state.hpp)
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::kernels::cuda
