#include "engine/model/stored_matrix.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/small_floats.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t block_rows = 128, block_columns = 128;  // of scaled matrices

std::int64_t quotient_up(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit;
}

/// The numbers that the 256 bytes of a type stand for.
std::array<float, 256> numbers_of(TensorType type) {
    std::array<float, 256> numbers{};
    for (unsigned byte = 0; byte < 256; ++byte)
        numbers[byte] = type == TensorType::i8 ? static_cast<float>(static_cast<std::int8_t>(byte)) : e4m3(byte);
    return numbers;
}

/// Name and tensor of a matrix's scales.
const std::pair<const std::string, TensorView>& scales_of(const SafetensorsFolder& tensors, const TensorView& elements,
                                                          const std::string& name) {
    for (const char* other : {"_zero_point", "_scale_2"}) {
        if (tensors.contains(name + other))
            throw InputError(elements.file, name + other, "none: elements times scales", "a tensor of that name");
    }
    const auto inverse = tensors.tensors().find(name + "_scale_inv"), plain = tensors.tensors().find(name + "_scale");
    const bool has_inverse = inverse != tensors.tensors().end(), has_plain = plain != tensors.tensors().end();
    if (has_inverse == has_plain)
        throw InputError(elements.file, name,
                         "scales in " + name + "_scale_inv or _scale, as elements of " + elements.dtype_name + " need",
                         has_plain ? "both" : "none");
    return has_inverse ? *inverse : *plain;
}

MatrixView require_scaled(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns) {
    const TensorView& elements = tensors.require_shape(name, {rows, columns});
    const auto& [scales_name, scales] = scales_of(tensors, elements, name);
    MatrixView view{.form = StoredForm::scaled,
                    .rows = rows,
                    .columns = columns,
                    .tensor = name,
                    .elements = &elements,
                    .scales = &scales};
    const std::vector<std::int64_t>& shape = scales.shape;
    // No two of these shapes are equal, but those of one scale: a matrix has more rows than blocks of 128.
    const std::int64_t by_row = quotient_up(rows, block_rows), by_column = quotient_up(columns, block_columns);
    if (std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size == 1; })) {
        view.rows_per_scale = rows;
        view.columns_per_scale = columns;
    } else if (shape == std::vector{rows} || shape == std::vector<std::int64_t>{rows, 1}) {
        view.rows_per_scale = 1;
        view.columns_per_scale = columns;
    } else if (shape == std::vector{by_row, by_column}) {
        view.rows_per_scale = block_rows;
        view.columns_per_scale = block_columns;
    } else {
        std::string got = "[";
        for (const std::int64_t size : shape) got += (got.size() > 1 ? ", " : "") + std::to_string(size);
        throw InputError(scales.file, scales_name,
                         "scales of shape [1], [" + std::to_string(rows) + ", 1] or [" + std::to_string(by_row) + ", " +
                             std::to_string(by_column) + "]",
                         got + "]");
    }
    if (!is_float(scales.dtype))
        throw InputError(scales.file, scales_name, "scales of BF16, F16 or F32", scales.dtype_name);
    return view;
}

MatrixView grouped_view(const GroupedMatrix& groups, std::int64_t rows, std::int64_t columns) {
    return {.form = StoredForm::grouped,
            .rows = rows,
            .columns = columns,
            .tensor = groups.scales_name,
            .elements = groups.elements.words,
            .groups = groups};
}

MatrixView require_of_stack(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                            std::int64_t columns, StackPlace place) {
    if (place.by_rows)
        return {.rows = rows,
                .columns = columns,
                .index = place.index,
                .tensor = name,
                .elements = &tensors.require(name, {place.count, rows, columns})};
    const std::string blocks = name + "_blocks", scales = name + "_scales";
    if (tensors.contains(blocks) || tensors.contains(scales))
        return grouped_view(require_mxfp4_stack(tensors, name, rows, columns, place.count, place.index), rows, columns);
    if (!tensors.contains(name))
        throw InputError(tensors.label(), name, "a tensor of that name, or " + blocks + " and " + scales, "neither");
    return {.form = StoredForm::transposed,
            .rows = rows,
            .columns = columns,
            .index = place.index,
            .tensor = name,
            .elements = &tensors.require(name, {place.count, columns, rows})};
}

/// Fills rows [first, end) of a part of a matrix.
class Reader {
  public:
    Reader(const MatrixView& matrix, const MatrixRange& range, float* out)
        : matrix_(matrix), range_(range), out_(out), numbers_(numbers_of(matrix.elements->dtype)) {}

    /// Returns whether all are finite. They are checked while they are in the cache.
    [[nodiscard]] bool read(std::int64_t first, std::int64_t end) const {
        const bool transposed = matrix_.form == StoredForm::transposed;
        const std::int64_t together = transposed ? 32 : 1;  // neighbours in memory
        bool finite = true;
        for (; first < end; first += together) {
            const std::int64_t last = std::min(first + together, end);
            if (transposed) {
                transposed_rows(first, last);
            } else {
                matrix_.form == StoredForm::floats ? float_row(first) : scaled_row(first);
            }
            finite = all_finite({to(first), to(last)}) && finite;
        }
        return finite;
    }

  private:
    [[nodiscard]] std::int64_t row(std::int64_t r) const { return range_.first_row + r * range_.row_step; }
    [[nodiscard]] float* to(std::int64_t r) const { return out_ + r * range_.num_columns; }

    /// Calls fill(i, end, block) for the range's columns, those of one block of `columns` at a time.
    template <typename Fill>
    void each_block(std::int64_t columns, Fill fill) const {
        for (std::int64_t i = 0; i < range_.num_columns;) {
            const std::int64_t block = (range_.first_column + i) / columns;
            const std::int64_t end = std::min((block + 1) * columns - range_.first_column, range_.num_columns);
            fill(i, end, block);
            i = end;
        }
    }

    void float_row(std::int64_t r) const {
        const std::int64_t first = (matrix_.index * matrix_.rows + row(r)) * matrix_.columns + range_.first_column;
        for (std::int64_t i = 0; i < range_.num_columns; ++i) to(r)[i] = element_of(*matrix_.elements, first + i);
    }

    void scaled_row(std::int64_t r) const {
        const std::byte* from = matrix_.elements->data + row(r) * matrix_.columns + range_.first_column;
        const std::int64_t scales_per_row = quotient_up(matrix_.columns, matrix_.columns_per_scale);
        each_block(matrix_.columns_per_scale, [&](std::int64_t i, std::int64_t end, std::int64_t block) {
            const float scale = element_of(*matrix_.scales, row(r) / matrix_.rows_per_scale * scales_per_row + block);
            for (; i < end; ++i) to(r)[i] = numbers_[static_cast<unsigned>(from[i])] * scale;
        });
    }

    void transposed_rows(std::int64_t first, std::int64_t end) const {
        for (std::int64_t i = 0; i < range_.num_columns; ++i) {
            const std::int64_t column = matrix_.index * matrix_.columns + range_.first_column + i;
            for (std::int64_t r = first; r < end; ++r)
                to(r)[i] = element_of(*matrix_.elements, column * matrix_.rows + row(r));
        }
    }

    const MatrixView& matrix_;
    const MatrixRange& range_;
    float* out_;
    std::array<float, 256> numbers_;  ///< that the bytes of elements stand for
};

}  // namespace

std::span<const std::byte> MatrixView::bytes(std::int64_t first_row, std::int64_t end_row) const {
    const std::int64_t in_stack = elements->shape.size() == 3 ? elements->shape.front() : 1;
    if (form == StoredForm::transposed) {
        const std::int64_t whole = elements->num_bytes / in_stack;
        return {elements->data + index * whole, static_cast<std::size_t>(whole)};
    }
    if (form == StoredForm::grouped && !groups.elements.is_row_major())
        return {elements->data, static_cast<std::size_t>(elements->num_bytes)};
    const std::int64_t row_bytes = form == StoredForm::grouped
                                       ? groups.elements.row_stride * 4
                                       : elements->num_bytes / (in_stack * rows * columns) * columns;
    const std::int64_t rows_before = form == StoredForm::grouped ? groups.rows_before : index * rows;
    return {elements->data + (rows_before + first_row) * row_bytes,
            static_cast<std::size_t>((end_row - first_row) * row_bytes)};
}

MatrixView require_matrix(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns, StackPlace place) {
    if (place.count > 0) return require_of_stack(tensors, name, rows, columns, place);
    const auto found = tensors.tensors().find(name);
    if (found != tensors.tensors().end() &&
        (found->second.dtype == TensorType::f8_e4m3 || found->second.dtype == TensorType::i8))
        return require_scaled(tensors, name, rows, columns);
    if (const std::optional<GroupedMatrix> groups = find_grouped(tensors, name, rows, columns))
        return grouped_view(*groups, rows, columns);
    if (place.by_columns)
        return {.form = StoredForm::transposed,
                .rows = rows,
                .columns = columns,
                .tensor = name,
                .elements = &tensors.require(name, {columns, rows})};
    return {.rows = rows, .columns = columns, .tensor = name, .elements = &tensors.require(name, {rows, columns})};
}

bool read_by_threads(std::int64_t num_rows, std::int64_t work,
                     const std::function<bool(std::int64_t, std::int64_t)>& read) {
    std::atomic<bool> finite = true, failed = false;
    std::exception_ptr failure;
    const auto read_rows = [&](std::int64_t first, std::int64_t end) {
        try {
            if (!read(first, end)) finite = false;
        } catch (...) {
            if (!failed.exchange(true)) failure = std::current_exception();
        }
    };
    constexpr std::int64_t work_per_thread = std::int64_t{1} << 20;
    const std::int64_t wanted = std::min<std::int64_t>(std::thread::hardware_concurrency(), work / work_per_thread);
    const std::int64_t threads = std::clamp<std::int64_t>(wanted, 1, 16);
    {
        std::vector<std::jthread> workers;
        for (std::int64_t t = 1; t < threads; ++t) {
            const std::int64_t first = t * num_rows / threads, end = (t + 1) * num_rows / threads;
            try {
                workers.emplace_back(read_rows, first, end);
            } catch (const std::system_error&) {  // a limit on threads or memory
                read_rows(first, end);
            }
        }
        read_rows(0, num_rows / threads);
    }
    if (failure) std::rethrow_exception(failure);
    return finite;
}

bool read_as_f32(const MatrixView& matrix, const MatrixRange& range, float* out) {
    const auto read_with = [&](const auto& reader) {
        return read_by_threads(range.num_rows, range.num_rows * range.num_columns,
                               [&](std::int64_t first, std::int64_t end) { return reader.read(first, end); });
    };
    if (matrix.form == StoredForm::grouped) return read_with(GroupedReader(matrix.groups, range, out));
    return read_with(Reader(matrix, range, out));
}

}  // namespace longhaul::engine
