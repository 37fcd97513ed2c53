// int8 and int4 weights of the reference device.
#pragma once

#include "kernels/source_rows.hpp"

namespace longhaul::kernels::reference {

/// Bytes of a packed matrix with this geometry.
std::size_t quantized_bytes(const Matrix& matrix);
/// Fills one output of `matrix.data`, which must have been zero-filled.
void pack_quantized_row(const SourceRow& source, std::int64_t output, Matrix& matrix);
/// Weight [row, k] after quantization, as the matmul uses it.
float quantized_value(const Matrix& matrix, std::int64_t row, std::int64_t k);
void matmul_quantized(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y,
                      int threads);

}  // namespace longhaul::kernels::reference
