// Products of prompt rows by a library (block_library.hpp), with the promise that a row's result depends on the row and
// the matrix alone.
//
// A library chooses its kernels by the number of rows. So all calls have one number of rows, the last one of a pass
// padded, and every shape of matrix one algorithm, which is chosen when the shape first comes, on numbers that have
// nothing to do with the model: the first one that gives equal rows equal results wherever in the block they stand.
// What is lost: the order of sums is the library's. It may be another one in its next version or on another GPU, and is
// another one with other slices of a matrix, so ranks of a tensor-parallel group do not add up to what one rank gives.
//
// Weights lie in the order of our own kernels (weight_layout.hpp) and are brought into rows before each product: two
// passes over them in memory, worth it from some hundred rows on.
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

    /// Whether the library computes with this matrix; a matter of shapes and type alone.
    [[nodiscard]] static bool takes(const Matrix& w, std::int64_t x_stride);

    /// As Device::matmul.
    void multiply(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y);

    /// The algorithms chosen so far, a line each.
    [[nodiscard]] std::vector<std::string> choices() const;

  private:
    /// Of a shape; the memory for weights is used.
    int algorithm_of(const BlockShape& shape);
    int choose(const BlockShape& shape);
    void unpack(const Matrix& w, std::byte* to);
    void multiply_rest(const BlockShape& shape, int algorithm, const std::byte* x, std::int64_t num_rows, float* y);

    const Stream& stream_;
    std::unique_ptr<BlockLibrary> library_;
    std::map<BlockShape, int> chosen_;
    Workspace weights_;  ///< bf16 [outputs, inputs]
    Workspace inputs_;   ///< bf16 [block rows, x_stride], of a block that is not full
    Workspace outputs_;  ///< f32 [block rows, outputs], likewise
    Workspace differing_;
};

}  // namespace longhaul::kernels::cuda
