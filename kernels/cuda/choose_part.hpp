// Device memory for choosing tokens, kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct ChoosePart {
    Parcel parcel;
    Workspace sent;    ///< rows and the tokens they penalise
    Workspace states;  ///< of rows, and their histograms: zeros at first
    Workspace lanes, lists, draws, saved, tokens;
};

}  // namespace longhaul::kernels::cuda
