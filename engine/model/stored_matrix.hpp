// Matrices as folders "FP8" and "INT8" hold them: elements of 8 bits, and scales by which they are multiplied. Read by
// FolderSource, which hands them on as f32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/safetensors.hpp"

namespace longhaul::engine {

/// A matrix of a model folder: of BF16, F16 or F32, or of F8_E4M3 or I8 with scales (BF16, F16 or F32). Tensor "X" has
/// them in "X_scale_inv" or "X_scale": one for all, one for each row, or one for each block of 128 rows and columns.
struct MatrixView {
    const TensorView* elements = nullptr;
    const TensorView* scales = nullptr;  ///< nullptr: none
    std::int64_t rows_per_scale = 0, columns_per_scale = 0;
};

/// The matrix `name`, which must have this shape, and its scales one of theirs. Throws InputError.
MatrixView require_matrix(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns);

/// A part of a matrix.
struct MatrixRange {
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_column = 0, num_columns = 0;
};

/// out [num_rows, num_columns] = elements * scales of a matrix that has scales; one rounding each. Returns whether all
/// are finite. Uses several threads.
bool multiply_by_scales(const MatrixView& matrix, const MatrixRange& range, float* out);

}  // namespace longhaul::engine
