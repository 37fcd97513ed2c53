// The configuration of a draft layer (draft_layer.hpp), as its folder states it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/json.hpp"
#include "engine/model/config.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/tensor_names.hpp"

namespace longhaul::engine {

/// A layer of EAGLE-3. The forms of norms are those of the library speculators.
struct Eagle3Config {
    std::string prefix;                    ///< of the decoder layer's tensors; "": it is no layer of EAGLE-3
    std::vector<std::int64_t> tap_layers;  ///< the layers of the target whose inputs it reads, in this order
    std::vector<std::int32_t> tokens;      ///< the target's token of each row of its own output head
    bool norm_before_residual = false;     ///< the residual stream begins with the normed state
    bool norm_before_fusion = false;       ///< one norm over all taps side by side
    bool norms_taps = false;               ///< a norm of its own for each tap
    bool norms_output = false;             ///< the next state is the output behind its norm
};

struct DraftLayerConfig {
    ModelConfig layer;  ///< the shape of its one layer; positions as far as the target's
    bool fusion_bias = true;
    bool chains_states = false;  ///< trained for DraftMethod::chains_states
    MtpNames mtp{};              ///< of the target's own layer (DraftMethod::own_layer)
    Eagle3Config eagle3{};
    // With chains_states:
    std::int64_t token_info_rank = 0;       ///< 0: it has no token info
    std::vector<std::int32_t> info_tokens;  ///< tokens that have token info, ascending
    std::string file;                       ///< path of config.json, for messages

    /// Reads config.json and the tensors that name tokens. Throws InputError that names the field, also if the layer
    /// does not fit the target or the method. `folder`: the target's, for its own layer.
    static DraftLayerConfig load(const std::filesystem::path& folder, const ModelConfig& target,
                                 const DraftMethod& method);

    /// Whether it is a layer of EAGLE-3, which reads several layers' inputs and has an output head of its own. The
    /// vocabulary of `layer` is then that head's.
    [[nodiscard]] bool has_own_head() const { return !eagle3.prefix.empty(); }
    /// Whether it is the target's own layer for multi-token prediction, which norms its inputs and its output.
    [[nodiscard]] bool is_targets_own() const { return !mtp.fusion.empty(); }

    /// Number of parameters read for one pass of the layer, of the layer itself with all its experts, and of those read
    /// for the logits of its output.
    [[nodiscard]] std::int64_t num_parameters() const;
    [[nodiscard]] std::int64_t num_stored_parameters() const;
    [[nodiscard]] std::int64_t num_head_parameters(const ModelConfig& target) const;
};

/// What config.json of a draft layer holds, in the form published by the authors of EAGLE.
struct DraftLayerFields {
    Json json;
    bool of_speculators = false;        ///< the folder has the form of the library speculators
    std::int64_t attention_window = 0;  ///< of its layer, where `json` cannot say it; 0: none, or as in `json`
};

/// Also reads folders of the library speculators, which holds the layer's fields in an object of their own. Throws
/// InputError.
DraftLayerFields draft_layer_fields(const std::filesystem::path& folder);

/// Prefix of the decoder layer's tensors in a folder of EAGLE-3; "" if it is none.
std::string eagle3_prefix(const SafetensorsFolder& tensors);

/// The method that the folder's draft layer was trained for; "" if it holds none, or cannot be read.
std::string method_of_draft_layer(const std::filesystem::path& folder);

}  // namespace longhaul::engine
