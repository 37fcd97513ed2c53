// Into how many blocks the slices of a matmul's tiles are divided. The result has the same bits for any number
// (matmul.cuh); only the load of the multiprocessors depends on it.
#pragma once

#include <cstdint>

namespace longhaul::kernels::cuda {

/// Number of blocks that share the `num_slices` slices of each of `num_tiles` tiles: 1, 2, 4 or 8, so that a block has
/// at most `max_slices`. More than that pays only if the busiest multiprocessor gets at least a quarter less work:
/// each division writes and reads the sums once more.
constexpr int split_of_slices(std::int64_t num_tiles, int num_slices, int max_slices, int multiprocessors) {
    const auto busiest = [&](int split) {
        return (num_tiles * split + multiprocessors - 1) / multiprocessors * (num_slices / split);
    };
    int split = 1;
    while (split < num_slices && (num_slices / split > max_slices || 4 * busiest(2 * split) <= 3 * busiest(split))) {
        split *= 2;
    }
    return split;
}

}  // namespace longhaul::kernels::cuda
