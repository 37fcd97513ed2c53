// Tensor names of each architecture in Hugging Face checkpoints. Used by the weight plan and by checks of model
// folders.
#pragma once

#include <string>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// Names without ".weight" or ".bias". Names below `layers` are prefixed with it and the layer number.
struct TensorNames {
    std::string embedding, positions, project_in, project_out, final_norm, head;
    std::string layers;
    std::string attention_norm, query, key, value, output;  ///< fused: `query` holds q, k and v; key, value are empty
    std::string query_norm, key_norm;                       ///< LayerConfig::head_norm and whole_norm
    std::string query_down, query_up, kv_down, kv_norm, kv_up;  ///< LatentConfig, beside query and query_norm
    std::string attention_out_norm, mlp_out_norm;               ///< LayerConfig::norms_outputs
    std::string mlp_norm;
    std::vector<std::string>
        up;  ///< matrices of the MLP's first matmul, stacked: gate and up, both in one, or up alone
    std::string down;
    std::string output_scale;  ///< LayerConfig::output_scale; the whole name
    std::string layer_embedding, layer_projection, layer_projection_norm;  ///< ModelConfig::layer_embedding_size
    std::string embedding_gate, embedding_output, embedding_out_norm;      ///< likewise, in each layer
    std::string router, experts;                                           ///< experts: prefix of each one's number
    std::string score_correction;                                          ///< whole name
    /// ExpertConfig::own_norms; the first two are whole names.
    std::string router_norm, expert_scales, expert_norm, expert_out_norm, shared_out_norm;
    std::vector<std::string> expert_up;
    std::string expert_down;
    std::string stacked_up;              ///< ExpertConfig::stacked, instead of expert_up
    std::vector<std::string> shared_up;  ///< ModelConfig::shared_intermediate_size
    std::string shared_down;
    std::string shared_gate;  ///< ExpertConfig::shared_gate
    std::string sinks;        ///< LayerConfig::sinks
    std::string linear;       ///< prefix of the tensors of linear attention (LayerConfig::linear)
    std::string mtp_marker;   ///< a tensor that only layers for multi-token prediction (MTP) have; "": there are none
};

inline TensorNames llama_tensor_names(const std::string& prefix = "") {
    return {.embedding = prefix + "model.embed_tokens",
            .positions = "",
            .project_in = "",
            .project_out = "",
            .final_norm = prefix + "model.norm",
            .head = prefix + "lm_head",
            .layers = prefix + "model.layers.",
            .attention_norm = "input_layernorm",
            .query = "self_attn.q_proj",
            .key = "self_attn.k_proj",
            .value = "self_attn.v_proj",
            .output = "self_attn.o_proj",
            .query_norm = "self_attn.q_norm",
            .key_norm = "self_attn.k_norm",
            .query_down = "",
            .query_up = "",
            .kv_down = "",
            .kv_norm = "",
            .kv_up = "",
            .attention_out_norm = "",
            .mlp_out_norm = "",
            .mlp_norm = "post_attention_layernorm",
            .up = {"mlp.gate_proj", "mlp.up_proj"},
            .down = "mlp.down_proj",
            .output_scale = "",
            .layer_embedding = "",
            .layer_projection = "",
            .layer_projection_norm = "",
            .embedding_gate = "",
            .embedding_output = "",
            .embedding_out_norm = "",
            .router = "mlp.gate",
            .experts = "mlp.experts.",
            .score_correction = "mlp.gate.e_score_correction_bias",
            .router_norm = "",
            .expert_scales = "",
            .expert_norm = "",
            .expert_out_norm = "",
            .shared_out_norm = "",
            .expert_up = {"gate_proj", "up_proj"},
            .expert_down = "down_proj",
            .stacked_up = "gate_up_proj",
            .shared_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"},
            .shared_down = "mlp.shared_experts.down_proj",
            .shared_gate = "",
            .sinks = "self_attn.sinks",
            .linear = "linear_attn.",
            .mtp_marker = ""};
}

/// Latent attention, and layers for multi-token prediction as DeepSeek-V3 has them.
inline TensorNames latent_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.query_down = "self_attn.q_a_proj";
    names.query_norm = "self_attn.q_a_layernorm";
    names.query_up = "self_attn.q_b_proj";
    names.kv_down = "self_attn.kv_a_proj_with_mqa";
    names.kv_norm = "self_attn.kv_a_layernorm";
    names.kv_up = "self_attn.kv_b_proj";
    names.mtp_marker = "eh_proj.weight";
    return names;
}

inline TensorNames glm4_moe_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.mtp_marker = "eh_proj.weight";
    return names;
}

inline TensorNames glm4_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.attention_out_norm = "post_self_attn_layernorm";
    names.mlp_out_norm = "post_mlp_layernorm";
    names.up = {"mlp.gate_up_proj"};
    return names;
}

inline TensorNames gpt_oss_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.router = "mlp.router";
    return names;
}

/// Mixtures of experts with a gate on the shared one.
inline TensorNames qwen_moe_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.shared_up = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
    names.shared_down = "mlp.shared_expert.down_proj";
    names.shared_gate = "mlp.shared_expert_gate";
    return names;
}

/// Folders with images, of a text model with the names `of`.
inline TensorNames qwen3_5_tensor_names(const TensorNames& of) {
    TensorNames names = of;
    names.embedding = "model.language_model.embed_tokens";
    names.layers = "model.language_model.layers.";
    names.final_norm = "model.language_model.norm";
    return names;
}

inline TensorNames mixtral_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.router = "block_sparse_moe.gate";
    names.score_correction = "block_sparse_moe.e_score_correction_bias";
    names.experts = "block_sparse_moe.experts.";
    names.expert_up = {"w1", "w3"};
    names.expert_down = "w2";
    return names;
}

/// NormPlace::output.
inline TensorNames olmo_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.attention_norm = names.mlp_norm = "";
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
}

inline TensorNames phi3_tensor_names() {
    TensorNames names = llama_tensor_names();
    names.query = "self_attn.qkv_proj";
    names.key = names.value = "";
    names.up = {"mlp.gate_up_proj"};
    return names;
}

inline TensorNames gemma3_tensor_names(const std::string& prefix = "") {
    TensorNames names = llama_tensor_names(prefix);
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
}

inline TensorNames gemma4_tensor_names(const std::string& layers_of = "model.") {
    TensorNames names = gemma3_tensor_names();
    names.embedding = layers_of + "embed_tokens";
    names.final_norm = layers_of + "norm";
    names.layers = layers_of + "layers.";
    names.output_scale = "layer_scalar";
    names.layer_embedding = layers_of + "embed_tokens_per_layer";
    names.layer_projection = layers_of + "per_layer_model_projection";
    names.layer_projection_norm = layers_of + "per_layer_projection_norm";
    names.embedding_gate = "per_layer_input_gate";
    names.embedding_output = "per_layer_projection";
    names.embedding_out_norm = "post_per_layer_input_norm";
    names.router = "router.proj";
    names.router_norm = "router.scale";
    names.expert_scales = "router.per_expert_scale";
    names.experts = "experts.";
    names.expert_norm = "pre_feedforward_layernorm_2";
    names.expert_out_norm = "post_feedforward_layernorm_2";
    names.shared_up = names.up;  // the MLP beside the experts
    names.shared_down = names.down;
    names.shared_out_norm = "post_feedforward_layernorm_1";
    return names;
}

inline TensorNames opt_tensor_names() {
    return {.embedding = "model.decoder.embed_tokens",
            .positions = "model.decoder.embed_positions",
            .project_in = "model.decoder.project_in",
            .project_out = "model.decoder.project_out",
            .final_norm = "model.decoder.final_layer_norm",
            .head = "lm_head",
            .layers = "model.decoder.layers.",
            .attention_norm = "self_attn_layer_norm",
            .query = "self_attn.q_proj",
            .key = "self_attn.k_proj",
            .value = "self_attn.v_proj",
            .output = "self_attn.out_proj",
            .query_norm = "",
            .key_norm = "",
            .query_down = "",
            .query_up = "",
            .kv_down = "",
            .kv_norm = "",
            .kv_up = "",
            .attention_out_norm = "",
            .mlp_out_norm = "",
            .mlp_norm = "final_layer_norm",
            .up = {"fc1"},
            .down = "fc2",
            .output_scale = "",
            .layer_embedding = "",
            .layer_projection = "",
            .layer_projection_norm = "",
            .embedding_gate = "",
            .embedding_output = "",
            .embedding_out_norm = "",
            .router = "",
            .experts = "",
            .score_correction = "",
            .router_norm = "",
            .expert_scales = "",
            .expert_norm = "",
            .expert_out_norm = "",
            .shared_out_norm = "",
            .expert_up = {},
            .expert_down = "",
            .stacked_up = "",
            .shared_up = {},
            .shared_down = "",
            .shared_gate = "",
            .sinks = "",
            .linear = "",
            .mtp_marker = ""};
}

inline const TensorNames& tensor_names(const ModelConfig& config) {
    static const TensorNames llama = llama_tensor_names(), phi3 = phi3_tensor_names(), opt = opt_tensor_names();
    static const TensorNames mistral3 = llama_tensor_names("language_model.");
    static const TensorNames mixtral = mixtral_tensor_names(), gpt_oss = gpt_oss_tensor_names();
    static const TensorNames glm4 = glm4_tensor_names(), glm4_moe = glm4_moe_tensor_names();
    static const TensorNames latent = latent_tensor_names(), olmo = olmo_tensor_names();
    static const TensorNames gemma3_text = gemma3_tensor_names(), gemma3 = gemma3_tensor_names("language_model.");
    static const TensorNames gemma4_text = gemma4_tensor_names(), gemma4 = gemma4_tensor_names("model.language_model.");
    static const TensorNames qwen3_5 = qwen3_5_tensor_names(llama), qwen_moe = qwen_moe_tensor_names();
    static const TensorNames qwen3_5_moe = qwen3_5_tensor_names(qwen_moe);
    if (config.has_latent_attention()) return latent;
    if (config.model_type == "qwen3_5") return qwen3_5;
    if (config.model_type == "qwen3_5_moe") return qwen3_5_moe;
    for (const char* type : {"qwen2_moe", "qwen3_next", "qwen3_5_moe_text"}) {
        if (config.model_type == type) return qwen_moe;
    }
    if (config.model_type == "opt") return opt;
    if (config.model_type == "phi3") return phi3;
    if (config.model_type == "mistral3") return mistral3;
    if (config.model_type == "mixtral" || config.model_type == "minimax_m2") return mixtral;
    if (config.model_type == "olmo2" || config.model_type == "olmo3") return olmo;
    if (config.model_type == "gpt_oss") return gpt_oss;
    if (config.model_type == "glm4") return glm4;
    if (config.model_type == "glm4_moe") return glm4_moe;
    if (config.model_type == "gemma3_text") return gemma3_text;
    if (config.model_type == "gemma4_text") return gemma4_text;
    if (config.model_type == "gemma4") return gemma4;
    return config.model_type == "gemma3" ? gemma3 : llama;
}

}  // namespace longhaul::engine
