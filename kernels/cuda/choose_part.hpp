// Device memory for choosing tokens, kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::kernels::cuda {

struct ChoosePart {
    static constexpr std::int64_t row_bytes = std::int64_t{160} << 10;  ///< of all that follows, for a row, at most

    Parcel parcel;
    Workspace sent;    ///< rows and the tokens they penalise
    Workspace states;  ///< of rows, and their histograms: zeros at first
    Workspace lanes, lists, draws, saved, tokens;
};

/// Leaves the distributions of rows where the choices say (Choice::keep); no sum where one is the host's to find out.
void keep_rows(ChoosePart& part, const Stream& stream, PinnedRing& ring, float* logits, std::int64_t stride,
               std::int64_t vocab_size, std::span<const Choice> choices);

}  // namespace longhaul::kernels::cuda
