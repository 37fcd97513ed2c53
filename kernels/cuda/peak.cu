// CudaDevice::measure_peak_flops, for benchmarks: repeats mma.sync on registers only, which kernels of up to 16 rows
// and those of quantized weights use. The instructions of Hopper's warpgroups (wgmma) reach about 1.5 times as much.
#include <algorithm>
#include <chrono>

#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr unsigned block_threads = 256, blocks_per_multiprocessor = 4;
constexpr int sums_per_warp = 8;  // independent, so that none waits for the previous one
constexpr double mma_operations = 2.0 * 16 * 8 * 16;
constexpr double wanted_seconds = 0.02;
constexpr int passes = 7, max_growth = 64;

__global__ void __launch_bounds__(block_threads) multiply_registers(std::int64_t rounds, float* sink) {
    // Numbers around 2^-7: a GPU is faster on zeros than on other values.
    const std::uint32_t some = 0x3c003c00U + threadIdx.x % 32 * 0x00030005U;
    const std::uint32_t a[4] = {some, some + 0x00110007U, some ^ 0x80000000U, some + 0x00050013U};
    const std::uint32_t b[2] = {some ^ 0x00008000U, some + 0x000b0003U};
    float sums[sums_per_warp][4] = {};
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma unroll
        for (auto& sum : sums) mma_bf16(sum, a, b);
    }
    float all = 0.0F;
    for (const auto& sum : sums) {
        for (const float part : sum) all += part;
    }
    if (all == 0x1p100F) *sink = all;  // never true, but the compiler cannot know that
}

}  // namespace

double CudaDevice::measure_peak_flops() {
    const unsigned blocks = blocks_per_multiprocessor * static_cast<unsigned>(state_->properties.multiprocessors);
    const double round_operations = mma_operations * sums_per_warp * (block_threads / 32) * blocks;
    Workspace sink;
    auto* const to = sink.get<float>(state_->stream, 1);
    double best = 0.0;
    std::int64_t rounds = 1;
    for (int pass = 0; pass < passes; ++pass) {  // the first ones are too short
        state_->stream.synchronize();
        const auto start = std::chrono::steady_clock::now();
        launch(state_->stream, multiply_registers, dim3(blocks), dim3(block_threads), 0, rounds, to);
        state_->stream.synchronize();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::max(best, round_operations * static_cast<double>(rounds) / taken.count());
        const double growth = std::min<double>(wanted_seconds / taken.count(), max_growth);
        rounds = std::max<std::int64_t>(static_cast<std::int64_t>(growth * static_cast<double>(rounds)), 1);
    }
    return best;
}

}  // namespace longhaul::kernels::cuda
