// Matrices as model folders store them: rows of floats, elements of 8 bits with scales ("FP8", "INT8"), or of 4 or 8
// bits with scales of groups (GPTQ, AWQ, NVFP4, MXFP4), each in tensors of its own or one of the experts in a tensor
// for all. FolderSource hands on the first as they are, if it can, the others as f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/model/grouped_matrix.hpp"
#include "engine/model/safetensors.hpp"

namespace longhaul::engine {

/// How a tensor holds a matrix [rows, columns].
enum class StoredForm : std::uint8_t {
    floats,      ///< BF16, F16 or F32, row by row
    scaled,      ///< F8_E4M3 or I8 times scales
    grouped,     ///< see GroupedMatrix
    transposed,  ///< BF16, F16 or F32, column by column
};

/// Which matrix of a tensor that holds several of one shape.
struct StackPlace {
    std::int64_t count = 0;  ///< 0: the tensor is one matrix
    std::int64_t index = 0;
    bool by_rows = false;     ///< floats [count, rows, columns]; false: [count, columns, rows], or MXFP4
    bool by_columns = false;  ///< of a tensor that is one matrix: floats [columns, rows]
};

struct MatrixView {
    StoredForm form = StoredForm::floats;
    std::int64_t rows = 0, columns = 0;
    std::int64_t index = 0;  ///< in its stack
    std::string tensor;      ///< name of the tensor that could hold NaN: the elements', or the scales' of 4 bits
    const TensorView* elements = nullptr;
    const TensorView* scales = nullptr;                      ///< scaled
    std::int64_t rows_per_scale = 0, columns_per_scale = 0;  ///< scaled
    GroupedMatrix groups{};                                  ///< grouped

    /// The bytes of elements that rows first_row to end_row - 1 are in: all, if rows are not one behind another.
    [[nodiscard]] std::span<const std::byte> bytes(std::int64_t first_row, std::int64_t end_row) const;
};

/// The matrix `name`, or the one at `place` of that stack, which must have this shape.
///
/// The scales of tensor "X", of BF16, F16 or F32, are "X_scale_inv" or "X_scale": one for all, one for each row, or one
/// for each block of 128 rows and columns. Other tensors: find_grouped, require_mxfp4_stack; another stack "X" has
/// floats (StackPlace). Throws InputError.
MatrixView require_matrix(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns, StackPlace place = {});

/// A part of a matrix: rows first_row, first_row + row_step, …
struct MatrixRange {
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_column = 0, num_columns = 0;
    std::int64_t row_step = 1;
};

/// Calls read(first, end) for runs of rows 0 to num_rows - 1, on several threads if there is `work` (operations) for
/// them. Returns whether all returned true; throws what any of them threw.
bool read_by_threads(std::int64_t num_rows, std::int64_t work,
                     const std::function<bool(std::int64_t, std::int64_t)>& read);

/// out [num_rows, num_columns] = a part of a matrix of any form; a product with a scale is rounded once.
/// Returns whether all are finite. Uses several threads.
bool read_as_f32(const MatrixView& matrix, const MatrixRange& range, float* out);

}  // namespace longhaul::engine
