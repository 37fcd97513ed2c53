// What matrix products keep between calls (matmul.cu).
#pragma once

#include "kernels/cuda/cuda_device.hpp"

namespace longhaul::kernels::cuda {

struct MatmulMemory {
    /// What passes of this size take at most, but for what few rows take: inputs as whole numbers, and two sums of each
    /// output (many rows of int8 and int4 are split by two).
    static std::int64_t bytes(const PassSize& pass) {
        return pass.rows * pass.widest_quantized * (1 + 2 * std::int64_t{sizeof(float)});
    }
    /// Zeros that every user leaves as zeros.
    unsigned* zeros(const Stream& stream, std::int64_t count) {
        if (count > num_zeros) {
            fill_zero(stream, arrived.get<std::byte>(stream, count * 4), static_cast<std::size_t>(count) * 4);
            num_zeros = count;
        }
        return arrived.get<unsigned>(stream, count);
    }

    Workspace inputs;  ///< in another order, or as whole numbers
    Workspace scales;  ///< of whole inputs
    Workspace parts;   ///< sums of subtrees
    Workspace arrived;
    std::int64_t num_zeros = 0;
};

}  // namespace longhaul::kernels::cuda
