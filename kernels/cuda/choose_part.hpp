// Device memory for choosing tokens (choose.cu), kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::kernels::cuda {

struct ChoosePart {
    static constexpr std::int64_t row_bytes = std::int64_t{160} << 10;  ///< upper bound per row, for all members below

    Parcel parcel;
    Workspace sent;    ///< rows and the tokens they penalise
    Workspace states;  ///< of rows, and their histograms; zeroed before each call
    Workspace lanes, lists, draws, saved, tokens;
};

/// Writes the rows' distributions to Choice::keep; the sum stays 0 where the host must compute the distribution.
void keep_rows(ChoosePart& part, const Stream& stream, PinnedRing& ring, float* logits, std::int64_t stride,
               std::int64_t vocab_size, std::span<const Choice> choices);

}  // namespace longhaul::kernels::cuda
