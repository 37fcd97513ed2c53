// Device memory for the sampling rules, kept between calls.
#pragma once

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

struct DecidePart {
    static constexpr std::size_t max_nodes = 32;  ///< at once: a node takes 20 bytes a token of the vocabulary

    [[nodiscard]] static std::int64_t bytes(const PassSize& pass);

    Parcel parcel;
    Workspace sent;     ///< nodes and their drafts
    Workspace targets;  ///< their distributions
    Workspace left, sums, states, decided;
};

}  // namespace longhaul::kernels::cuda
