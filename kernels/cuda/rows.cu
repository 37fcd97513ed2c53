// Operations of CudaDevice on rows: norms, activations, additions; bit-identical to the CPU.
//
// All of them are limited by memory, with one exception: the sums of a norm are 16 chains of dependent additions per
// row (numerics.hpp), dim / 16 steps of 4 cycles each. So one block computes one row: all its threads load a tile of it
// into shared memory, with all loads in flight at once, and 16 lanes of one warp add there without waiting for memory.
// Other blocks of the multiprocessor use the idle time. A row that is longer than a tile is read a second time, from
// the cache.
#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/math.cuh"
#include "kernels/gelu_constants.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t tile = 8192;  ///< floats of a row kept in shared memory

/// Arguments of row kernels. x: f32 [num_rows, x_stride], of which `width` columns are read; out: act [num_rows,
/// out_stride], zeros beyond `width`.
struct Rows {
    const float* x;
    const float* addend;  ///< add_rms_norm only: [num_rows, x_stride], added to x in place
    const float* gain;    ///< f32 [width], norms only; same for bias
    const float* bias;
    std::byte* out;
    std::int64_t x_stride;
    std::int64_t out_stride;
    std::int64_t num_rows;
    std::int64_t width;
    float eps;
    bool bf16;  ///< whether act is bf16

    [[nodiscard]] LONGHAUL_HOST_DEVICE std::byte* out_row(std::int64_t row) const {
        return out + row * out_stride * (bf16 ? 2 : 4);
    }
};

bool aligned(const void* data, std::size_t num_bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % num_bytes == 0;
}

/// Columns per thread and access: 4 if all sizes and pointers are aligned to 4 floats, else 1.
int columns_at_once(const Rows& rows) {
    const bool sizes = rows.width % 4 == 0 && rows.x_stride % 4 == 0 && rows.out_stride % 4 == 0;
    const bool pointers = aligned(rows.x, 16) && aligned(rows.out, 16) && aligned(rows.addend, 16) &&
                          aligned(rows.gain, 16) && aligned(rows.bias, 16);
    return sizes && pointers ? 4 : 1;
}

// --- sums over a row ------------------------------------------------------------------------------------------------

struct Plain {
    __device__ float operator()(float sum, float value) const { return sum + value; }
};
struct SquaresAround {
    float centre;
    __device__ float operator()(float sum, float value) const {
        const float difference = value - centre;
        return __fmaf_rn(difference, difference, sum);
    }
};
struct Squares {
    __device__ float operator()(float sum, float value) const { return __fmaf_rn(value, value, sum); }
};

/// Accesses of a thread that are in flight at once. A row of 4096 columns is one batch.
constexpr int batch = 4;
/// Blocks of norms that a multiprocessor has at least: while one adds, others load and store.
constexpr int norm_blocks = 3;

/// Columns start, start + stride, … of a thread, up to `end`; f(n, column) for access n.
template <int count, class Function>
__device__ __forceinline__ void each_access(std::int64_t start, std::int64_t end, Function f) {
#pragma unroll
    for (int n = 0; n < batch; ++n) {
        const std::int64_t i = start + std::int64_t{n} * blockDim.x * count;
        if (i < end) f(n, i);
    }
}
template <int count>
__device__ __forceinline__ void load_batch(const float* from, std::int64_t start, std::int64_t end,
                                           float (&to)[batch][count]) {
    each_access<count>(start, end, [&](int n, std::int64_t i) { load_floats(from + i, to[n]); });
}

/// A row of norms, processed by one block in tiles, which a row of up to `tile` columns has one of: it is read once.
template <int count>
struct NormRow {
    const Rows& rows;
    std::int64_t row;
    float* shared;  ///< [tile + 1]
    std::int64_t start, batch_columns;

    __device__ NormRow(const Rows& all, float* memory)
        : rows(all),
          row(blockIdx.x),
          shared(memory),
          start(std::int64_t{threadIdx.x} * count),
          batch_columns(std::int64_t{batch} * blockDim.x * count) {}

    [[nodiscard]] __device__ bool is_one_tile() const { return rows.width <= tile; }
    [[nodiscard]] __device__ float* x() const { return const_cast<float*>(rows.x) + row * rows.x_stride; }

    /// Loads columns [first, first + length) into shared memory; `adds`: adds the addend first, to x as well.
    __device__ void load_tile(std::int64_t first, std::int64_t length, bool adds) const {
        for (std::int64_t at = start; at < length; at += batch_columns) {
            float values[batch][count];
            load_batch(x() + first, at, length, values);
            if (adds) {
                float added[batch][count];
                load_batch(rows.addend + row * rows.x_stride + first, at, length, added);
                each_access<count>(at, length, [&](int n, std::int64_t i) {
                    for (int v = 0; v < count; ++v) values[n][v] = values[n][v] + added[n][v];
                    store_act(reinterpret_cast<std::byte*>(x()), false, first + i, values[n]);
                });
            }
            each_access<count>(at, length, [&](int n, std::int64_t i) {
                store_act(reinterpret_cast<std::byte*>(shared), false, i, values[n]);
            });
        }
    }

    /// Adds element i of the row to lane i mod 16 with `step`, in ascending order; then adds the lanes with lane_tree.
    /// All threads get the sum. `again`: an earlier sum read the row.
    template <class Step>
    __device__ float sum(Step step, bool again) const {
        float sum = 0.0F;
        for (std::int64_t first = 0; first < rows.width; first += tile) {
            const std::int64_t length = rows.width - first < tile ? rows.width - first : tile;
            __syncthreads();  // all threads have read the previous tile and the previous sum
            if (!again || !is_one_tile()) {
                load_tile(first, length, !again && rows.addend != nullptr);
                __syncthreads();
            }
            if (threadIdx.x < 16) sum = add_lane(sum, static_cast<int>(length), step);
        }
        if (threadIdx.x < 32) sum = lane_tree(sum);
        if (threadIdx.x == 0) shared[tile] = sum;
        __syncthreads();
        return shared[tile];
    }

    /// The elements of the thread's lane in the tile. Each addition waits only for the one before it: the next elements
    /// are loaded meanwhile.
    template <class Step>
    __device__ float add_lane(float sum, int length, Step step) const {
        constexpr int ahead = 8;
        const auto lane = static_cast<int>(threadIdx.x);
        const int size = (length - lane + 15) / 16, whole = size / ahead * ahead;
        const float* const mine = shared + lane;
        float now[ahead] = {}, next[ahead] = {};
        for (int i = 0; whole > 0 && i < ahead; ++i) now[i] = mine[i * 16];
#pragma unroll 2
        for (int first = 0; first < whole; first += ahead) {
            const bool more = first + ahead < whole;
            for (int i = 0; more && i < ahead; ++i) next[i] = mine[(first + ahead + i) * 16];
            for (int i = 0; i < ahead; ++i) sum = step(sum, now[i]);
            for (int i = 0; i < ahead; ++i) now[i] = next[i];
        }
        for (int i = whole; i < size; ++i) sum = step(sum, mine[i * 16]);
        return sum;
    }

    /// out = normed(value, gain, bias), zeros beyond `width`. gains: the thread's first batch, loaded before the sums
    /// so that memory is not waited for now.
    template <class Function>
    __device__ void write(float (&gains)[batch][count], Function normed) const {
        for (std::int64_t at = start; at < rows.out_stride; at += batch_columns) {
            float values[batch][count] = {}, biases[batch][count] = {};
            load_batch(is_one_tile() ? shared : x(), at, rows.width, values);
            if (at != start) load_batch(rows.gain, at, rows.width, gains);
            if (rows.bias != nullptr) load_batch(rows.bias, at, rows.width, biases);
            each_access<count>(at, rows.out_stride, [&](int n, std::int64_t i) {
                for (int v = 0; i < rows.width && v < count; ++v)
                    values[n][v] = normed(values[n][v], gains[n][v], biases[n][v]);
                store_act(rows.out_row(row), rows.bf16, i, values[n]);
            });
        }
    }
};

/// Also add_rms_norm, if the rows have an addend.
template <int count>
__global__ void __launch_bounds__(max_row_threads, norm_blocks) rms_norm_kernel(Rows rows) {
    let_next_start();
    const NormRow<count> row(rows, shared_memory<float>());
    float gains[batch][count];
    load_batch(rows.gain, row.start, rows.width, gains);
    const float squares = row.sum(Squares{}, false);
    const float scale = 1.0F / __fsqrt_rn(squares / static_cast<float>(rows.width) + rows.eps);
    row.write(gains, [&](float value, float gain, float /*none*/) { return (value * scale) * gain; });
}

template <int count>
__global__ void __launch_bounds__(max_row_threads, norm_blocks) layer_norm_kernel(Rows rows) {
    const NormRow<count> row(rows, shared_memory<float>());
    float gains[batch][count];
    load_batch(rows.gain, row.start, rows.width, gains);
    const auto width = static_cast<float>(rows.width);
    const float mean = row.sum(Plain{}, false) / width;
    const float squares = row.sum(SquaresAround{mean}, true);
    const float scale = 1.0F / __fsqrt_rn(squares / width + rows.eps);
    row.write(gains,
              [&](float value, float gain, float bias) { return __fmaf_rn((value - mean) * scale, gain, bias); });
}

void launch_norm(const Stream& stream, void (*four)(Rows), void (*one)(Rows), const Rows& rows) {
    const int count = columns_at_once(rows);
    launch(stream, count == 4 ? four : one, dim3(static_cast<unsigned>(rows.num_rows)),
           dim3(threads_for((rows.width + count - 1) / count)), (tile + 1) * sizeof(float), rows);
}

// --- element by element ---------------------------------------------------------------------------------------------

/// Grid and block for rows of `width` columns, `count` columns per thread: blocks cover the columns along x, and one or
/// more rows each along y, which is limited to 65535.
struct Cover {
    Cover(std::int64_t num_rows, std::int64_t width, int count) {
        const std::int64_t threads = (width + count - 1) / count;
        block = dim3(threads_for(threads));
        grid = dim3(static_cast<unsigned>((threads + block.x - 1) / block.x),
                    static_cast<unsigned>(num_rows < 65535 ? num_rows : 65535));
    }
    dim3 block, grid;
};

struct Positive {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float /*none*/) const { return 0.0F > x ? 0.0F : x; }
};
struct PositiveSquared {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float none) const {
        const float positive = Positive()(x, none);
        return __fmul_rn(positive, positive);
    }
};
struct Gelu {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float /*none*/) const { return GeluMul()(x, 1.0F); }
};
struct GeluExact {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float none) const {
        namespace c = gelu_constants;
        const float a = fabsf(x), t = 1.0F / __fmaf_rn(c::slope, a, 1.0F);
        float p = c::coefficient(c::degree);
#pragma unroll
        for (int i = c::degree - 1; i >= 0; --i) p = __fmaf_rn(t, p, c::coefficient(i));
        const float tail = __fmul_rn(__fmul_rn(t, p), exp_of(__fmul_rn(-0.5F, __fmul_rn(x, x))));
        return __fmaf_rn(-a, tail, Positive()(x, none));
    }
};
struct AsIs {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float /*none*/) const { return x; }
};

/// out[r, i] = function(x[r, i], x[r, width + i]).
template <class Function, int count>
__global__ void __launch_bounds__(max_row_threads) map_kernel(Rows rows) {
    const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
    if (i >= rows.out_stride) return;
    for (std::int64_t row = blockIdx.y; row < rows.num_rows; row += gridDim.y) {
        const float* const x = rows.x + row * rows.x_stride + i;
        float values[count] = {};
        if (i < rows.width) {
            float second[count] = {};
            load_floats(x, values);
            if constexpr (Function::inputs == 2) load_floats(x + rows.width, second);
            for (int v = 0; v < count; ++v) values[v] = Function()(values[v], second[v]);
        }
        store_act(rows.out_row(row), rows.bf16, i, values);
    }
}

/// out[r, i] = f(gate[r, i]) * x[r, i].
__global__ void __launch_bounds__(max_row_threads)
    output_gate_kernel(OutputGate f, const float* gate, std::int64_t gate_stride, Rows rows) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= rows.out_stride) return;
    for (std::int64_t row = blockIdx.y; row < rows.num_rows; row += gridDim.y) {
        float value[1] = {0.0F};
        if (i < rows.width) {
            const float g = gate[row * gate_stride + i], x = rows.x[row * rows.x_stride + i];
            if (f == OutputGate::gelu) {
                value[0] = GeluMul()(g, x);
            } else {
                const float below = 1.0F + exp_of(-g);
                value[0] = f == OutputGate::silu ? __fmul_rn(g / below, x) : x / below;
            }
        }
        store_act(rows.out_row(row), rows.bf16, i, value);
    }
}

template <class Function>
void launch_map(const Stream& stream, const Rows& rows) {
    const int count = columns_at_once(rows);
    const Cover cover(rows.num_rows, rows.out_stride, count);
    launch(stream, count == 4 ? map_kernel<Function, 4> : map_kernel<Function, 1>, cover.grid, cover.block, 0, rows);
}

/// x[r, i] += y[i].
template <int count>
__global__ void __launch_bounds__(max_row_threads)
    add_kernel(float* x, const float* y, std::int64_t num_rows, std::int64_t width) {
    const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
    if (i >= width) return;
    for (std::int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
        float sums[count], added[count];
        load_floats(x + row * width + i, sums);
        load_floats(y + i, added);
        for (int v = 0; v < count; ++v) sums[v] = sums[v] + added[v];
        store_act(reinterpret_cast<std::byte*>(x), false, row * width + i, sums);
    }
}

void launch_add(const Stream& stream, float* x, const float* y, std::int64_t num_rows, std::int64_t width) {
    const int count = width % 4 == 0 && aligned(x, 16) && aligned(y, 16) ? 4 : 1;
    const Cover cover(num_rows, width, count);
    launch(stream, count == 4 ? add_kernel<4> : add_kernel<1>, cover.grid, cover.block, 0, x, y, num_rows, width);
}

__global__ void __launch_bounds__(max_row_threads) scale_kernel(float* x, float factor, std::int64_t count) {
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
        x[i] = __fmul_rn(x[i], factor);
}

__global__ void __launch_bounds__(max_row_threads) soft_cap_kernel(float* x, float cap, std::int64_t count) {
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
        x[i] = soft_capped(x[i], cap);
}

__global__ void __launch_bounds__(max_row_threads)
    add_columns_kernel(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                       const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= width) return;
    for (std::int64_t row = blockIdx.y; row < num_rows; row += gridDim.y)
        x[row * x_stride + columns[i]] += y[row * y_stride + i];
}

/// out[r] = x[rows[r]].
template <int count>
__global__ void __launch_bounds__(max_row_threads)
    gather_kernel(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim, float* out) {
    const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
    if (i >= dim) return;
    for (std::int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
        float values[count];
        load_floats(x + rows[row] * dim + i, values);
        store_act(reinterpret_cast<std::byte*>(out), false, row * dim + i, values);
    }
}

template <int count>
__global__ void __launch_bounds__(max_row_threads)
    weighted_sums_kernel(const float* x, const WeightedRow* terms, std::int64_t num_rows, std::int64_t per_row,
                         std::int64_t dim, float* out) {
    const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
    if (i >= dim) return;
    for (std::int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
        float sums[count] = {};
        for (std::int64_t t = 0; t < per_row; ++t) {
            const WeightedRow term = terms[row * per_row + t];
            float values[count];
            load_floats(x + term.row * dim + i, values);
            for (int v = 0; v < count; ++v) {
                const float product = term.weight * values[v];
                sums[v] = t == 0 ? product : sums[v] + product;
            }
        }
        store_act(reinterpret_cast<std::byte*>(out), false, row * dim + i, sums);
    }
}

Rows rows_of(const float* x, std::int64_t x_stride, std::int64_t num_rows, std::int64_t width, DType act,
             std::byte* out, std::int64_t out_stride) {
    return {.x = x,
            .addend = nullptr,
            .gain = nullptr,
            .bias = nullptr,
            .out = out,
            .x_stride = x_stride,
            .out_stride = out_stride,
            .num_rows = num_rows,
            .width = width,
            .eps = 0.0F,
            .bf16 = act == DType::bf16};
}

}  // namespace

void CudaDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    if (rows.empty()) return;
    gather_listed(x, state_->send_rows(rows), static_cast<std::int64_t>(rows.size()), dim, out);
}

void CudaDevice::gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                               float* out) {
    if (num_rows == 0) return;
    const int count = dim % 4 == 0 && aligned(x, 16) && aligned(out, 16) ? 4 : 1;
    const Cover cover(num_rows, dim, count);
    launch(state_->stream, count == 4 ? gather_kernel<4> : gather_kernel<1>, cover.grid, cover.block, 0, x, rows,
           num_rows, dim, out);
}

void CudaDevice::weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row,
                               std::int64_t dim, float* out) {
    check_weighted_sums(terms, per_row);
    if (terms.empty()) return;
    static_assert(sizeof(WeightedRow) == 2 * sizeof(std::int32_t));
    const std::span words(reinterpret_cast<const std::int32_t*>(terms.data()), 2 * terms.size());
    const auto* const sent = reinterpret_cast<const WeightedRow*>(state_->send_rows(words));
    const std::int64_t num_rows = static_cast<std::int64_t>(terms.size()) / per_row;
    const int count = dim % 4 == 0 && aligned(x, 16) && aligned(out, 16) ? 4 : 1;
    const Cover cover(num_rows, dim, count);
    launch(state_->stream, count == 4 ? weighted_sums_kernel<4> : weighted_sums_kernel<1>, cover.grid, cover.block, 0,
           x, sent, num_rows, per_row, dim, out);
}

void CudaDevice::add(float* x, const float* y, std::int64_t count) {
    launch_add(state_->stream, x, y, 1, count);
}

void CudaDevice::scale(float* x, float factor, std::int64_t count) {
    if (count == 0) return;
    const Cover cover(1, count, 1);
    launch(state_->stream, scale_kernel, dim3(std::min(cover.grid.x, 65535U)), cover.block, 0, x, factor, count);
}

void CudaDevice::soft_cap(float* x, float cap, std::int64_t count) {
    if (count == 0) return;
    const Cover cover(1, count, 1);
    launch(state_->stream, soft_cap_kernel, dim3(std::min(cover.grid.x, 65535U)), cover.block, 0, x, cap, count);
}

void CudaDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    launch_add(state_->stream, x, bias, num_rows, dim);
}

void CudaDevice::add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                             const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) {
    if (num_rows == 0) return;
    const Cover cover(num_rows, width, 1);
    launch(state_->stream, add_columns_kernel, cover.grid, cover.block, 0, x, x_stride, y, y_stride, columns, num_rows,
           width);
}

void CudaDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                          DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("rms_norm", act, num_rows, dim, out_stride);
    Rows rows = rows_of(x, dim, num_rows, dim, act, out, out_stride);
    rows.gain = gain;
    rows.eps = eps;
    launch_norm(state_->stream, rms_norm_kernel<4>, rms_norm_kernel<1>, rows);
}

void CudaDevice::add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                              std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("add_rms_norm", act, num_rows, dim, out_stride);
    Rows rows = rows_of(x, dim, num_rows, dim, act, out, out_stride);
    rows.addend = y;
    rows.gain = gain;
    rows.eps = eps;
    launch_norm(state_->stream, rms_norm_kernel<4>, rms_norm_kernel<1>, rows);
}

void CudaDevice::layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                            std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    check_act_rows("layer_norm", act, num_rows, dim, out_stride);
    Rows rows = rows_of(x, dim, num_rows, dim, act, out, out_stride);
    rows.gain = gain;
    rows.bias = bias;
    rows.eps = eps;
    launch_norm(state_->stream, layer_norm_kernel<4>, layer_norm_kernel<1>, rows);
}

void CudaDevice::activate(Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                          std::byte* out, std::int64_t out_stride) {
    check_act_rows("activate", act, num_rows, width, out_stride);
    const Rows rows = rows_of(x, width, num_rows, width, act, out, out_stride);
    if (f == Activation::gelu) return launch_map<Gelu>(state_->stream, rows);
    if (f == Activation::gelu_exact) return launch_map<GeluExact>(state_->stream, rows);
    if (f == Activation::relu_squared) return launch_map<PositiveSquared>(state_->stream, rows);
    launch_map<Positive>(state_->stream, rows);
}

void CudaDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                            std::int64_t out_stride) {
    check_act_rows("round_rows", act, num_rows, width, out_stride);
    launch_map<AsIs>(state_->stream, rows_of(x, width, num_rows, width, act, out, out_stride));
}

void CudaDevice::output_gate(OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                             std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                             std::int64_t out_stride) {
    check_act_rows("output_gate", act, num_rows, width, out_stride);
    const Cover cover(num_rows, out_stride, 1);
    launch(state_->stream, output_gate_kernel, cover.grid, cover.block, 0, f, gate, gate_stride,
           rows_of(x, width, num_rows, width, act, out, out_stride));
}

void CudaDevice::gate_mul(Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                          std::byte* out, std::int64_t out_stride) {
    check_act_rows("gate_mul", act, num_rows, width, out_stride);
    const Rows rows = rows_of(x, 2 * width, num_rows, width, act, out, out_stride);
    if (gate == Gate::silu) return launch_map<SiluMul>(state_->stream, rows);
    if (gate == Gate::gelu) return launch_map<GeluMul>(state_->stream, rows);
    launch_map<SwigluOaiMul>(state_->stream, rows);
}

}  // namespace longhaul::kernels::cuda
