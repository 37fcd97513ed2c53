// int8 and int4 weights of the reference device.
#pragma once

#include <span>

#include "kernels/device.hpp"

namespace longhaul::kernels::reference {

/// Bytes of a packed matrix whose sizes are filled in.
std::size_t quantized_bytes(const Matrix& matrix);
/// Fills `matrix.data`, which is all zeros.
void pack_quantized(std::span<const WeightRows> parts, Matrix& matrix);
/// Weight [row, k] as the product sees it.
float quantized_value(const Matrix& matrix, std::int64_t row, std::int64_t k);
void matmul_quantized(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y,
                      int threads);

}  // namespace longhaul::kernels::reference
