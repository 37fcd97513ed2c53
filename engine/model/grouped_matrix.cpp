#include "engine/model/grouped_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "engine/error.hpp"
#include "engine/model/small_floats.hpp"
#include "engine/model/stored_matrix.hpp"

namespace longhaul::engine {
namespace {

std::int64_t quotient_up(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit;
}

constexpr std::int64_t integers_per_word(int bits) {
    return 32 / bits;
}

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
    std::uint32_t word;
    std::memcpy(&word, words + index * 4, sizeof word);
    return word;
}

/// The tensor of that name if there is one, which must be I32 of `shape`.
const TensorView* find_integers(const SafetensorsFolder& tensors, const std::string& name,
                                const std::vector<std::int64_t>& shape) {
    if (!tensors.contains(name)) return nullptr;
    const TensorView& view = tensors.require_shape(name, shape);
    if (view.dtype_name != "I32") throw InputError(view.file, name, "I32", view.dtype_name);
    return &view;
}

/// Words of which each has integers of one row.
PackedIntegers packed_inputs(const TensorView* words, int bits, std::int64_t columns) {
    return {.words = words,
            .bits = bits,
            .row_stride = quotient_up(columns, integers_per_word(bits)),
            .columns_per_word = integers_per_word(bits),
            .column_stride = 1};
}

/// Finds the tensors of one matrix.
class Finder {
  public:
    Finder(const SafetensorsFolder& tensors, std::string name, std::int64_t rows, std::int64_t columns)
        : tensors_(tensors), name_(std::move(name)), rows_(rows), columns_(columns) {}

    /// GPTQ packs along the inputs, which are the first dimension of its tensors; AWQ along the outputs.
    [[nodiscard]] GroupedMatrix gptq_or_awq() const {
        const std::string base = name_.substr(0, name_.size() - std::string_view("weight").size());
        const std::string name = base + "qweight", zeros = base + "qzeros";
        const TensorView& words = require_i32(name);
        GroupedMatrix matrix;
        const bool is_awq = words.shape == std::vector{columns_, rows_ / 8} && rows_ % 8 == 0;
        int bits = 4;
        if (is_awq) {
            matrix.elements = packed_outputs(&words, bits);
            matrix.elements.awq_order = true;
        } else {
            bits = bits_of(words.shape, {columns_, rows_}, 0);
            if (bits == 0) refuse_shape(words, name);
            matrix.elements = {.words = &words,
                               .bits = bits,
                               .row_stride = 1,
                               .columns_per_word = integers_per_word(bits),
                               .column_stride = rows_};
        }
        find_scales(matrix, base + "scales", false);
        find_group_of_column(matrix, base + "g_idx");
        const std::vector<std::int64_t> shape{matrix.num_groups, quotient_up(rows_, integers_per_word(bits))};
        matrix.zeros = packed_outputs(find_integers(tensors_, zeros, shape), bits);
        if (matrix.zeros.words == nullptr) throw InputError(words.file, zeros, "a tensor of that name", "none");
        matrix.zeros.awq_order = is_awq;
        if (!is_awq) matrix.zeros.add_to_word = bits == 4 ? 0x11111111U : 0x01010101U;
        return matrix;
    }

    [[nodiscard]] GroupedMatrix compressed_tensors() const {
        const std::string name = name_ + "_packed";
        const TensorView& words = require_i32(name);
        const int bits = bits_of(words.shape, {rows_, columns_}, 1);
        if (bits == 0) refuse_shape(words, name);
        GroupedMatrix matrix;
        matrix.elements = packed_inputs(&words, bits, columns_);
        find_scales(matrix, name_ + "_scale", true);
        find_group_of_column(matrix, name_ + "_g_idx");
        const std::vector<std::int64_t> shape{quotient_up(rows_, integers_per_word(bits)), matrix.num_groups};
        matrix.zeros = {.words = find_integers(tensors_, name_ + "_zero_point", shape),
                        .bits = bits,
                        .rows_per_word = integers_per_word(bits),
                        .row_stride = matrix.num_groups,
                        .column_stride = 1};
        return matrix;
    }

    /// `name`: of the tensor of elements, two in a byte.
    [[nodiscard]] GroupedMatrix e2m1(const std::string& name) const {
        GroupedMatrix matrix;
        matrix.type = ElementType::e2m1;
        matrix.elements = packed_inputs(&tensors_.require_shape(name, {rows_, columns_ / 2}), 4, columns_);
        const TensorView& words = *matrix.elements.words;
        if (columns_ % 8 != 0)
            throw InputError(words.file, name, "rows of whole blocks", "rows of " + std::to_string(columns_));
        find_scales(matrix, name_ + "_scale", true);
        find_group_size(matrix);
        const std::string divisor = name_ + "_global_scale", factor = name_ + "_scale_2";
        if (name != name_) refuse_both(words, name, name_);
        if (tensors_.contains(divisor)) refuse_both(words, divisor, factor);
        if (tensors_.contains(divisor)) matrix.common_scale = 1.0F / single_number(divisor);
        if (tensors_.contains(factor)) matrix.common_scale = single_number(factor);
        const std::string of_inputs =
            name_.substr(0, name_.size() - std::string_view("weight").size()) + "pre_quant_scale";
        if (tensors_.contains(of_inputs))
            throw InputError(words.file, of_inputs, "no scales of inputs, as ModelOpt's AWQ has them",
                             "a tensor of that name", "use the model's unquantized folder");
        if (tensors_.contains(name_ + "_zero_point"))
            throw InputError(words.file, name_ + "_zero_point", "none: elements of E2M1 times scales",
                             "a tensor of that name");
        return matrix;
    }

  private:
    [[nodiscard]] const TensorView& require_i32(const std::string& name) const {
        const TensorView& words = tensors_.tensors().at(name);
        if (words.dtype_name != "I32") throw InputError(words.file, name, "I32", words.dtype_name);
        refuse_both(words, name, name_);
        return words;
    }

    void refuse_both(const TensorView& one, const std::string& name, const std::string& other) const {
        if (tensors_.contains(other)) throw InputError(one.file, name, "only one of " + name + " and " + other, "both");
    }

    [[nodiscard]] float single_number(const std::string& name) const {
        const TensorView& view = tensors_.tensors().at(name);
        if (view.dtype_name != "F32" || view.num_bytes != 4)
            throw InputError(view.file, name, "one F32", view.dtype_name + " of shape " + shape_text(view.shape));
        return element_of(view, 0);
    }

    /// 4 or 8 if words of so many bits give that shape, packed along `dimension`; else 0.
    static int bits_of(const std::vector<std::int64_t>& got, std::vector<std::int64_t> shape, std::size_t dimension) {
        const std::int64_t size = shape[dimension];
        for (const int bits : {4, 8}) {
            shape[dimension] = quotient_up(size, integers_per_word(bits));
            if (got == shape) return bits;
        }
        return 0;
    }

    [[noreturn]] void refuse_shape(const TensorView& words, const std::string& name) const {
        const bool by_row = name.ends_with("_packed");
        const auto shape = [&](std::int64_t first, std::int64_t second) { return shape_text({first, second}); };
        const std::string gptq = shape(columns_ / 8, rows_) + " or " + shape(columns_ / 4, rows_) +
                                 " (GPTQ of 4 or 8 bits) or " + shape(columns_, rows_ / 8) + " (AWQ)";
        const std::string packed = shape(rows_, quotient_up(columns_, 8)) + " or " +
                                   shape(rows_, quotient_up(columns_, 4)) + " (of 4 or 8 bits)";
        throw InputError(words.file, name, "shape " + (by_row ? packed : gptq) + ", as config.json says",
                         shape_text(words.shape));
    }

    /// [groups, rows], packed along the rows.
    [[nodiscard]] PackedIntegers packed_outputs(const TensorView* words, int bits) const {
        return {.words = words,
                .bits = bits,
                .rows_per_word = integers_per_word(bits),
                .row_stride = 1,
                .column_stride = quotient_up(rows_, integers_per_word(bits))};
    }

    /// Sets num_groups from their shape.
    void find_scales(GroupedMatrix& matrix, const std::string& name, bool rows_first) const {
        const auto found = tensors_.tensors().find(name);
        if (found == tensors_.tensors().end())
            throw InputError(matrix.elements.words->file, name, "a tensor of that name", "none");
        const TensorView& scales = found->second;
        const bool is_e2m1 = matrix.type == ElementType::e2m1;
        const bool is_small = is_e2m1 && (scales.dtype == TensorType::f8_e4m3 || scales.dtype_name == "U8");
        if (!is_float(scales.dtype) && !is_small)
            throw InputError(scales.file, name, is_e2m1 ? "scales of F8_E4M3 or U8" : "scales of BF16, F16 or F32",
                             scales.dtype_name);
        const bool fits = scales.shape.size() == 2 && scales.shape[rows_first ? 0 : 1] == rows_ &&
                          scales.shape[rows_first ? 1 : 0] > 0 && scales.shape[rows_first ? 1 : 0] <= columns_;
        if (!fits)
            throw InputError(scales.file, name,
                             "scales of shape " + (rows_first ? "[" + std::to_string(rows_) + ", groups]"
                                                              : "[groups, " + std::to_string(rows_) + "]"),
                             shape_text(scales.shape));
        matrix.scales = &scales;
        matrix.scales_name = name;
        matrix.num_groups = scales.shape[rows_first ? 1 : 0];
        matrix.scale_row_stride = rows_first ? matrix.num_groups : 1;
        matrix.scale_group_stride = rows_first ? 1 : rows_;
    }

    void find_group_of_column(GroupedMatrix& matrix, const std::string& name) const {
        matrix.group_of_column = find_integers(tensors_, name, {columns_});
        matrix.group_of_column_name = name;
        // compressed-tensors has -1 everywhere if the order is not needed.
        bool is_used = matrix.group_of_column != nullptr && name.ends_with(".g_idx");
        for (std::int64_t c = 0; matrix.group_of_column != nullptr && !is_used && c < columns_; ++c)
            is_used = word_at(matrix.group_of_column->data, c) != 0xffffffffU;
        if (is_used) return;
        matrix.group_of_column = nullptr;
        find_group_size(matrix);
    }

    /// From the number of groups, since config.json may name several sizes: equal groups, or a power of two with a
    /// shorter last group.
    void find_group_size(GroupedMatrix& matrix) const {
        const std::int64_t count = matrix.num_groups, equal = columns_ % count == 0 ? columns_ / count : 0;
        std::int64_t power = 1;
        while (quotient_up(columns_, power) > count) power *= 2;
        const bool fits = count > 1 && quotient_up(columns_, power) == count;
        const bool is_either = equal > 0 && fits && equal != power;
        matrix.columns_per_group = equal > 0 ? equal : power;
        if (!is_either && (equal > 0 || fits)) return;
        const std::string sizes = equal == 0 ? "" : ", of " + std::to_string(equal) + " or of " + std::to_string(power);
        throw InputError(matrix.scales->file, matrix.scales_name, "groups of one size",
                         std::to_string(count) + " of " + std::to_string(columns_) + " inputs" + sizes);
    }

    const SafetensorsFolder& tensors_;
    std::string name_;
    std::int64_t rows_, columns_;
};

std::uint32_t zero_of(const PackedIntegers& zeros, std::int64_t row, std::int64_t group) {
    const std::uint32_t mask = (1U << zeros.bits) - 1U;
    if (zeros.words == nullptr) return 1U << (zeros.bits - 1);
    const std::int64_t word = row / zeros.rows_per_word * zeros.row_stride + group * zeros.column_stride;
    return (word_at(zeros.words->data, word) + zeros.add_to_word) >> zeros.shift_of(row) & mask;
}

}  // namespace

std::optional<GroupedMatrix> find_grouped(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                                          std::int64_t columns) {
    constexpr std::string_view ending = ".weight";
    if (!name.ends_with(ending)) return std::nullopt;
    const Finder finder(tensors, name, rows, columns);
    if (tensors.contains(name.substr(0, name.size() - ending.size()) + ".qweight")) return finder.gptq_or_awq();
    const auto packed = tensors.tensors().find(name + "_packed"), plain = tensors.tensors().find(name);
    if (packed != tensors.tensors().end())
        return packed->second.dtype_name == "U8" ? finder.e2m1(packed->first) : finder.compressed_tensors();
    if (plain != tensors.tensors().end() && plain->second.dtype_name == "U8") return finder.e2m1(name);
    return std::nullopt;
}

GroupedMatrix require_mxfp4_stack(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                                  std::int64_t columns, std::int64_t count, std::int64_t index) {
    constexpr std::int64_t block = 32, block_bytes = 16;
    const std::string blocks = name + "_blocks", scales = name + "_scales";
    const std::int64_t in_row = columns / block;
    if (columns % block != 0 && tensors.contains(blocks))
        throw InputError(tensors.tensors().at(blocks).file, blocks, "rows of whole blocks of 32",
                         "rows of " + std::to_string(columns) + ", as config.json says");
    GroupedMatrix matrix;
    matrix.type = ElementType::e2m1;
    matrix.elements = packed_inputs(&tensors.require_shape(blocks, {count, rows, in_row, block_bytes}), 4, columns);
    matrix.scales = &tensors.require_shape(scales, {count, rows, in_row});
    for (const auto& [tensor, tensor_name] : {std::pair(matrix.elements.words, &blocks), {matrix.scales, &scales}}) {
        if (tensor->dtype_name != "U8") throw InputError(tensor->file, *tensor_name, "U8", tensor->dtype_name);
    }
    matrix.scales_name = scales;
    matrix.num_groups = matrix.scale_row_stride = in_row;
    matrix.scale_group_stride = 1;
    matrix.columns_per_group = block;
    matrix.rows_before = index * rows;
    return matrix;
}

/// Throws InputError if it does not exist.
static std::int32_t group_of(const GroupedMatrix& matrix, std::int64_t column) {
    if (matrix.group_of_column == nullptr) return static_cast<std::int32_t>(column / matrix.columns_per_group);
    const auto group = static_cast<std::int32_t>(word_at(matrix.group_of_column->data, column));
    if (group < 0 || group >= matrix.num_groups)
        throw InputError(matrix.group_of_column->file, matrix.group_of_column_name,
                         "groups 0 to " + std::to_string(matrix.num_groups - 1), std::to_string(group));
    return group;
}

void check_groups(const GroupedMatrix& matrix) {
    if (matrix.group_of_column == nullptr) return;
    for (std::int64_t column = 0; column < matrix.group_of_column->shape.front(); ++column)
        static_cast<void>(group_of(matrix, column));
}

GroupedReader::GroupedReader(const GroupedMatrix& matrix, const MatrixRange& range, float* out)
    : matrix_(matrix), range_(range), out_(out) {
    first_group_ = static_cast<std::int32_t>(matrix.num_groups);
    for (std::int64_t i = 0; i < range.num_columns; ++i) {
        const std::int32_t group = group_of(matrix, range.first_column + i);
        if (runs_.empty() || runs_.back().group != group) runs_.push_back({i, group});
        runs_.back().end = i + 1;
        first_group_ = std::min(first_group_, group);
        end_group_ = std::max(end_group_, group + 1);
    }
    numbers_.assign(e2m1_numbers.begin(), e2m1_numbers.end());
    if (matrix.type == ElementType::e2m1) return;
    numbers_.resize(std::size_t{1} << matrix.elements.bits);
    std::iota(numbers_.begin(), numbers_.end(), 0.0F);
}

/// The words of one row after another, side by side. Where a column's words are side by side in the tensor, 16 of them,
/// a line of the cache, are copied together: 16 rows of GPTQ, 128 of AWQ.
class GroupedReader::WordRows {
  public:
    WordRows(const PackedIntegers& integers, const MatrixRange& range)
        : integers_(integers),
          first_(range.first_column / integers.columns_per_word),
          count_(quotient_up(range.first_column + range.num_columns, integers.columns_per_word) - first_) {}

    /// Those of the range's columns, of a row of the matrix.
    const std::byte* of(std::int64_t row) {
        const std::int64_t word_row = row / integers_.rows_per_word;
        if (integers_.is_row_major()) return integers_.words->data + (word_row * integers_.row_stride + first_) * 4;
        const std::int64_t block = word_row / together;
        if (block != copied_) copy(block);
        return reinterpret_cast<const std::byte*>(copy_.data() + word_row % together * count_);
    }

  private:
    static constexpr std::int64_t together = 16;

    void copy(std::int64_t block) {
        copied_ = block;
        copy_.resize(static_cast<std::size_t>(together * count_));
        const std::int64_t rows = std::min(together, integers_.column_stride - block * together);
        for (std::int64_t c = 0; c < count_; ++c) {
            const std::int64_t from = (first_ + c) * integers_.column_stride + block * together;
            for (std::int64_t r = 0; r < rows; ++r)
                copy_[static_cast<std::size_t>(r * count_ + c)] = word_at(integers_.words->data, from + r);
        }
    }

    const PackedIntegers& integers_;
    std::int64_t first_, count_;
    std::int64_t copied_ = -1;
    std::vector<std::uint32_t> copy_;
};

bool GroupedReader::read(std::int64_t first, std::int64_t end) const {
    const PackedIntegers& elements = matrix_.elements;
    WordRows words(elements, range_);
    RowGroups groups;
    bool finite = true;
    for (; first < end; ++first) {
        const std::int64_t row = matrix_.rows_before + range_.first_row + first * range_.row_step;
        fill_groups(row, groups);
        float* const out = out_ + first * range_.num_columns;
        read_row(words.of(row), elements.shift_of(row), groups, out);
        finite = all_finite({out, out + range_.num_columns}) && finite;
    }
    return finite;
}

float GroupedReader::scale_of(std::int64_t row, std::int64_t group) const {
    const TensorView& scales = *matrix_.scales;
    const std::int64_t at = row * matrix_.scale_row_stride + group * matrix_.scale_group_stride;
    if (is_float(scales.dtype)) return element_of(scales, at) * matrix_.common_scale;
    const auto bits = static_cast<unsigned>(scales.data[at]);
    return (scales.dtype == TensorType::f8_e4m3 ? e4m3(bits) : e8m0(bits)) * matrix_.common_scale;
}

void GroupedReader::fill_groups(std::int64_t row, RowGroups& groups) const {
    groups.zeros.assign(static_cast<std::size_t>(std::max(end_group_ - first_group_, 0)), 0.0F);
    groups.scales.resize(groups.zeros.size());
    for (std::size_t i = 0; i < groups.zeros.size(); ++i) {
        const std::int64_t group = first_group_ + static_cast<std::int64_t>(i);
        groups.scales[i] = scale_of(row, group);
        if (matrix_.type == ElementType::integer)
            groups.zeros[i] = static_cast<float>(zero_of(matrix_.zeros, row, group));
    }
}

/// `words`: from the one that has the range's first column.
void GroupedReader::read_row(const std::byte* words, int shift, const RowGroups& groups, float* out) const {
    const int bits = matrix_.elements.bits;
    const std::int64_t per_word = matrix_.elements.columns_per_word;
    const std::uint32_t mask = (1U << bits) - 1U;
    std::int64_t i = 0, in_word = range_.first_column % per_word;
    std::uint32_t word = 0;
    const auto load = [&] { word = word_at(words, 0) >> (shift + static_cast<int>(in_word) * bits); };
    if (!runs_.empty()) load();
    for (const Run& run : runs_) {
        const auto group = static_cast<std::size_t>(run.group - first_group_);
        const float zero = groups.zeros[group], scale = groups.scales[group];
        while (i < run.end) {
            if (in_word == per_word) {
                in_word = 0;
                words += 4;
                load();
            }
            const std::int64_t end = std::min(run.end, i + per_word - in_word);
            in_word += end - i;
            for (; i < end; ++i, word >>= bits) out[i] = (numbers_[word & mask] - zero) * scale;
        }
    }
}

}  // namespace longhaul::engine
