#include "engine/model/stored_matrix.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t block_rows = 128, block_columns = 128;  // of scaled matrices
constexpr std::int64_t mxfp4_block = 32, mxfp4_block_bytes = 16;

std::int64_t quotient_up(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit;
}

/// F8_E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinity, NaN is 0x7f and 0xff.
float e4m3(unsigned bits) {
    const unsigned exponent = bits >> 3 & 15U, fraction = bits & 7U;
    if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                     : std::ldexp(static_cast<float>(8 + fraction), static_cast<int>(exponent) - 10);
    return (bits & 0x80U) != 0 ? -size : size;
}

/// The numbers that the 256 bytes of a type stand for.
std::array<float, 256> numbers_of(TensorType type) {
    std::array<float, 256> numbers{};
    for (unsigned byte = 0; byte < 256; ++byte)
        numbers[byte] = type == TensorType::i8 ? static_cast<float>(static_cast<std::int8_t>(byte)) : e4m3(byte);
    return numbers;
}

/// E8M0: powers of two; NaN is 0xff.
std::array<float, 256> powers_of_two() {
    std::array<float, 256> powers{};
    for (int byte = 0; byte < 255; ++byte) powers[static_cast<std::size_t>(byte)] = std::ldexp(1.0F, byte - 127);
    powers[255] = std::numeric_limits<float>::quiet_NaN();
    return powers;
}

/// The two elements of E2M1 in each byte, the lower one first.
using E2m1Pairs = std::array<std::array<float, 2>, 256>;
E2m1Pairs e2m1_pairs() {
    constexpr float numbers[] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
    E2m1Pairs pairs{};
    for (unsigned byte = 0; byte < 256; ++byte) pairs[byte] = {numbers[byte & 15U], numbers[byte >> 4]};
    return pairs;
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

MatrixView require_of_stack(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                            std::int64_t columns, StackPlace place) {
    const std::string blocks = name + "_blocks", scales = name + "_scales";
    MatrixView view;
    view.rows = rows;
    view.columns = columns;
    view.index = place.index;
    const bool is_mxfp4 = tensors.contains(blocks) || tensors.contains(scales);
    if (!is_mxfp4 && !tensors.contains(name))
        throw InputError(tensors.label(), name, "a tensor of that name, or " + blocks + " and " + scales, "neither");
    if (!is_mxfp4) {
        view.form = StoredForm::transposed;
        view.tensor = name;
        view.elements = &tensors.require(name, {place.count, columns, rows});
        return view;
    }
    view.form = StoredForm::mxfp4;
    view.tensor = scales;
    const std::int64_t in_row = columns / mxfp4_block;
    if (columns % mxfp4_block != 0 && tensors.contains(blocks))
        throw InputError(tensors.tensors().at(blocks).file, blocks, "rows of whole blocks of 32",
                         "rows of " + std::to_string(columns) + ", as config.json says");
    view.elements = &tensors.require_shape(blocks, {place.count, rows, in_row, mxfp4_block_bytes});
    view.scales = &tensors.require_shape(scales, {place.count, rows, in_row});
    for (const auto& [tensor, tensor_name] : {std::pair(view.elements, &blocks), {view.scales, &scales}}) {
        if (tensor->dtype_name != "U8") throw InputError(tensor->file, *tensor_name, "U8", tensor->dtype_name);
    }
    return view;
}

/// Fills rows [first, end) of a part of a matrix.
class Reader {
  public:
    Reader(const MatrixView& matrix, const MatrixRange& range, float* out)
        : matrix_(matrix),
          range_(range),
          out_(out),
          numbers_(matrix.form == StoredForm::mxfp4 ? powers_of_two() : numbers_of(matrix.elements->dtype)) {}

    void read(std::int64_t first, std::int64_t end) const {
        if (matrix_.form == StoredForm::transposed) {
            constexpr std::int64_t together = 32;  // neighbours in memory
            for (; first < end; first += together) transposed_rows(first, std::min(first + together, end));
            return;
        }
        for (; first < end; ++first) matrix_.form == StoredForm::mxfp4 ? mxfp4_row(first) : scaled_row(first);
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

    void scaled_row(std::int64_t r) const {
        const std::byte* from = matrix_.elements->data + row(r) * matrix_.columns + range_.first_column;
        const std::int64_t scales_per_row = quotient_up(matrix_.columns, matrix_.columns_per_scale);
        each_block(matrix_.columns_per_scale, [&](std::int64_t i, std::int64_t end, std::int64_t block) {
            const float scale = element_of(*matrix_.scales, row(r) / matrix_.rows_per_scale * scales_per_row + block);
            for (; i < end; ++i) to(r)[i] = numbers_[static_cast<unsigned>(from[i])] * scale;
        });
    }

    void mxfp4_row(std::int64_t r) const {
        static const E2m1Pairs pairs = e2m1_pairs();
        const std::int64_t first_block = (matrix_.index * matrix_.rows + row(r)) * (matrix_.columns / mxfp4_block);
        const std::byte* from = matrix_.elements->data + first_block * mxfp4_block_bytes;
        const std::byte* scales = matrix_.scales->data + first_block;
        each_block(mxfp4_block, [&](std::int64_t i, std::int64_t end, std::int64_t block) {
            const float scale = numbers_[static_cast<unsigned>(scales[block])];
            const auto pair_at = [&](std::int64_t at) -> const std::array<float, 2>& {
                return pairs[static_cast<unsigned>(from[(range_.first_column + at) / 2])];
            };
            float* const out = to(r);
            if ((range_.first_column + i) % 2 == 1) {
                out[i] = pair_at(i)[1] * scale;
                ++i;
            }
            for (; i + 1 < end; i += 2) {
                const std::array<float, 2>& pair = pair_at(i);
                out[i] = pair[0] * scale;
                out[i + 1] = pair[1] * scale;
            }
            if (i < end) out[i] = pair_at(i)[0] * scale;
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
    std::array<float, 256> numbers_;  ///< by byte: elements; mxfp4: scales
};

}  // namespace

std::span<const std::byte> MatrixView::bytes(std::int64_t first_row, std::int64_t end_row) const {
    std::int64_t row_bytes = elements->num_bytes / (rows * columns) * columns;
    if (form == StoredForm::mxfp4) row_bytes = columns / mxfp4_block * mxfp4_block_bytes;
    if (form == StoredForm::transposed) {
        const std::int64_t whole = elements->num_bytes / elements->shape.front();
        return {elements->data + index * whole, static_cast<std::size_t>(whole)};
    }
    return {elements->data + (index * rows + first_row) * row_bytes,
            static_cast<std::size_t>((end_row - first_row) * row_bytes)};
}

MatrixView require_matrix(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns, StackPlace place) {
    if (place.count > 0) return require_of_stack(tensors, name, rows, columns, place);
    const auto found = tensors.tensors().find(name);
    if (found != tensors.tensors().end() &&
        (found->second.dtype == TensorType::f8_e4m3 || found->second.dtype == TensorType::i8))
        return require_scaled(tensors, name, rows, columns);
    return {.rows = rows, .columns = columns, .tensor = name, .elements = &tensors.require(name, {rows, columns})};
}

bool read_as_f32(const MatrixView& matrix, const MatrixRange& range, float* out) {
    const Reader reader(matrix, range, out);
    std::atomic<bool> finite = true;
    const auto read = [&](std::int64_t first, std::int64_t end) {
        reader.read(first, end);
        const bool all = std::all_of(out + first * range.num_columns, out + end * range.num_columns,
                                     [](float value) { return std::isfinite(value); });
        if (!all) finite = false;
    };
    constexpr std::int64_t elements_per_thread = std::int64_t{1} << 20;
    const std::int64_t wanted = std::min<std::int64_t>(std::thread::hardware_concurrency(),
                                                       range.num_rows * range.num_columns / elements_per_thread);
    const std::int64_t threads = std::clamp<std::int64_t>(wanted, 1, 16);
    {
        std::vector<std::jthread> workers;
        for (std::int64_t t = 1; t < threads; ++t)
            workers.emplace_back(read, t * range.num_rows / threads, (t + 1) * range.num_rows / threads);
        read(0, range.num_rows / threads);
    }
    return finite;
}

}  // namespace longhaul::engine
