// The operations one device offers to the engine. kernels/reference (plain loops, the judge), kernels/cpu (AVX2 and
// AVX-512) and kernels/cuda fill the same list; the caller cannot tell which it got.
//
// The contract is arithmetic, not "close": order of summation, rounding and elementary functions are those of
// algorithms.md section 7, so all CPU variants and `cuda-exact` give the same bits. numerics.hpp states the order in
// words and holds its version number.
//
// Shapes are written slowest dimension first. "act" is the type that matrix products read: bf16 or f32 (act_type).
// Pointers are to device memory unless a span is given (host). What lies behind a span is read before the call returns,
// but for those of PassRows. A device may still compute when a call returns: operations take effect in the order of the
// calls, and whatever hands bytes to the host (download, kv_export, finish) waits for those before it; so does release.
// Calls of one Device come from one thread; they may use `threads()` threads inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device_error.hpp"

namespace longhaul::kernels {

/// f16 only as a source of weights; int8 and int4 only as packed weights (quantized.hpp).
enum class DType : std::uint8_t { bf16, f32, f16, int8, int4 };

/// Of an element that stands alone: not of int8 and int4 (KvLayout::token_bytes says it of keys and values).
constexpr std::size_t bytes_of(DType dtype) {
    return dtype == DType::f32 ? 4 : 2;
}

/// What a product with weights of `dtype` reads.
constexpr DType act_type(DType dtype) {
    return dtype == DType::f32 ? DType::f32 : DType::bf16;
}

class Device;
class TokenChooser;  // kernels/token_chooser.hpp

/// Device memory with one owner. Zero-filled at allocation.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Device& device, std::size_t num_bytes);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    [[nodiscard]] std::byte* data() const { return data_; }
    template <typename T>
    [[nodiscard]] T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

    /// Memory that stays its owner's, who keeps it until the buffer is gone.
    static Buffer borrowed(std::byte* data, std::size_t num_bytes);
    /// Of the host's memory, for pages (Device::allocate_in_host_memory).
    static Buffer far(Device& device, std::size_t num_bytes);

  private:
    Device* device_ = nullptr;  ///< nullptr: borrowed
    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// Host memory that a device copies to and from fastest, with one owner: staging for what crosses often.
class Staging {
  public:
    Staging() = default;
    Staging(Device& device, std::size_t num_bytes);
    Staging(Staging&& other) noexcept;
    Staging& operator=(Staging&& other) noexcept;
    ~Staging();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data_); }
    [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }

  private:
    Device* device_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// Told of source rows that a device has packed and does not read again. Called from any thread of the device.
class PackListener {
  public:
    virtual ~PackListener() = default;
    /// `finite`: no packed value of these bytes is NaN or infinite.
    virtual void packed(const std::byte* begin, std::size_t num_bytes, bool finite) = 0;
};

/// Rows of a weight matrix as a checkpoint stores them (host memory), [num_rows, row_stride] of `dtype`.
struct WeightRows {
    const std::byte* data = nullptr;  ///< nullptr: rows of zeros (padding)
    DType dtype = DType::bf16;
    std::int64_t num_rows = 0;
    std::int64_t row_stride = 0;    ///< elements from one row to the next
    std::int64_t first_column = 0;  ///< first input this matrix reads
    std::int64_t num_columns = 0;   ///< real inputs; the rest up to the padded width are zeros
    PackListener* listener = nullptr;
};

/// A packed weight matrix, y = W x. Layout of `data` is the device's own secret.
struct Matrix {
    DType dtype = DType::bf16;     ///< bf16, f32, int8 or int4
    std::int64_t num_outputs = 0;  ///< rows of W on this rank
    std::int64_t num_inputs = 0;   ///< padded inputs on this rank: num_slices * slice_length
    int num_slices = 0;  ///< slices of the sum on this rank: 8, or 8 / tensor-parallel for row-parallel layers
    std::int64_t slice_length = 0;  ///< even
    bool gated = false;             ///< of pack_gated: for gated_matmul alone
    Buffer data;
};

/// Geometry of paged keys and values on one rank.
struct KvLayout {
    DType dtype = DType::bf16;  ///< bf16, f32, or int8: whole numbers and an f32 scale for each token and head
    std::int64_t num_layers = 0;
    std::int64_t num_kv_heads = 0;  ///< of this rank
    std::int64_t head_dim = 0;      ///< even
    /// So many pages of a slab stand in each other's gaps: the keys of one (layer, head) of the first page, of the
    /// second and so on, then as many bytes of values, then the next head. What Device::kv_pages_together says.
    std::int64_t pages_together = 1;
    static constexpr std::int64_t page_tokens = 64;  ///< slots of a page; divides the attention chunk

    /// What queries are rounded to: as keys, but f32 where keys are int8.
    [[nodiscard]] DType query_type() const { return dtype == DType::int8 ? DType::f32 : dtype; }
    /// Of one key (value) of one head outside of pages: head_dim elements; of int8 then the scale, f32 little-endian.
    [[nodiscard]] std::size_t token_bytes() const {
        const auto elements = static_cast<std::size_t>(head_dim);
        return dtype == DType::int8 ? elements + 4 : elements * bytes_of(dtype);
    }
    /// Of the keys and values of one token, all layers and heads, outside of pages.
    [[nodiscard]] std::int64_t position_bytes() const { return 2 * num_layers * num_kv_heads * token_bytes(); }
    /// From the start of a slab (of a multiple of pages_together) to its page `index`, of kv_page_bytes.
    [[nodiscard]] std::int64_t place_of_page(std::int64_t index, std::int64_t page_bytes) const {
        const std::int64_t in_group = index % pages_together;
        return (index - in_group) * page_bytes + in_group * (page_bytes / (2 * num_layers * num_kv_heads));
    }
};

/// A part of a sequence's keys (values): so many layers, heads of the rank, and positions.
struct KvBox {
    std::int64_t first_layer = 0, num_layers = 1;
    std::int64_t first_head = 0, num_heads = 1;
    bool values = false;
    std::int64_t first = 0, count = 0;  ///< positions

    [[nodiscard]] std::size_t bytes(const KvLayout& layout) const {
        return static_cast<std::size_t>(num_layers * num_heads * count) * layout.token_bytes();
    }
};

/// A place for the key and value of one token: in all layers and heads of `page`, slot `slot`.
struct KvSlot {
    std::byte* page = nullptr;
    std::int32_t slot = 0;
};

/// One row (tree node or prompt token) of an attention call.
struct AttentionRow {
    std::int32_t sequence = 0;  ///< index into the call's sequences
    std::int64_t position = 0;  ///< absolute; the row sees positions 0..position
    std::int64_t in_pages = 0;  ///< positions < in_pages are read from the pages; in_pages <= position + 1
    const std::int32_t* path =
        nullptr;  ///< host: scratch slots of positions in_pages..position, in order (the row itself last)
};

/// Memory of one sequence of an attention call.
struct AttentionSequence {
    std::span<std::byte* const> pages;          ///< page i holds positions [64 i, 64 (i+1))
    std::span<std::byte* const> scratch_pages;  ///< tree nodes: scratch slot s is slot s % 64 of scratch page s / 64
};

/// What the layers of a pass have in common. Host memory, which stays as it is until the next pass begins.
struct PassRows {
    std::span<const AttentionSequence> sequences;
    std::span<const AttentionRow> rows;  ///< of attention
    std::span<const KvSlot> slots;       ///< where keys and values of each row go; nullptr: nowhere
    const float* cos = nullptr;          ///< [slots, num_angles], as sin
    const float* sin = nullptr;
    std::int64_t num_angles = 0;  ///< head_dim / 2
    /// Rows of given text, decided by their places in it alone: a device may sum their products in an order of its own
    /// (layer_matmul).
    std::int64_t first_prompt_row = 0, num_prompt_rows = 0;
};

/// Of a device whose memory is not the host's.
struct DeviceMemory {
    std::int64_t total_bytes = 0;
    std::int64_t free_bytes = 0;  ///< nobody has taken them
};

/// What passes are like, at most.
struct PassSize {
    std::int64_t rows = 0;
    std::int64_t positions = 0;
    std::int64_t q_heads = 0;
    std::int64_t ranks = 1;  ///< of the group
    std::int64_t logit_rows = 0;
    std::int64_t widest_quantized = 0;  ///< inputs or outputs of a matrix of int8 or int4
    std::int64_t decided_vocab = 0;     ///< tokens of a row where nodes are decided; 0: none are
};

/// Sums and rows of the devices of several processes that reach each other without the host. Every rank calls the same
/// in the same order.
class DeviceLink {
  public:
    virtual ~DeviceLink() = default;
    /// data[i] summed over the ranks in the order of sum_ranks.hpp, in place; an operation like those of the device.
    virtual void all_reduce(float* data, std::int64_t count) = 0;
    /// received [ranks, count] = every rank's `data` [count]; an operation like those of the device.
    virtual void all_gather(const float* data, float* received, std::int64_t count) = 0;
    /// Waits until the sums asked for are there. Throws std::runtime_error where they cannot come any more.
    virtual void finish() = 0;
};

/// How a device finds those of other processes.
class DeviceLinks {
  public:
    virtual ~DeviceLinks() = default;
    /// The same for two devices only where they are one; of one device in all processes. Names the kind of link, too.
    /// Throws std::runtime_error where this process lacks what links need.
    [[nodiscard]] virtual std::string address() const = 0;
    /// One rank makes it, all join with it.
    [[nodiscard]] virtual std::vector<std::byte> new_id() const = 0;
    /// Collective over the `size` ranks, each with a device of its own. Throws std::runtime_error.
    virtual std::unique_ptr<DeviceLink> join(std::span<const std::byte> id, int rank, int size) = 0;
};

/// Operations of one device. Implementations throw std::bad_alloc when memory ends, DeviceError when the device
/// fails, and std::logic_error when called wrongly.
class Device {
  public:
    virtual ~Device() = default;

    /// "reference", "avx2", "avx512", "cuda", "cuda-exact", "cuda-cublas": what the log and the run folder record.
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual int threads() const = 0;
    /// Which one of several, "GPU 1 of 4, NVIDIA H200"; "" where the name says all.
    [[nodiscard]] virtual std::string place() const { return ""; }
    /// Operations a second of its bf16 multiply-adds on registers alone, measured now; 0: it cannot say.
    [[nodiscard]] virtual double measure_peak_flops() { return 0; }
    /// What it chose for itself so far that decides bits, a line each, for the log.
    [[nodiscard]] virtual std::vector<std::string> choices() const { return {}; }
    /// nullopt: it computes in the host's memory, and a pointer means the same to both.
    [[nodiscard]] virtual std::optional<DeviceMemory> own_memory() const { return std::nullopt; }
    /// Of own_memory(), what operations of such passes take for themselves: not what callers allocate.
    [[nodiscard]] virtual std::int64_t operation_bytes(const KvLayout& /*layout*/, const PassSize& /*pass*/) const {
        return 0;
    }
    /// nullptr: there is no way but over the host.
    [[nodiscard]] virtual DeviceLinks* links() { return nullptr; }
    /// nullptr: tokens are the host's to choose.
    [[nodiscard]] virtual TokenChooser* token_chooser() const { return nullptr; }
    /// Waits until all that was asked for is done: for measurements. Errors of operations appear here at the latest.
    virtual void finish() {}

    // --- memory -----------------------------------------------------------------------------------------------------
    virtual std::byte* allocate(std::size_t num_bytes) = 0;  ///< zero-filled, 64-byte aligned
    /// Whether pages of keys and values may also lie in memory of the host (own_memory() is too small for them).
    [[nodiscard]] virtual bool can_use_host_memory() const { return false; }
    /// Memory of the host for pages, zero-filled, 64-byte aligned; released as other memory. All operations on keys and
    /// values take such pages as they take others; attention over them is as fast as the link to the host.
    virtual std::byte* allocate_in_host_memory(std::size_t num_bytes);
    virtual void release(std::byte* data, std::size_t num_bytes) noexcept = 0;
    virtual void upload(std::byte* to, const void* from_host, std::size_t num_bytes) = 0;
    virtual void download(void* to_host, const std::byte* from, std::size_t num_bytes) = 0;
    /// Memory of Staging, 64-byte aligned; here any of the host's.
    virtual std::byte* allocate_staging(std::size_t num_bytes);
    virtual void release_staging(std::byte* data, std::size_t num_bytes) noexcept;

    // --- weights ----------------------------------------------------------------------------------------------------
    /// Packs the rows of `parts`, stacked, as a matrix of `num_slices` slices of `slice_length` inputs. f16 and f32
    /// sources are rounded to nearest even where `dtype` is bf16; exact where it is f32; int8 and int4 as quantized.hpp
    /// says.
    virtual Matrix pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) = 0;

    /// The same of gate rows and then as many up rows, for gated_matmul: a device may keep them in an order of its own.
    virtual Matrix pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                              std::int64_t slice_length);

    /// Bytes of a matrix of this type and geometry, packed.
    [[nodiscard]] virtual std::size_t packed_bytes(const Matrix& geometry) const = 0;
    /// Name and version of the layout that `pack` gives: devices of one name read each other's packed matrices.
    [[nodiscard]] virtual std::string_view packed_layout() const = 0;
    /// A buffer with what lies at `data` (host memory, 64-byte aligned). Devices that compute on the host read it where
    /// it lies: it must stay there, unchanged, as long as the buffer.
    virtual Buffer adopt(const std::byte* data, std::size_t num_bytes) = 0;

    // --- rows -------------------------------------------------------------------------------------------------------
    /// out[i, :dim] = row `rows[i]` of `table` (as f32); zeros where rows[i] < 0. out: f32 [rows, dim].
    virtual void embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) = 0;

    /// y[r, n] = sum_k W[n, k] x[r, k] over this matrix's slices, in the order of the contract.
    /// x: act [num_rows, x_stride] with x_stride >= w.num_inputs and zeros beyond the real inputs; y: f32 [num_rows,
    /// w.num_outputs].
    virtual void matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                        float* y) = 0;

    /// The same for a layer's matrix and all rows of the pass. Where a device sums otherwise for rows of prompts, a
    /// row's result depends on the row and the matrix alone just the same.
    virtual void layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              float* y) {
        matmul(w, x, x_stride, num_rows, y);
    }

    /// silu_mul of what layer_matmul gives, of a matrix of pack_gated, the same bits. `sums`: f32 [num_rows,
    /// w.num_outputs], for devices that need it; out: act [num_rows, out_stride], the columns beyond w.num_outputs / 2
    /// set to zero.
    virtual void gated_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              float* sums, DType act, std::byte* out, std::int64_t out_stride);

    /// out[r] = x[rows[r]] for f32 rows of `dim`.
    virtual void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) = 0;

    /// x[i] += y[i], f32.
    virtual void add(float* x, const float* y, std::int64_t count) = 0;
    /// x[r, :] += bias[:], f32 [num_rows, dim].
    virtual void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) = 0;

    /// out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * gain, rounded to act. x: f32 [num_rows, dim]; gain: f32 [dim];
    /// out: act [num_rows, out_stride], columns dim..out_stride are set to zero.
    virtual void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                          DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// add, then rms_norm of the sums.
    virtual void add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                              std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride);

    /// out[r] = (x[r] - mean) * (1 / sqrt(variance + eps)) * gain + bias, rounded to act; the last product and sum are
    /// fused. mean = sum(x[r]) / dim, then variance = sum((x[r] - mean)^2) / dim. Shapes as in rms_norm; `out` may be
    /// `x` where act is f32 and out_stride is dim.
    virtual void layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                            std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// out[r, i] = x[r, i] where that is not below 0 (or NaN), else 0, rounded to act. x: f32 [num_rows, width]; out:
    /// act [num_rows, out_stride], the columns beyond width set to zero.
    virtual void relu(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                      std::int64_t out_stride) = 0;

    /// out[r] = x[r], rounded to act. Shapes as in relu.
    virtual void round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                            std::int64_t out_stride) = 0;

    /// out[r, i] = silu(gate) * up with gate = x[r, i], up = x[r, width + i], rounded to act.
    /// x: f32 [num_rows, 2 * width]; out: act [num_rows, out_stride], the columns beyond width set to zero.
    virtual void silu_mul(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                          std::int64_t out_stride) = 0;

    // --- attention --------------------------------------------------------------------------------------------------
    [[nodiscard]] virtual std::size_t kv_page_bytes(const KvLayout& layout) const = 0;
    /// KvLayout::pages_together that this device reads fastest; one that says 1 knows no other.
    [[nodiscard]] virtual std::int64_t kv_pages_together(const KvLayout& /*layout*/) const { return 1; }

    /// From here on `rope_store` and `attention` are about these rows: a device that keeps them elsewhere brings them
    /// there once, not in each layer.
    virtual void begin_pass(const PassRows& pass) = 0;

    /// Rotates q and k (halves convention of Hugging Face: dimension i pairs with i + head_dim/2), rounds q to
    /// layout.query_type() and stores k and v, rounded, at the pass's slots. qkv: f32 [slots, (q_heads + 2 * kv_heads)
    /// * head_dim]; q_out: query_type [slots, q_heads, head_dim].
    virtual void rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                            std::byte* q_out) = 0;

    /// rope_store of what layer_matmul gives for the rows of the pass, as many as it has slots; the same bits. `qkv` is
    /// for devices that need it.
    virtual void qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                            float* qkv, const KvLayout& layout, std::int64_t layer, std::int64_t q_heads,
                            std::byte* q_out);

    /// Attention of every row of the pass over its own positions 0..position, scale 1/sqrt(head_dim), chunks of 512
    /// absolute positions merged left to right. q: query_type [rows, q_heads, head_dim]; query head h reads KV head h /
    /// (q_heads / kv_heads). out: act [rows, out_stride], columns q_heads * head_dim.. set to zero.
    virtual void attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                           DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// Copies key and value of one token, all layers and heads, from slot to slot.
    virtual void kv_move(const KvLayout& layout, KvSlot from, KvSlot to) = 0;

    /// Keys (values) of `count` slots from `first` of a page, one layer and head, as [count, token_bytes] in host
    /// memory: what checkpoints hold. May run in another thread than the other calls, and holds none of them up, on
    /// slots that no longer change: what was asked for before the call is done first.
    virtual void kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const = 0;
    virtual void kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) = 0;

    /// The same of a whole box: [layers, heads, positions, token_bytes] in host memory, `head_stride` bytes from one
    /// head to the next. Page i holds positions [64 i, 64 (i+1)). Devices that are asked less often for more are faster
    /// with this; others go from page to page.
    virtual void kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               std::byte* to_host, std::size_t head_stride) const;
    virtual void kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               const std::byte* from_host, std::size_t head_stride);
};

enum class CpuVariant { reference, avx2, avx512 };

/// Variants this processor runs, best last. avx512 needs AVX512F/BW/VL and AVX512_BF16, and passes the self-test of
/// its bf16 instruction (algorithms.md section 7).
std::vector<CpuVariant> available_cpu_variants();
std::string_view variant_name(CpuVariant variant);
/// The processor flags a variant needs, "avx2 fma f16c": named in logs and tests.
std::string_view variant_flags(CpuVariant variant);

/// A CPU device with `threads` threads. Throws std::invalid_argument when the processor cannot run `variant`.
std::unique_ptr<Device> make_cpu_device(CpuVariant variant, int threads);

}  // namespace longhaul::kernels
