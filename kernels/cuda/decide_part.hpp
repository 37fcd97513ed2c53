// Device memory for the sampling rules (decide.cu), kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct DecidePart {
    static constexpr std::size_t max_nodes = 32;  ///< per batch; a node takes 20 bytes per vocabulary token

    [[nodiscard]] static std::int64_t bytes(const PassSize& pass);

    Parcel parcel;
    Workspace sent;     ///< nodes and their drafts
    Workspace targets;  ///< their targets' distributions
    Workspace left, sums, states, decided;
};

}  // namespace longhaul::kernels::cuda
