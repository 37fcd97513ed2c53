#include "kernels/quantized.hpp"

#include <algorithm>

#include "kernels/convert.hpp"

namespace longhaul::kernels {

void load_columns(const WeightRows& part, std::int64_t row, std::int64_t first, std::int64_t count, float* values) {
    const std::int64_t there = std::clamp<std::int64_t>(part.num_columns - first, 0, count);
    const std::int64_t from = row * part.row_stride + part.first_column + first;
    for (std::int64_t i = 0; i < there; ++i) values[i] = load_as_f32(part.data, part.dtype, from + i);
    std::fill(values + there, values + count, 0.0F);
}

}  // namespace longhaul::kernels
