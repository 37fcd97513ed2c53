// sum_parts() of links.hpp: adds the parts of all ranks. Called by links_nccl.cpp.
#include <stdexcept>
#include <string>

#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/links.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr unsigned threads = 256;

template <int num_parts>
__device__ float tree(const float* part, std::int64_t count) {
    if constexpr (num_parts == 1) {
        return *part;
    } else {
        return tree<num_parts / 2>(part, count) + tree<num_parts / 2>(part + num_parts / 2 * count, count);
    }
}

template <int num_parts>
__global__ void __launch_bounds__(threads) sum_kernel(float* out, const float* parts, std::int64_t count) {
    const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tree<num_parts>(parts + i, count);
}

}  // namespace

void sum_parts(const Stream& stream, float* out, const float* parts, int num_parts, std::int64_t count) {
    const dim3 grid(static_cast<unsigned>((count + threads - 1) / threads));
    switch (num_parts) {
        case 1:
            return launch(stream, sum_kernel<1>, grid, dim3(threads), 0, out, parts, count);
        case 2:
            return launch(stream, sum_kernel<2>, grid, dim3(threads), 0, out, parts, count);
        case 4:
            return launch(stream, sum_kernel<4>, grid, dim3(threads), 0, out, parts, count);
        case 8:
            return launch(stream, sum_kernel<8>, grid, dim3(threads), 0, out, parts, count);
        default:
            throw std::logic_error("sum_parts of " + std::to_string(num_parts) + " parts");
    }
}

}  // namespace longhaul::kernels::cuda
