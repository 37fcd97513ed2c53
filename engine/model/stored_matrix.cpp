#include "engine/model/scaled_matrix.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t block_rows = 128, block_columns = 128;

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

}  // namespace

MatrixView require_matrix(const SafetensorsFolder& tensors, const std::string& name, std::int64_t rows,
                          std::int64_t columns) {
    const auto found = tensors.tensors().find(name);
    const bool scaled = found != tensors.tensors().end() &&
                        (found->second.dtype == TensorType::f8_e4m3 || found->second.dtype == TensorType::i8);
    if (!scaled) return {.elements = &tensors.require(name, {rows, columns})};
    const TensorView& elements = tensors.require_shape(name, {rows, columns});
    const auto& [scales_name, scales] = scales_of(tensors, elements, name);
    MatrixView view{.elements = &elements, .scales = &scales};
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

bool multiply_by_scales(const MatrixView& matrix, const MatrixRange& range, float* out) {
    const TensorView& elements = *matrix.elements;
    const std::array<float, 256> numbers = numbers_of(elements.dtype);
    const std::int64_t columns = elements.shape[1];
    const std::int64_t scales_per_row = quotient_up(columns, matrix.columns_per_scale);
    std::atomic<bool> finite = true;
    const auto multiply = [&](std::int64_t first, std::int64_t end) {
        bool all_finite = true;
        for (std::int64_t r = first; r < end; ++r) {
            const std::int64_t row = range.first_row + r;
            const std::byte* from = elements.data + row * columns + range.first_column;
            float* to = out + r * range.num_columns;
            for (std::int64_t i = 0; i < range.num_columns;) {
                const std::int64_t block = (range.first_column + i) / matrix.columns_per_scale;
                const std::int64_t stop =
                    std::min((block + 1) * matrix.columns_per_scale - range.first_column, range.num_columns);
                const float scale = element_of(*matrix.scales, row / matrix.rows_per_scale * scales_per_row + block);
                for (; i < stop; ++i) {
                    to[i] = numbers[static_cast<unsigned>(from[i])] * scale;
                    all_finite = all_finite && std::isfinite(to[i]);
                }
            }
        }
        if (!all_finite) finite = false;
    };
    constexpr std::int64_t elements_per_thread = std::int64_t{1} << 20;
    const std::int64_t wanted = std::min<std::int64_t>(std::thread::hardware_concurrency(),
                                                       range.num_rows * range.num_columns / elements_per_thread);
    const std::int64_t threads = std::clamp<std::int64_t>(wanted, 1, 16);
    {
        std::vector<std::jthread> workers;
        for (std::int64_t t = 1; t < threads; ++t)
            workers.emplace_back(multiply, t * range.num_rows / threads, (t + 1) * range.num_rows / threads);
        multiply(0, range.num_rows / threads);
    }
    return finite;
}

}  // namespace longhaul::engine
