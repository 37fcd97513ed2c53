// Tensor names of each architecture in Hugging Face checkpoints. Used by the weight plan and by checks of model
// folders.
#pragma once

#include <string>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// Names without ".weight" or ".bias". Names below `layers` are prefixed with it and the layer number.
struct TensorNames {
    std::string embedding, positions, project_in, project_out, final_norm;
    std::string layers;
    std::string attention_norm, query, key, value, output;
    std::string mlp_norm;
    std::vector<std::string> up;  ///< matrices of the MLP's first matmul, stacked: gate and up, or up alone
    std::string down;
};

inline const TensorNames& tensor_names(const ModelConfig& config) {
    static const TensorNames llama{.embedding = "model.embed_tokens",
                                   .positions = "",
                                   .project_in = "",
                                   .project_out = "",
                                   .final_norm = "model.norm",
                                   .layers = "model.layers.",
                                   .attention_norm = "input_layernorm",
                                   .query = "self_attn.q_proj",
                                   .key = "self_attn.k_proj",
                                   .value = "self_attn.v_proj",
                                   .output = "self_attn.o_proj",
                                   .mlp_norm = "post_attention_layernorm",
                                   .up = {"mlp.gate_proj", "mlp.up_proj"},
                                   .down = "mlp.down_proj"};
    static const TensorNames opt{.embedding = "model.decoder.embed_tokens",
                                 .positions = "model.decoder.embed_positions",
                                 .project_in = "model.decoder.project_in",
                                 .project_out = "model.decoder.project_out",
                                 .final_norm = "model.decoder.final_layer_norm",
                                 .layers = "model.decoder.layers.",
                                 .attention_norm = "self_attn_layer_norm",
                                 .query = "self_attn.q_proj",
                                 .key = "self_attn.k_proj",
                                 .value = "self_attn.v_proj",
                                 .output = "self_attn.out_proj",
                                 .mlp_norm = "final_layer_norm",
                                 .up = {"fc1"},
                                 .down = "fc2"};
    return config.model_type == "opt" ? opt : llama;
}

}  // namespace longhaul::engine
