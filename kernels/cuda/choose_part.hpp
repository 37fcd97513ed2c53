// Device memory for choosing tokens, kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct ChoosePart {
    static constexpr std::int64_t row_bytes = std::int64_t{160} << 10;  ///< of all that follows, for a row, at most

    Parcel parcel;
    Workspace sent;    ///< rows and the tokens they penalise
    Workspace states;  ///< of rows, and their histograms: zeros at first
    Workspace lanes, lists, draws, saved, tokens;
};

}  // namespace longhaul::kernels::cuda
