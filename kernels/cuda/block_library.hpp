// Matmul over whole blocks of rows by an external library: cuBLASLt (cublas_library.cpp), or a stand-in for emulated
// GPUs (tests/cuda_emulation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Shape of y[r, n] = sum_k w[n, k] x[r, k]: w bf16 [outputs, inputs], x bf16 [rows, x_stride], y f32 [rows, outputs],
/// all aligned to 16 bytes.
struct BlockShape {
    std::int64_t outputs = 0, inputs = 0, x_stride = 0;
    friend bool operator<(const BlockShape& a, const BlockShape& b) {
        return std::tie(a.outputs, a.inputs, a.x_stride) < std::tie(b.outputs, b.inputs, b.x_stride);
    }
};

class BlockLibrary {
  public:
    virtual ~BlockLibrary() = default;
    /// Number of rows of every call.
    [[nodiscard]] virtual std::int64_t block_rows() const = 0;
    /// Number of algorithms known for a shape that add in a fixed order; the library's preferred one comes first.
    [[nodiscard]] virtual int num_algorithms(const BlockShape& shape) = 0;
    /// Name of algorithm number `algorithm`.
    [[nodiscard]] virtual std::string describe(const BlockShape& shape, int algorithm) = 0;
    virtual void multiply(const BlockShape& shape, int algorithm, const std::byte* w, const std::byte* x, float* y) = 0;
};

/// Operations run on `stream`, which must outlive the library. Throws CudaError if the library is not available.
std::unique_ptr<BlockLibrary> make_block_library(const Stream& stream);

/// For example "cuBLASLt 13.1.0". Throws likewise.
std::string block_library_version();

}  // namespace longhaul::kernels::cuda
