// Matmul of prompt rows with a library (prompt_matmul.hpp), and CudaDevice::layer_matmul, which calls it.
#include "kernels/cuda/prompt_matmul.hpp"

#include <stdexcept>
#include <utility>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/weight_layout.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int run_inputs = 8;  ///< per lane and step
constexpr unsigned block_threads = 256, block_steps = block_threads / 32;
constexpr std::int64_t word_bytes = 16;

unsigned pieces(std::int64_t whole, std::int64_t piece) {
    return static_cast<unsigned>((whole + piece - 1) / piece);
}

struct UnpackJob {
    const std::byte* weights = nullptr;  ///< bf16, in the layout of weight_layout.hpp
    WeightLayout layout;
    std::int64_t num_outputs = 0;
    bool gated = false;
    std::uint16_t* to = nullptr;  ///< [num_outputs, num_slices * slice_length]; gated: all gates, then all ups
};

__device__ void store_run(const UnpackJob& job, std::int64_t output, std::int64_t slice, std::int64_t in_slice,
                          const uint4& run) {
    const WeightLayout& layout = job.layout;
    if (job.gated) {
        const std::int64_t width = job.num_outputs / 2, column = gated_column(output);
        if (column >= width) return;
        output = is_up(output) ? width + column : column;
    }
    if (output >= job.num_outputs) return;
    std::uint16_t* const to = job.to + (output * layout.num_slices + slice) * layout.slice_length + in_slice;
    if (layout.slice_length % run_inputs == 0) {
        *reinterpret_cast<uint4*>(to) = run;
        return;
    }
    const std::uint32_t words[4] = {run.x, run.y, run.z, run.w};
    for (int i = 0; i < run_inputs && in_slice + i < layout.slice_length; ++i) {
        to[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
}

/// Each warp unpacks one step, each lane its runs of two outputs. Grid: groups of 8 steps of all slices; tiles.
__global__ void __launch_bounds__(block_threads) unpack_weights(UnpackJob job) {
    const WeightLayout& layout = job.layout;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t step = static_cast<std::int64_t>(blockIdx.x) * block_steps + threadIdx.x / 32;
    const std::int64_t steps = layout.num_slices * layout.steps;
    if (step >= steps) return;
    const std::int64_t slice = step / layout.steps, in_slice = step % layout.steps * 32 + lane % 4 * run_inputs;
    if (in_slice >= layout.slice_length) return;
    // Words of a run are in the pieces of four lanes, of which a warp reads all.
    const auto* const from =
        reinterpret_cast<const std::uint32_t*>(job.weights + (blockIdx.y * steps + step) * step_bytes(DType::bf16) +
                                               lane % 4 / 2 * 512 + lane / 4 * 64 + lane % 2 * 8);
    const std::int64_t output = static_cast<std::int64_t>(blockIdx.y) * tile_outputs + lane / 4;
    store_run(job, output, slice, in_slice, make_uint4(from[0], from[4], from[8], from[12]));
    store_run(job, output + 8, slice, in_slice, make_uint4(from[1], from[5], from[9], from[13]));
}

/// to[i] = from[i] for the first `count` of `all` words, else 0.
__global__ void __launch_bounds__(block_threads)
    copy_words(const uint4* from, std::int64_t count, std::int64_t all, uint4* to) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= all) return;
    to[i] = i < count ? from[i] : make_uint4(0, 0, 0, 0);
}

/// Fills with pseudorandom numbers of magnitude 2^-8 to 2^8 and either sign: two orders of summation hardly ever give
/// the same sum. Element i of `all` equals element i % period.
__global__ void __launch_bounds__(block_threads)
    fill_numbers(std::uint16_t* to, std::int64_t all, std::int64_t period, std::uint32_t seed) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= all) return;
    std::uint32_t state = static_cast<std::uint32_t>(i % period) * 2654435761U + seed;
    state = (state ^ state >> 15) * 2246822519U;
    state = (state ^ state >> 13) * 3266489917U;
    const std::uint32_t exponent = 119 + (state >> 24) % 16, rest = state & 0x807fU;
    to[i] = static_cast<std::uint16_t>(exponent << 7 | rest);
}

/// Increments *differing for each element of a row that differs from the first row, bit for bit. Grid: groups of 256
/// outputs; rows.
__global__ void __launch_bounds__(block_threads)
    compare_rows(const std::uint32_t* y, std::int64_t outputs, unsigned* differing) {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (n < outputs && y[blockIdx.y * outputs + n] != y[n]) atomicAdd(differing, 1U);
}

}  // namespace

bool PromptMatmul::takes(const Matrix& w, std::int64_t x_stride) {
    return w.dtype == DType::bf16 && w.num_inputs % 8 == 0 && x_stride % 8 == 0 && w.num_outputs % 4 == 0;
}

void PromptMatmul::multiply(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                            float* y) {
    if (num_rows == 0 || w.num_outputs == 0) return;
    const BlockShape shape{.outputs = w.num_outputs, .inputs = w.num_inputs, .x_stride = x_stride};
    auto* const weights = weights_.get<std::byte>(stream_, shape.outputs * shape.inputs * 2);
    const int algorithm = algorithm_of(shape);
    unpack(w, weights);
    const std::int64_t rows = library_->block_rows();
    std::int64_t first = 0;
    for (; first + rows <= num_rows; first += rows) {
        library_->multiply(shape, algorithm, weights, x + first * x_stride * 2, y + first * shape.outputs);
    }
    if (first < num_rows)
        multiply_rest(shape, algorithm, x + first * x_stride * 2, num_rows - first, y + first * shape.outputs);
}

void PromptMatmul::unpack(const Matrix& w, std::byte* to) {
    const UnpackJob job{.weights = w.data.data(),
                        .layout = WeightLayout::of(w),
                        .num_outputs = w.num_outputs,
                        .gated = w.gated,
                        .to = reinterpret_cast<std::uint16_t*>(to)};
    const dim3 grid(pieces(job.layout.num_slices * job.layout.steps, block_steps),
                    static_cast<unsigned>(job.layout.num_tiles));
    launch(stream_, unpack_weights, grid, dim3(block_threads), 0, job);
}

void PromptMatmul::multiply_rest(const BlockShape& shape, int algorithm, const std::byte* x, std::int64_t num_rows,
                                 float* y) {
    const auto copy_to = [&](const void* from, std::int64_t num_bytes, std::int64_t all_bytes, void* to) {
        const std::int64_t all = all_bytes / word_bytes;
        launch(stream_, copy_words, dim3(pieces(all, block_threads)), dim3(block_threads), 0,
               static_cast<const uint4*>(from), num_bytes / word_bytes, all, static_cast<uint4*>(to));
    };
    const std::int64_t rows = library_->block_rows();
    const std::int64_t x_bytes = shape.x_stride * 2, y_bytes = shape.outputs * 4;
    auto* const inputs = inputs_.get<std::byte>(stream_, rows * x_bytes);
    auto* const outputs = outputs_.get<float>(stream_, rows * shape.outputs);
    copy_to(x, num_rows * x_bytes, rows * x_bytes, inputs);
    library_->multiply(shape, algorithm, weights_.get<std::byte>(stream_, 0), inputs, outputs);
    copy_to(outputs, num_rows * y_bytes, num_rows * y_bytes, y);
}

int PromptMatmul::algorithm_of(const BlockShape& shape) {
    const auto known = chosen_.find(shape);
    return known != chosen_.end() ? known->second : chosen_.emplace(shape, choose(shape)).first->second;
}

int PromptMatmul::choose(const BlockShape& shape) {
    const std::int64_t rows = library_->block_rows();
    auto* const weights = weights_.get<std::uint16_t>(stream_, shape.outputs * shape.inputs);
    auto* const inputs = inputs_.get<std::uint16_t>(stream_, rows * shape.x_stride);
    auto* const outputs = outputs_.get<float>(stream_, rows * shape.outputs);
    auto* const differing = differing_.get<unsigned>(stream_, 1);
    const auto fill = [&](std::uint16_t* to, std::int64_t all, std::int64_t period, std::uint32_t seed) {
        launch(stream_, fill_numbers, dim3(pieces(all, block_threads)), dim3(block_threads), 0, to, all, period, seed);
    };
    fill(weights, shape.outputs * shape.inputs, shape.outputs * shape.inputs, 1);
    fill(inputs, rows * shape.x_stride, shape.x_stride, 2);
    Pinned found(sizeof(unsigned));
    for (int algorithm = 0; algorithm < library_->num_algorithms(shape); ++algorithm) {
        fill_zero(stream_, reinterpret_cast<std::byte*>(differing), sizeof *differing);
        library_->multiply(shape, algorithm, reinterpret_cast<const std::byte*>(weights),
                           reinterpret_cast<const std::byte*>(inputs), outputs);
        launch(stream_, compare_rows, dim3(pieces(shape.outputs, block_threads), static_cast<unsigned>(rows)),
               dim3(block_threads), 0, reinterpret_cast<const std::uint32_t*>(outputs), shape.outputs, differing);
        copy(stream_, found.data(), differing, sizeof *differing);
        stream_.synchronize();
        if (*reinterpret_cast<const unsigned*>(found.data()) == 0) return algorithm;
    }
    throw CudaError(block_library_version() + ": expected a way to multiply " + std::to_string(shape.outputs) + " x " +
                    std::to_string(shape.inputs) +
                    " that gives equal rows equal results, got none; use kernels = cuda");
}

std::vector<std::string> PromptMatmul::choices() const {
    std::vector<std::string> lines;
    for (const auto& [shape, algorithm] : chosen_) {
        lines.push_back("prompts times " + std::to_string(shape.outputs) + " x " + std::to_string(shape.inputs) + ": " +
                        block_library_version() + ", " + library_->describe(shape, algorithm));
    }
    return lines;
}

CudaDevice::PromptRows CudaDevice::library_rows(const Matrix& w, std::int64_t x_stride, std::int64_t num_rows) const {
    const PassRows& pass = state_->pass.on_host();
    if (state_->prompts == nullptr || pass.num_prompt_rows == 0 || !PromptMatmul::takes(w, x_stride)) return {};
    const std::int64_t first = pass.first_prompt_row, end = first + pass.num_prompt_rows;
    if (end > num_rows) throw std::logic_error("layer_matmul: fewer rows than the pass has");
    return {first, end};
}

void CudaDevice::layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                              float* y) {
    const PromptRows prompts = library_rows(w, x_stride, num_rows);
    if (prompts.first == prompts.end) return matmul(w, x, x_stride, num_rows, y);
    check_matmul(w, x_stride, num_rows);
    matmul(w, x, x_stride, prompts.first, y);
    state_->prompts->multiply(w, x + prompts.first * x_stride * 2, x_stride, prompts.end - prompts.first,
                              y + prompts.first * w.num_outputs);
    matmul(w, x + prompts.end * x_stride * 2, x_stride, num_rows - prompts.end, y + prompts.end * w.num_outputs);
}

void CudaDevice::gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride,
                              std::int64_t num_rows, float* sums, DType act, std::byte* out, std::int64_t out_stride) {
    check_gated(w, act, num_rows, out_stride);
    check_matmul(w, x_stride, num_rows);
    const std::int64_t width = w.num_outputs / 2;
    const auto row_bytes = static_cast<std::int64_t>(bytes_of(act_type(w.dtype))) * x_stride;
    const auto out_bytes = static_cast<std::int64_t>(bytes_of(act)) * out_stride;
    const auto fused = [&](std::int64_t first, std::int64_t end) {
        const GatedOutput gated{gate, act, out + first * out_bytes, out_stride};
        multiply(w, x + first * row_bytes, x_stride, end - first, sums + first * w.num_outputs, &gated);
    };
    const PromptRows prompts = library_rows(w, x_stride, num_rows);
    fused(0, prompts.first);
    if (prompts.first < prompts.end) {
        float* const of_prompts = sums + prompts.first * w.num_outputs;
        const std::int64_t count = prompts.end - prompts.first;
        state_->prompts->multiply(w, x + prompts.first * row_bytes, x_stride, count, of_prompts);
        gate_mul(gate, of_prompts, count, width, act, out + prompts.first * out_bytes, out_stride);
    }
    fused(prompts.end, num_rows);
}

std::vector<std::string> CudaDevice::choices() const {
    return state_->prompts == nullptr ? std::vector<std::string>() : state_->prompts->choices();
}

}  // namespace longhaul::kernels::cuda
