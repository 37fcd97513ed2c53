// Products of whole blocks of rows by somebody else's library: cuBLASLt (cublas_library.cpp), and a stand-in with
// emulated GPUs (tests/cuda_emulation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Of a product y[r, n] = sum_k w[n, k] x[r, k]: w bf16 [outputs, inputs], x bf16 [rows, x_stride], y f32 [rows,
/// outputs], all aligned to 16 bytes.
struct BlockShape {
    std::int64_t outputs = 0, inputs = 0, x_stride = 0;
    friend bool operator<(const BlockShape& a, const BlockShape& b) {
        return std::tie(a.outputs, a.inputs, a.x_stride) < std::tie(b.outputs, b.inputs, b.x_stride);
    }
};

class BlockLibrary {
  public:
    virtual ~BlockLibrary() = default;
    /// Rows of every call.
    [[nodiscard]] virtual std::int64_t block_rows() const = 0;
    /// How many ways it knows of computing a shape without sums that meet in no fixed order; first what it deems best.
    [[nodiscard]] virtual int num_algorithms(const BlockShape& shape) = 0;
    /// What its algorithm number `algorithm` is called.
    [[nodiscard]] virtual std::string describe(const BlockShape& shape, int algorithm) = 0;
    virtual void multiply(const BlockShape& shape, int algorithm, const std::byte* w, const std::byte* x, float* y) = 0;
};

/// Its operations run on `stream`, which outlives it. Throws CudaError where it is not to be had.
std::unique_ptr<BlockLibrary> make_block_library(const Stream& stream);

/// "cuBLASLt 13.1.0". Throws likewise.
std::string block_library_version();

}  // namespace longhaul::kernels::cuda
