// How a row of linear attention changes a state. Apart from delta_shape.hpp because kernels of other processors see it
// ("the wall" in kernels/cpu/kernel_table.hpp).
#pragma once

#include <cstdint>

namespace longhaul::kernels {

enum class StateRule : std::uint8_t {
    delta,  ///< the gated delta rule: what the state gives for the key moves towards the value
    sum     ///< Mamba-2 (arXiv 2405.21060, section 7): the value is added, whatever the state gives for the key
};

}  // namespace longhaul::kernels
