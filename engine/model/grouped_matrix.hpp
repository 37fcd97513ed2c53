// Matrices of elements of 4 or 8 bits with a scale for each row and group of columns: integers, as GPTQ, AWQ and
// compressed-tensors store them, or E2M1, as MXFP4 and NVFP4 do. Private to stored_matrix.cpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/safetensors.hpp"

namespace longhaul::engine {

struct MatrixRange;

/// Unsigned integers [rows, columns] in words of 32 bits of a tensor, the first in the lowest bits. Integer (r, c) is
/// in word r / rows_per_word * row_stride + c / columns_per_word * column_stride.
struct PackedIntegers {
    const TensorView* words = nullptr;  ///< null: all are 2^(bits - 1)
    int bits = 4;
    std::int64_t rows_per_word = 1, row_stride = 0;
    std::int64_t columns_per_word = 1, column_stride = 0;
    bool awq_order = false;         ///< in a word: integers 0, 2, 4, 6, 1, 3, 5, 7
    std::uint32_t add_to_word = 0;  ///< before integers are taken from it

    /// Bits of a word below those of a row's integer, or of the first of its integers.
    [[nodiscard]] int shift_of(std::int64_t row) const {
        constexpr int awq_places[] = {0, 4, 1, 5, 2, 6, 3, 7};
        const std::int64_t place = row % rows_per_word;
        return bits * (awq_order ? awq_places[place] : static_cast<int>(place));
    }
    /// Whether the words of a row are side by side, and one row behind another.
    [[nodiscard]] bool is_row_major() const { return rows_per_word == 1 && column_stride == 1 && columns_per_word > 1; }
};

/// What an integer of a GroupedMatrix stands for.
enum class ElementType : std::uint8_t { integer, e2m1 };

/// (element - zero point of its row and group) * scale of its row and group.
struct GroupedMatrix {
    PackedIntegers elements;
    ElementType type = ElementType::integer;
    PackedIntegers zeros;                ///< integers: [rows, groups]
    const TensorView* scales = nullptr;  ///< of BF16, F16, F32, F8_E4M3, or U8, which is E8M0
    float common_scale = 1.0F;           ///< factor on all scales
    std::int64_t scale_row_stride = 0, scale_group_stride = 0;
    std::int64_t num_groups = 0;
    std::int64_t columns_per_group = 0;           ///< without group_of_column
    const TensorView* group_of_column = nullptr;  ///< I32 [columns], as act-order needs; null: in order
    std::int64_t rows_before = 0;                 ///< rows of other matrices before it in the tensors
    std::string scales_name, group_of_column_name;

    /// E2M1 has two significant bits, and the scales are powers of two.
    [[nodiscard]] bool is_exact_in_bf16() const { return type == ElementType::e2m1 && scales->dtype_name == "U8"; }
};

/// The matrix "X.weight" if it is stored so. Throws InputError if it cannot be read.
///
/// GPTQ and AWQ, which their shapes tell apart: I32 "X.qweight" and "X.qzeros", "X.scales", with act-order "X.g_idx".
/// Zero points of GPTQ are stored less 1.
/// compressed-tensors: "X.weight_packed" and "X.weight_scale"; I32 with "X.weight_zero_point" and "X.weight_g_idx" if
/// they are needed (-1: they are not); U8 is E2M1, and the scales are divided by "X.weight_global_scale" if that is
/// there. ModelOpt: U8 "X.weight" is E2M1, "X.weight_scale" is multiplied by "X.weight_scale_2".
std::optional<GroupedMatrix> find_grouped(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                                          std::int64_t columns);

/// Throws InputError if a column's group does not exist. Reads all of group_of_column.
void check_groups(const GroupedMatrix& matrix);

/// Matrix `index` of a stack of `count` in MXFP4: U8 "X_blocks" [count, rows, columns / 32, 16] and "X_scales"
/// [count, rows, columns / 32].
GroupedMatrix require_mxfp4_stack(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                                  std::int64_t columns, std::int64_t count, std::int64_t index);

inline bool all_finite(std::span<const float> values) {
    std::int32_t greatest = 0;  // magnitude, as bits, which compilers make vector instructions of
    for (const float value : values) greatest = std::max(greatest, std::bit_cast<std::int32_t>(value) & 0x7fffffff);
    return greatest < 0x7f800000;
}

/// Reads rows of a part of a matrix as f32. The constructor throws InputError as check_groups does.
class GroupedReader {
  public:
    GroupedReader(const GroupedMatrix& matrix, const MatrixRange& range, float* out);
    /// Rows first to end - 1 of the range. Returns whether all are finite.
    [[nodiscard]] bool read(std::int64_t first, std::int64_t end) const;

  private:
    class WordRows;
    /// What integers of a row stand for, by group: (number - zero) * scale.
    struct RowGroups {
        std::vector<float> zeros, scales;
    };
    [[nodiscard]] float scale_of(std::int64_t row, std::int64_t group) const;
    void fill_groups(std::int64_t row, RowGroups& groups) const;
    void read_row(const std::byte* words, int shift, const RowGroups& groups, float* out) const;

    const GroupedMatrix& matrix_;
    const MatrixRange& range_;
    float* out_;
    /// Columns of one group: from the end of those before them. `end` counts columns of the range.
    struct Run {
        std::int64_t end;
        std::int32_t group;
    };
    std::vector<Run> runs_;
    std::int32_t first_group_ = 0, end_group_ = 0;  ///< of the range's columns
    std::vector<float> numbers_;                    ///< that the integers stand for
};

}  // namespace longhaul::engine
