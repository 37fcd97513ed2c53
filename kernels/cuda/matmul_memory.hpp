// Workspaces of matmuls, kept between calls (matmul.cu).
#pragma once

#include "kernels/cuda/cuda_device.hpp"

namespace longhaul::kernels::cuda {

struct MatmulMemory {
    static constexpr std::int64_t max_panel_bytes = std::int64_t{64} << 20;

    /// Upper bound in bytes for passes of this size: quantized inputs, two sums per output (many rows of int8 and int4
    /// are split in two), and the sums of so few tiles that they are split to occupy all multiprocessors.
    static std::int64_t bytes(const PassSize& pass) {
        constexpr std::int64_t few_tiles = std::int64_t{32} << 20;
        return few_tiles + max_panel_bytes + pass.rows * pass.widest_quantized * (1 + 2 * std::int64_t{sizeof(float)});
    }
    /// Zeroed counters; every user must leave them zero.
    unsigned* zeros(const Stream& stream, std::int64_t count) {
        if (count > num_zeros) {
            fill_zero(stream, arrived.get<std::byte>(stream, count * 4), static_cast<std::size_t>(count) * 4);
            num_zeros = count;
        }
        return arrived.get<unsigned>(stream, count);
    }

    Workspace inputs;  ///< reordered or quantized
    Workspace panels;  ///< inputs of prompts, for clusters of blocks
    Workspace scales;  ///< of quantized inputs
    Workspace parts;   ///< sums of subtrees
    Workspace arrived;
    std::int64_t num_zeros = 0;
};

}  // namespace longhaul::kernels::cuda
