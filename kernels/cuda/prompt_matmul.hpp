// Matmul of prompt rows with a library (block_library.hpp). A row's result depends only on the row and the matrix.
//
// Libraries select kernels by the number of rows. So all calls here have the same number of rows, with the last block
// of a pass padded, and each matrix shape uses one algorithm. It is chosen when the shape first occurs, with numbers
// that do not depend on the model: the first algorithm that gives equal rows equal results at every position in the
// block. The price is that the order of sums is the library's. It may change with the library version or the GPU, and
// it depends on how a matrix is sliced, so the ranks of a tensor-parallel group do not reproduce the result of one
// rank.
//
// Weights are stored in the layout of our own kernels (weight_layout.hpp) and are unpacked to row-major before each
// matmul. That costs two passes over them in memory, which pays off from some hundred rows on.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/block_library.hpp"
#include "kernels/cuda/cuda_device.hpp"

namespace longhaul::kernels::cuda {

class PromptMatmul {
  public:
    PromptMatmul(const Stream& stream, std::unique_ptr<BlockLibrary> library)
        : stream_(stream), library_(std::move(library)) {}

    /// Whether the library can multiply this matrix; depends only on shapes and type.
    [[nodiscard]] static bool takes(const Matrix& w, std::int64_t x_stride);

    /// Same as Device::matmul.
    void multiply(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y);

    /// The algorithms chosen so far, one line each.
    [[nodiscard]] std::vector<std::string> choices() const;

  private:
    /// The algorithm for a shape; may overwrite weights_.
    int algorithm_of(const BlockShape& shape);
    int choose(const BlockShape& shape);
    void unpack(const Matrix& w, std::byte* to);
    void multiply_rest(const BlockShape& shape, int algorithm, const std::byte* x, std::int64_t num_rows, float* y);

    const Stream& stream_;
    std::unique_ptr<BlockLibrary> library_;
    std::map<BlockShape, int> chosen_;
    Workspace weights_;  ///< bf16 [outputs, inputs]
    Workspace inputs_;   ///< bf16 [block rows, x_stride], for a partial block
    Workspace outputs_;  ///< f32 [block rows, outputs], for a partial block
    Workspace differing_;
};

}  // namespace longhaul::kernels::cuda
