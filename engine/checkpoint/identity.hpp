// What a checkpoint belongs to: the job, the model, and how its keys and values are laid out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// Layers whose keys and values are stored together (ModelConfig::layer_groups).
struct KvGroup {
    std::int64_t num_layers = 0;
    std::int64_t window = 0;  ///< sliding window; 0: a row sees all positions
    /// As CheckpointIdentity has them, of these layers; 0: the same. A divisor of the model's KV heads.
    std::int64_t num_kv_heads = 0, head_dim = 0;

    /// The first position that a round which ends at `end` stores, of those from `begin` on: a window's, and some more,
    /// so that a resume may also go on a little before the end.
    static constexpr std::int64_t margin = 320;  // drafts that rank positions do so up to 256 positions before the end
    [[nodiscard]] std::int64_t first_stored(std::int64_t begin, std::int64_t end) const {
        return window == 0 ? begin : std::max(begin, end - window - margin);
    }
    friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

/// Keys or values of positions [first, first + count) of one head in one layer.
struct KvRows {
    std::size_t group = 0;     ///< of layers
    std::int64_t layer = 0;    ///< of the group's
    std::int64_t kv_head = 0;  ///< of the group's in the whole model
    bool values = false;
    std::int64_t first = 0, count = 0;
};

/// A checkpoint can only be used if all of these fields match (the groups follow from the model). Messages name the
/// field that differs.
struct CheckpointIdentity {
    std::string job;    ///< fingerprint of the identity keys of the job, hexadecimal
    std::string model;  ///< fingerprint of weights and config; of a drafter's layer: DrafterState::kind
    std::string tokenizer;
    int numerics_version = 0;
    std::string kv_dtype;  ///< "bf16", "f32", "int8"
    std::int64_t num_layers = 0;
    std::int64_t num_kv_heads = 0;  ///< of the whole model
    std::int64_t head_dim = 0;
    std::vector<KvGroup> groups{};  ///< of layers with keys and values; empty: all layers are one, without a window
    /// The layers of linear attention, whose state is stored; it follows from the model, as the groups do.
    struct States {
        std::int64_t num_layers = 0;  ///< 0: there are none
        std::int64_t num_heads = 0;   ///< key heads of the whole model
        std::int64_t head_floats = 0;
        /// Rounds of an item whose states a launch keeps: the last one, and one in case that is damaged.
        static constexpr std::int64_t kept_rounds = 2;
    } states{};

    /// Adds the layers of one group (ModelConfig::layer_groups), with the layout of the whole model.
    void add_layers(const kernels::KvLayout& whole) {
        if (whole.is_state()) {
            states = {whole.num_layers, whole.delta.num_key_heads, whole.delta.head_floats()};
        } else {
            groups.push_back({whole.num_layers, whole.window, whole.num_kv_heads, whole.head_dim});
        }
    }
    /// That of the keys and values which a drafter has in one layer of its own.
    [[nodiscard]] CheckpointIdentity of_drafter(const std::string& kind, std::int64_t kv_heads,
                                                std::int64_t dim) const {
        return {job, kind, tokenizer, numerics_version, kv_dtype, 1, kv_heads, dim};
    }
    /// That of the states, of which "keys" are the first half of a head's numbers and "values" the second.
    [[nodiscard]] CheckpointIdentity of_states() const {
        return {job,
                model,
                tokenizer,
                numerics_version,
                "f32",
                states.num_layers,
                states.num_heads,
                states.head_floats / 2};
    }
    [[nodiscard]] std::vector<KvGroup> kv_groups() const {
        std::vector<KvGroup> all = groups.empty() ? std::vector<KvGroup>{{num_layers, 0}} : groups;
        for (KvGroup& group : all) {
            if (group.num_kv_heads == 0) group.num_kv_heads = num_kv_heads;
            if (group.head_dim == 0) group.head_dim = head_dim;
        }
        return all;
    }
    friend bool operator==(const CheckpointIdentity& a, const CheckpointIdentity& b) {
        const auto fields = [](const CheckpointIdentity& of) {
            return std::tie(of.job, of.model, of.tokenizer, of.numerics_version, of.kv_dtype, of.num_layers,
                            of.num_kv_heads, of.head_dim);
        };
        return fields(a) == fields(b);
    }
};

}  // namespace longhaul::engine
