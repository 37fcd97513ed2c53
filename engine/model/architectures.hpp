// The families of models: a row of the table for each, with what its class of transformers fills in, and where its
// folders differ from Llama's. Private to the readers of model configurations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model/config.hpp"
#include "engine/model/config_section.hpp"

namespace longhaul::engine::detail {

/// Sizes that a class of transformers fills in if config.json lacks them; 0: they must be there.
struct DefaultSizes {
    std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0;
    std::int64_t kv_heads = 0;  ///< 0: num_attention_heads
    std::int64_t head_dim = 0;  ///< 0: hidden_size / num_attention_heads
    std::int64_t positions = 0;
    double rotated_share = 0.0;  ///< partial_rotary_factor; 0: it must be 1, or absent
};

/// The activation of an MLP: where config.json names it, and the names that it may have there. No name: read_layers
/// reads it.
struct ActivationKey {
    std::string_view key, value, alias;
};

/// Where the folders of a family differ from Llama's, besides their layers (read_layers) and the names of tensors
/// (tensor_names.hpp).
struct FolderFormat {
    std::string_view text_section = "";  ///< where the language model's fields are, if not at the top
    /// Names of sizes; the usual ones count, too.
    std::string_view hidden_key = "hidden_size", layers_key = "num_hidden_layers", heads_key = "num_attention_heads";
    std::string_view positions_key = "max_position_embeddings", intermediate_key = "intermediate_size";
    std::int64_t intermediate_per_hidden = 0;  ///< intermediate_size / hidden_size if it is not given; 0: it must be
    std::string_view rotary_dims_key = "";     ///< rotated dimensions of a head, if it has no partial_rotary_factor
    /// Names of rope_theta and of partial_rotary_factor beside the section of RoPE.
    std::string_view theta_key = "rope_theta", rotated_share_key = "partial_rotary_factor";
    bool ties_at_top = false;           ///< tie_word_embeddings beside the text section counts, too
    bool may_split_experts = false;     ///< the experts of a layer are stacked, but apart in quantized folders
    bool may_be_mxfp4 = false;          ///< quant_method
    bool positions_are_scaled = false;  ///< max_position_embeddings is the context after any scaling of RoPE
    bool may_be_mrope = false;          ///< rope_type: positions of three parts, which are equal in a text
    bool text_may_be_at_top = false;    ///< in folders without the text section
    bool yarn_is_longrope = false;      ///< rope_type "yarn" of early folders
};

/// A supported architecture and what its config.json must contain.
struct Architecture {
    std::string_view model_type, class_name;
    ActivationKey activation;
    void (*read_layers)(const Section& top, ModelConfig& config);
    DefaultSizes sizes = {};
    FolderFormat folder = {};
    std::string_view other_class_name = "";  ///< that some folders name instead
};

/// The row of a model_type; null: it is not supported.
const Architecture* find_architecture(std::string_view model_type);

/// The row of a model that is being read: its model_type has one.
const Architecture& architecture_of(const ModelConfig& model);

/// "\"llama\", \"qwen2\", … or \"opt\""
std::string supported_model_types();

}  // namespace longhaul::engine::detail
