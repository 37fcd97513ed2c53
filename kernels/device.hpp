// The interface of one compute device, called by the engine: tensor operations, memory, KV pages. Implemented by
// kernels/reference (plain loops, the oracle), kernels/cpu (AVX2, AVX-512, AMX) and kernels/cuda; callers treat all of
// them alike.
//
// The results are specified to the bit: order of summation, rounding and elementary functions are those of
// ALGORITHMS.md section 7, so all CPU variants (but amx_bf16) and `cuda-exact` give the same bits. numerics.hpp states
// the order in words and holds its version number.
//
// Shapes are written slowest dimension first. "act" is the type of matmul inputs: bf16 or f32 (act_type). Pointers are
// to device memory unless documented as host memory; spans are host memory. The memory of a span is read before the
// call returns, except for the spans of PassRows. A device may still be computing when a call returns: operations take
// effect in the order of the calls. Operations that return bytes to the host (download, kv_export) wait for the
// operations called before them, and so do finish and release. All calls of one Device come from one thread
// (exceptions: kv_export and kv_export_box); the device may use `threads()` threads inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/delta_shape.hpp"
#include "kernels/device_error.hpp"
#include "kernels/gate.hpp"

namespace longhaul::kernels {

/// f16 only as the type of source weights; int8 and int4 only as packed weights (quantized.hpp), int8 also for the KV
/// cache.
enum class DType : std::uint8_t { bf16, f32, f16, int8, int4 };

/// Size of one element of bf16, f32 or f16. Not for int8 and int4, which have scales, too: see Device::packed_bytes and
/// KvLayout::token_bytes.
constexpr std::size_t bytes_of(DType dtype) {
    return dtype == DType::f32 ? 4 : 2;
}

/// Type of the inputs of a matmul with weights of `dtype`.
constexpr DType act_type(DType dtype) {
    return dtype == DType::f32 ? DType::f32 : DType::bf16;
}

class Device;
class TokenChooser;  // kernels/token_chooser.hpp
class DeltaRule;     // kernels/linear_attention.hpp

/// A term of Device::weighted_sums.
struct WeightedRow {
    std::int32_t row = 0;
    float weight = 0;
};

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

    /// A view of memory that someone else owns and must keep alive as long as the buffer.
    static Buffer borrowed(std::byte* data, std::size_t num_bytes);
    /// Buffer in host memory, for KV pages (Device::allocate_in_host_memory).
    static Buffer in_host_memory(Device& device, std::size_t num_bytes);

  private:
    Device* device_ = nullptr;  ///< nullptr: borrowed
    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// Staging buffer with one owner: the host memory that the device copies to and from fastest.
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

/// Receives the source rows that a device has packed and will not read again. Called from any thread of the device.
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

/// A packed weight matrix, y = W x. The layout of `data` is private to the device.
struct Matrix {
    DType dtype = DType::bf16;     ///< bf16, f32, int8 or int4
    std::int64_t num_outputs = 0;  ///< rows of W on this rank
    std::int64_t num_inputs = 0;   ///< padded inputs on this rank: num_slices * slice_length
    int num_slices = 0;  ///< slices of the sum on this rank: 8, or 8 / tensor-parallel for row-parallel layers
    std::int64_t slice_length = 0;  ///< even
    bool gated = false;             ///< made by pack_gated: only for gated_matmul
    Buffer data;
};

/// One of Device::matmuls; shapes as in Device::matmul.
struct MatmulCall {
    const Matrix* w = nullptr;
    const std::byte* x = nullptr;
    std::int64_t num_rows = 0;
    float* y = nullptr;
};

/// Which heads of the whole model the heads of a rank are.
struct WholeHeads {
    std::int64_t num_q = 0, num_kv = 0;      ///< of the whole model
    std::int64_t first_q = 0, first_kv = 0;  ///< of this rank
    bool counts_kv = true;                   ///< false: another rank has the same KV heads, and counts them
    std::int64_t q_per_norm = 0;  ///< heads of q that are normed together, a divisor of num_q; 0: all of them
};

/// Geometry of the paged KV cache on one rank. Layers that see different stretches of the text have a layout each; the
/// index of a layer counts those of its layout.
struct KvLayout {
    DType dtype = DType::bf16;  ///< bf16, f32, or int8: integers and an f32 scale per token and head
    std::int64_t num_layers = 0;
    std::int64_t group = 0;   ///< whose rows and slots of the pass these layers use (PassRows::group)
    std::int64_t angles = 0;  ///< which angles of the pass they use (PassRows::angles)
    std::int64_t window = 0;  ///< sliding window: a row sees itself and the window - 1 positions before it; 0: all
    float score_cap = 0.0F;   ///< soft cap of the scores of attention, as Device::soft_cap has it; 0: none
    std::int64_t num_kv_heads = 0;  ///< on this rank
    std::int64_t head_dim = 0;      ///< even
    /// Number of pages of a slab that are interleaved. For each (layer, head) in turn, the slab holds the keys of all
    /// these pages, page by page, then their values, which take as many bytes. Set from Device::kv_pages_together.
    std::int64_t pages_together = 1;
    /// Layers of linear attention: a state instead of keys and values (delta_shape.hpp), f32 whatever `dtype` is.
    /// `num_kv_heads` and `head_dim` do not count.
    DeltaShape delta{};
    static constexpr std::int64_t page_tokens = 64;  ///< slots per page; divides the attention chunk

    [[nodiscard]] bool is_state() const { return delta.num_key_heads > 0; }

    /// Type that queries are rounded to: that of the keys, but f32 if the keys are int8.
    [[nodiscard]] DType query_type() const { return dtype == DType::int8 ? DType::f32 : dtype; }
    /// Bytes of one key (value) of one head outside of pages: head_dim elements; for int8 followed by the scale, f32
    /// little-endian.
    [[nodiscard]] std::size_t token_bytes() const {
        const auto elements = static_cast<std::size_t>(head_dim);
        return dtype == DType::int8 ? elements + 4 : elements * bytes_of(dtype);
    }
    /// Bytes of the keys and values of one token, all layers and heads, outside of pages.
    [[nodiscard]] std::int64_t position_bytes() const { return 2 * num_layers * num_kv_heads * token_bytes(); }
    /// Byte offset of page `index` from the start of a slab that holds a multiple of pages_together pages.
    /// `page_bytes`: see Device::kv_page_bytes.
    [[nodiscard]] std::int64_t place_of_page(std::int64_t index, std::int64_t page_bytes) const {
        if (pages_together == 1) return index * page_bytes;
        const std::int64_t in_group = index % pages_together;
        return (index - in_group) * page_bytes + in_group * (page_bytes / (2 * num_layers * num_kv_heads));
    }
};

/// A part of a sequence's keys (values): ranges of layers, of heads of this rank, and of positions.
struct KvBox {
    std::int64_t first_layer = 0, num_layers = 1;
    std::int64_t first_head = 0, num_heads = 1;
    bool values = false;
    std::int64_t first = 0, count = 0;  ///< positions

    [[nodiscard]] std::size_t bytes(const KvLayout& layout) const {
        return static_cast<std::size_t>(num_layers * num_heads * count) * layout.token_bytes();
    }
};

/// Positions of a sequence to choose from (Device::rank_positions).
struct PositionRange {
    std::span<std::byte* const> pages;  ///< page i holds positions [64 i, 64 (i+1))
    std::int64_t first = 0, end = 0;
    std::int64_t count = 0;  ///< how many are chosen; 1 to end - first
};

/// Slot of one token: its keys and values of all layers and heads are in slot `slot` of `page`.
struct KvSlot {
    std::byte* page = nullptr;
    std::int32_t slot = 0;
};

/// One row (tree node or prompt token) of an attention call.
struct AttentionRow {
    std::int32_t sequence = 0;  ///< index into the call's sequences
    std::int64_t position = 0;  ///< absolute; the row sees positions first_visible(window)..position
    std::int64_t in_pages = 0;  ///< positions < in_pages are read from the pages; in_pages <= position + 1
    const std::int32_t* path =
        nullptr;  ///< host: scratch slots of positions in_pages..position, in order (the row itself last)

    [[nodiscard]] std::int64_t first_visible(std::int64_t window) const {
        return window > 0 && position >= window ? position + 1 - window : 0;
    }
};

/// KV memory of one sequence of an attention call.
struct AttentionSequence {
    std::span<std::byte* const> pages;          ///< page i holds positions [64 i, 64 (i+1))
    std::span<std::byte* const> scratch_pages;  ///< tree nodes: scratch slot s is slot s % 64 of scratch page s / 64
};

/// What the layers of one KvLayout read in a pass.
struct GroupRows {
    std::span<const AttentionSequence> sequences;
    std::span<const AttentionRow> rows;  ///< rows of the attention call
    std::span<const KvSlot> slots;  ///< where the keys and values of each row are stored; page == nullptr: not stored
};

/// Arguments of Device::head_norm.
struct HeadGains {
    const float* q = nullptr;
    const float* k = nullptr;
    const float* v = nullptr;
};

/// Angles that rotate the queries and keys of a pass: f32 [slots, head_dim / 2] each, of the layouts that use them.
/// There is memory for [slots, num_angles].
struct PassAngles {
    const float* cos = nullptr;
    const float* sin = nullptr;
    const float* query_cos = nullptr;  ///< of queries; nullptr: as keys, and so is query_sin
    const float* query_sin = nullptr;
};

/// Input that all layers of a pass share. Host memory, which must stay unchanged until the next pass begins.
struct PassRows {
    // Group 0.
    std::span<const AttentionSequence> sequences;
    std::span<const AttentionRow> rows;
    std::span<const KvSlot> slots;

    std::span<const GroupRows> more_groups = {};  ///< groups 1, 2, …; each has as many rows and slots as group 0
    std::span<const PassAngles> angles = {};      ///< by KvLayout::angles
    std::int64_t num_angles = 0;                  ///< head_dim / 2 of the widest heads
    /// Prompt rows. Which rows these are depends only on their positions in the text, so a device may sum their matmuls
    /// in an order of its own (layer_matmul).
    std::int64_t first_prompt_row = 0, num_prompt_rows = 0;

    [[nodiscard]] std::int64_t num_groups() const { return 1 + static_cast<std::int64_t>(more_groups.size()); }
    [[nodiscard]] GroupRows group(std::int64_t index) const {
        if (index > 0) return more_groups[static_cast<std::size_t>(index - 1)];
        return {.sequences = sequences, .rows = rows, .slots = slots};
    }
};

/// Memory of a device that does not compute in host memory.
struct DeviceMemory {
    std::int64_t total_bytes = 0;
    std::int64_t free_bytes = 0;  ///< not allocated by any process
};

/// Upper bounds for future passes.
struct PassSize {
    std::int64_t rows = 0;
    std::int64_t positions = 0;
    std::int64_t q_heads = 0;
    std::int64_t ranks = 1;  ///< in the tensor-parallel group
    std::int64_t logit_rows = 0;
    std::int64_t widest_quantized = 0;  ///< inputs or outputs of an int8 or int4 matrix
    std::int64_t decided_vocab = 0;     ///< vocabulary size if TokenChooser::decide is used; 0: it is not
};

/// How devices add the parts of several ranks.
enum class SumOrder : std::uint8_t {
    fixed,    ///< as sum_ranks.hpp does: a sum has the same bits for any number of ranks
    library,  ///< as the library that connects them does: the bits may depend on the ranks, the count and the library
};

/// Collectives between the devices of several processes, without going through the host. Every rank makes the
/// same calls in the same order.
class DeviceLink {
  public:
    virtual ~DeviceLink() = default;
    /// data[i] summed over the ranks in place, in the order DeviceLinks::sum_order. Queued like the operations of the
    /// device.
    virtual void all_reduce(float* data, std::int64_t count) = 0;
    /// received [ranks, count] = every rank's `data` [count]. Queued like the operations of the device.
    virtual void all_gather(const float* data, float* received, std::int64_t count) = 0;
    /// Waits for the collectives called before. Throws std::runtime_error if they can no longer complete.
    virtual void finish() = 0;
};

/// Connects a device with those of other processes.
class DeviceLinks {
  public:
    virtual ~DeviceLinks() = default;
    /// Identifies the device and the kind of link. Different devices have different addresses; one device has the same
    /// address in all processes. Throws std::runtime_error if this process lacks something that links need.
    [[nodiscard]] virtual std::string address() const = 0;
    /// Id of a new link: one rank creates it, all ranks join with it.
    [[nodiscard]] virtual std::vector<std::byte> new_id() const = 0;
    /// Collective over the `size` ranks, each with a device of its own. Throws std::runtime_error.
    virtual std::unique_ptr<DeviceLink> join(std::span<const std::byte> id, int rank, int size) = 0;
    /// SumOrder::library: only the links give these bits, so the devices cannot communicate in another way.
    [[nodiscard]] virtual SumOrder sum_order() const { return SumOrder::fixed; }
};

/// Operations of one device. Implementations throw std::bad_alloc if memory is exhausted, DeviceError if the device
/// fails, and std::logic_error on wrong arguments.
class Device {
  public:
    virtual ~Device() = default;

    /// "reference", "avx2", "avx512", "amx", "amx-bf16", "amx-bf16-emulated", "cuda", "cuda-exact", "cuda-cublas":
    /// recorded in the log and the run folder.
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual int threads() const = 0;
    /// Which of several devices this is, "GPU 1 of 4, NVIDIA H200"; "" if name() is enough.
    [[nodiscard]] virtual std::string place() const { return ""; }
    /// Peak of bf16 multiply-adds on registers alone, operations per second, measured now; 0: not available.
    [[nodiscard]] virtual double measure_peak_flops() { return 0; }
    /// Choices the device has made so far that affect the bits of results, one line each, for the log.
    [[nodiscard]] virtual std::vector<std::string> choices() const { return {}; }
    /// nullopt: the device computes in host memory, and a pointer is valid on both sides.
    [[nodiscard]] virtual std::optional<DeviceMemory> own_memory() const { return std::nullopt; }
    /// Bytes of own_memory() that the operations use internally in passes up to this size, in addition to what callers
    /// allocate. Of layers of linear attention: in addition to what a layout with keys and values gives.
    [[nodiscard]] virtual std::int64_t operation_bytes(const KvLayout& /*layout*/, const PassSize& /*pass*/) const {
        return 0;
    }
    /// Most dimensions of a head whose keys and values are of type `kv`.
    [[nodiscard]] virtual std::int64_t max_head_dim(DType /*kv*/) const { return 1024; }
    /// nullptr: the devices communicate through the host.
    [[nodiscard]] virtual DeviceLinks* links() { return nullptr; }
    /// nullptr: the host chooses the tokens.
    [[nodiscard]] virtual TokenChooser* token_chooser() const { return nullptr; }
    /// nullptr: this device has no linear attention.
    [[nodiscard]] virtual DeltaRule* delta_rule() { return nullptr; }
    /// Waits until all operations called before are done (for measurements). Errors of operations appear here at the
    /// latest.
    virtual void finish() {}

    // --- memory -----------------------------------------------------------------------------------------------------
    virtual std::byte* allocate(std::size_t num_bytes) = 0;  ///< zero-filled, 64-byte aligned
    /// Whether KV pages may also be in host memory (if own_memory() is too small for them).
    [[nodiscard]] virtual bool can_use_host_memory() const { return false; }
    /// Host memory for KV pages, zero-filled, 64-byte aligned; freed by release like other memory. All KV operations
    /// accept such pages; attention over them is limited by the speed of the link to the host.
    virtual std::byte* allocate_in_host_memory(std::size_t num_bytes);
    virtual void release(std::byte* data, std::size_t num_bytes) noexcept = 0;
    virtual void upload(std::byte* to, const void* from_host, std::size_t num_bytes) = 0;
    virtual void download(void* to_host, const std::byte* from, std::size_t num_bytes) = 0;
    /// Copies between two places of device memory that do not overlap.
    virtual void copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) = 0;
    /// Memory of Staging, 64-byte aligned; by default ordinary host memory.
    virtual std::byte* allocate_staging(std::size_t num_bytes);
    virtual void release_staging(std::byte* data, std::size_t num_bytes) noexcept;

    // --- weights ----------------------------------------------------------------------------------------------------
    /// Packs the stacked rows of `parts` as a matrix of `num_slices` slices of `slice_length` inputs. If `dtype` is
    /// bf16, f16 and f32 sources are rounded to nearest even; f32 is exact; int8 and int4: see quantized.hpp.
    virtual Matrix pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) = 0;

    /// pack() of gate rows followed by the same number of up rows, for gated_matmul. A device may store them in an
    /// order of its own.
    virtual Matrix pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                              std::int64_t slice_length);

    /// Bytes of a packed matrix of this type and geometry.
    [[nodiscard]] virtual std::size_t packed_bytes(const Matrix& geometry) const = 0;
    /// Name and version of the layout that `pack` gives: devices with equal names can read each other's packed
    /// matrices.
    [[nodiscard]] virtual std::string_view packed_layout() const = 0;
    /// A buffer with the bytes at `data` (host memory, 64-byte aligned). Devices that compute on the host do not copy:
    /// `data` must stay in place, unchanged, as long as the buffer exists.
    virtual Buffer adopt(const std::byte* data, std::size_t num_bytes) = 0;

    // --- rows -------------------------------------------------------------------------------------------------------
    /// out[i, :dim] = row `rows[i]` of `table` (as f32); zeros where rows[i] < 0. out: f32 [rows, dim].
    virtual void embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) = 0;
    /// x[i] *= factor, f32.
    virtual void scale(float* x, float factor, std::int64_t count) = 0;
    /// x[i] = cap - 2 cap / (1 + exp(x[i] * (2 / cap))), which is cap * tanh(x[i] / cap), f32. cap: above 0.
    virtual void soft_cap(float* x, float cap, std::int64_t count) = 0;

    /// y[r, n] = sum_k W[n, k] x[r, k] over this matrix's slices, in the order of numerics.hpp.
    /// x: act [num_rows, x_stride] with x_stride >= w.num_inputs and zeros beyond the real inputs; y: f32 [num_rows,
    /// w.num_outputs].
    virtual void matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                        float* y) = 0;

    /// matmul of every call; same bits. The matrices have one type and shape. A device may compute them together.
    virtual void matmuls(std::span<const MatmulCall> calls, std::int64_t x_stride) {
        for (const MatmulCall& call : calls) matmul(*call.w, call.x, x_stride, call.num_rows, call.y);
    }

    /// matmul for a layer's matrix and all rows of the pass. Even if a device sums prompt rows in another order, the
    /// result of a row depends only on the row and the matrix.
    virtual void layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              float* y) {
        matmul(w, x, x_stride, num_rows, y);
    }

    /// gate_mul of the result of layer_matmul, for a matrix of pack_gated; same bits. `sums`: f32 [num_rows,
    /// w.num_outputs], scratch for devices that need it; out: act [num_rows, out_stride], columns beyond w.num_outputs
    /// / 2 are set to zero.
    virtual void gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride,
                              std::int64_t num_rows, float* sums, DType act, std::byte* out, std::int64_t out_stride);

    /// out[r] = x[rows[r]] for f32 rows of `dim`. Copies bits, so two bf16 elements may stand in for one of f32.
    virtual void gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) = 0;
    /// gather with row numbers in device memory, [num_rows]. By default in host memory.
    virtual void gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                               float* out) {
        gather(x, {rows, static_cast<std::size_t>(num_rows)}, dim, out);
    }

    /// out[r] = sum of weight * x[row] over terms r * per_row to (r + 1) * per_row - 1, at least one, in this order;
    /// each product and each sum is rounded. x, out: f32 rows of `dim`.
    virtual void weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row,
                               std::int64_t dim, float* out) = 0;

    /// x[i] += y[i], f32.
    virtual void add(float* x, const float* y, std::int64_t count) = 0;
    /// x[r, :] += bias[:], f32 [num_rows, dim].
    virtual void add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) = 0;
    /// x[r, columns[i]] += y[r, i] for i < width. x: f32 [num_rows, x_stride]; y: f32 [num_rows, y_stride]; columns:
    /// device memory [width], distinct and below x_stride. By default in host memory.
    virtual void add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                             const std::int32_t* columns, std::int64_t num_rows, std::int64_t width);

    /// out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * gain, rounded to act. x: f32 [num_rows, dim]; gain: f32 [dim];
    /// out: act [num_rows, out_stride], columns dim..out_stride are set to zero. `out` may be `x` if act is f32 and
    /// out_stride is dim.
    virtual void rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                          DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// add, then rms_norm of x.
    virtual void add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                              std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride);

    /// out[r] = (x[r] - mean) * (1 / sqrt(variance + eps)) * gain + bias, rounded to act; the last multiplication and
    /// addition are fused. mean = sum(x[r]) / dim, then variance = sum((x[r] - mean)^2) / dim. Shapes as in rms_norm;
    /// `out` may be `x` if act is f32 and out_stride is dim.
    virtual void layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                            std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// out[r, i] = f(x[r, i]), rounded to act; NaN stays NaN (and gelu_exact makes NaN of infinity). x: f32 [num_rows,
    /// width]; out: act [num_rows, out_stride], columns beyond width are set to zero.
    virtual void activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                          std::byte* out, std::int64_t out_stride) = 0;

    /// out[r] = x[r], rounded to act. Shapes as in activate.
    virtual void round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                            std::int64_t out_stride) = 0;

    /// out[r, i] = gate(x[r, i]) * x[r, width + i] (see Gate), rounded to act. x: f32 [num_rows, 2 * width]; out: act
    /// [num_rows, out_stride], columns beyond width are set to zero.
    virtual void gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                          std::byte* out, std::int64_t out_stride) = 0;

    /// out[r, i] = f(gate[r, i]) * x[r, i], rounded to act. gate: f32 [num_rows, gate_stride]; x: f32 [num_rows,
    /// width]; out: act [num_rows, out_stride], columns beyond width are set to zero. `out` may be `x` if act is f32
    /// and out_stride is width.
    virtual void output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                             std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                             std::int64_t out_stride) = 0;

    // --- attention --------------------------------------------------------------------------------------------------
    [[nodiscard]] virtual std::size_t kv_page_bytes(const KvLayout& layout) const = 0;
    /// The KvLayout::pages_together that this device reads fastest. A device that returns 1 supports no other value.
    [[nodiscard]] virtual std::int64_t kv_pages_together(const KvLayout& /*layout*/) const { return 1; }

    /// Sets the rows that the following `rope_store` and `attention` calls work on. A device with its own memory copies
    /// them once here, not in each layer.
    virtual void begin_pass(const PassRows& pass) = 0;

    /// rms_norm of every head of q, k and v, in place, each with its gain, f32 [head_dim]; v stays as it is if it has
    /// none. qkv: as in rope_store, with num_rows rows.
    virtual void head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                           const HeadGains& gains, float eps) = 0;

    /// squares[r, h] = sum of the squares of head h of q, and then of k, for a norm over all of them: f32 [num_rows,
    /// of.num_q + of.num_kv]. Zero for heads that another rank counts, so the ranks' parts may be added in any order.
    virtual void head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                              const WholeHeads& of, float* squares) = 0;

    /// rms_norm of all heads of q together (or of each of.q_per_norm of them), and of all heads of k, in place, from
    /// the `squares` of all ranks. q_gain: f32 [q_heads * head_dim]; k_gain likewise.
    virtual void whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                            const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                            float eps) = 0;

    /// Rotates q and k by the angles of the layout (the "halves" convention of Hugging Face: dimension i pairs with i +
    /// head_dim/2), rounds q to layout.query_type() and stores k and v, rounded, in the slots of the pass. qkv: f32
    /// [slots, (q_heads + 2 * kv_heads) * head_dim]; q_out: query_type [slots, q_heads, head_dim]. Without KV heads in
    /// `layout`: rotates q alone (so does head_norm), for a layer that attends to the keys and values of another.
    virtual void rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                            std::byte* q_out) = 0;

    /// rope_store of the result of layer_matmul for the rows of the pass, one per slot; same bits. `qkv` is scratch for
    /// devices that need it.
    virtual void qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                            float* qkv, const KvLayout& layout, std::int64_t layer, std::int64_t q_heads,
                            std::byte* q_out);

    /// Attention of every row of the pass over its own positions up to `position` (layout.window of them, if set),
    /// scale 1/sqrt(head_dim), chunks of 512 absolute positions merged left to right. q: query_type [rows, q_heads,
    /// head_dim]; query head h reads KV head h / (q_heads / kv_heads). out: act [rows, out_stride], columns from
    /// q_heads * head_dim on are set to zero.
    /// sinks: f32 [q_heads], each the score of one more position of its head, whose value is zero, merged last;
    /// nullptr: none.
    virtual void attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                           const float* sinks, DType act, std::byte* out, std::int64_t out_stride) = 0;

    /// Chooses, for each KV head, the `range.count` positions whose keys score best against the query of one row:
    /// positions [kv_heads, count] (device memory), ascending. The score (numerics.hpp) is that of the sum of the
    /// head's queries on this rank. Of equal scores the lower position wins; NaN counts as -infinity. q: query_type
    /// [q_heads, head_dim]. Over pages in host memory it is limited by the speed of the link to the host.
    virtual void rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                                const PositionRange& range, std::int32_t* positions) = 0;
    /// Copies the keys and values of one layer: of KV head h those at position positions[h, i] of the pages `from` to
    /// slot first_slot + i of the pages `to`. positions: [kv_heads, count], device memory, each >= 0 and within `from`.
    virtual void gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                  const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                                  std::int64_t first_slot) = 0;

    /// Copies the keys and values of one token, all layers and heads, from slot to slot.
    virtual void kv_move(const KvLayout& layout, KvSlot from, KvSlot to) = 0;

    /// Copies the keys (or values) of `count` slots from `first` on, of one page, layer and head, to host memory as
    /// [count, token_bytes], the form used in checkpoints. Waits for the operations called before it. For slots that no
    /// longer change it may be called from another thread, without blocking the other calls.
    virtual void kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const = 0;
    virtual void kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) = 0;

    /// kv_export of a whole box: [layers, heads, positions, token_bytes] in host memory, with a distance of
    /// `head_stride` bytes between heads. Page i holds positions [64 i, 64 (i+1)). Faster on devices where few large
    /// transfers are better; the default goes page by page.
    virtual void kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               std::byte* to_host, std::size_t head_stride) const;
    virtual void kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               const std::byte* from_host, std::size_t head_stride);
};

enum class CpuVariant { reference, avx2, avx512, amx, amx_bf16 };

/// Variants this processor can run, all with the same bits, fastest last. The bf16 instruction of AVX-512 is used only
/// if it passes a self-test (ALGORITHMS.md section 7), AMX only if the operating system permits it. Not among them:
/// amx_bf16, which any processor with AVX2 runs, with bits of its own (Bf16Order::blocks): by tiles that pass a
/// self-test, or emulated.
std::vector<CpuVariant> available_cpu_variants();
std::string_view variant_name(CpuVariant variant);
/// Whether this processor can run a variant.
bool can_run(CpuVariant variant);
/// Whether amx_bf16 uses this processor's tiles and need not emulate them.
bool has_bf16_tiles();
/// The processor flags a variant needs, "avx2 fma", for logs and tests.
std::string_view variant_flags(CpuVariant variant);

/// A CPU device with `threads` threads. Throws std::invalid_argument if `threads` < 1 or the processor cannot run
/// `variant`.
std::unique_ptr<Device> make_cpu_device(CpuVariant variant, int threads);

}  // namespace longhaul::kernels
