// Sizes and places of linear attention by the gated delta rule (Gated DeltaNet, arXiv 2412.06464, section 3), or as in
// Mamba-2 (StateRule). Such layers keep no keys and values of earlier positions, but one state per head, a matrix, and
// the last inputs of a short convolution. Both are in a page of their own, of which a sequence has one; what draft
// nodes would add to it is in scratch slots, as their keys and values are in other layers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/host_device.hpp"
#include "kernels/state_rule.hpp"

namespace longhaul::kernels {

/// One rank's heads in such a layer. A key head has queries and keys for several value heads, which follow one another.
struct DeltaShape {
    std::int64_t num_key_heads = 0;           ///< 0: the layers are attention
    std::int64_t values_per_key = 0;          ///< value heads of a key head
    std::int64_t key_dim = 0, value_dim = 0;  ///< multiples of 16
    std::int64_t taps = 0;                    ///< of the convolution, at least 2
    StateRule rule = StateRule::delta;

    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t num_value_heads() const { return num_key_heads * values_per_key; }
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t values_width() const { return values_per_key * value_dim; }
    /// Numbers of a row that decays and steps are computed from: of each value head one, or two.
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t gates_width() const {
        return (rule == StateRule::sum ? 1 : 2) * num_value_heads();
    }
    /// Columns of the convolution in a key head: its query, its key, the values of its value heads.
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t channels() const { return 2 * key_dim + values_width(); }

    /// Floats of a key head in the page of a sequence: the states, [values_per_key, key_dim, value_dim], then the
    /// convolution's inputs at the last taps - 1 positions, oldest first, [taps - 1, channels].
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t state_floats() const {
        return values_per_key * key_dim * value_dim;
    }
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t head_floats() const {
        return state_floats() + (taps - 1) * channels();
    }
    /// Floats of a sequence in so many layers.
    [[nodiscard]] std::int64_t sequence_floats(std::int64_t num_layers) const {
        return num_layers * num_key_heads * head_floats();
    }
    /// Floats of a key head in a scratch slot: the convolution's input, [channels], then what changes the states: key,
    /// values, and of each value head decay and step.
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t slot_floats() const { return channels() + update_floats(); }
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t update_floats() const {
        return key_dim + values_width() + 2 * values_per_key;
    }

    /// Bytes of a page of `num_layers` layers: of a sequence, or of 64 scratch slots.
    [[nodiscard]] std::size_t page_bytes(std::int64_t num_layers, std::int64_t slots) const {
        const std::int64_t floats = std::max(head_floats(), slots * slot_floats());
        return static_cast<std::size_t>(num_layers * num_key_heads * floats) * sizeof(float);
    }
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t head_offset(std::int64_t layer, std::int64_t head) const {
        return (layer * num_key_heads + head) * head_floats();
    }
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t slot_offset(std::int64_t num_layers, std::int64_t slot,
                                                                std::int64_t layer, std::int64_t head) const {
        return ((slot * num_layers + layer) * num_key_heads + head) * slot_floats();
    }
    friend bool operator==(const DeltaShape&, const DeltaShape&) = default;
};

}  // namespace longhaul::kernels
