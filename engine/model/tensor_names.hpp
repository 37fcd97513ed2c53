// Tensor names of each architecture in Hugging Face checkpoints. Used by the weight plan and by checks of model
// folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.hpp"

namespace longhaul::engine {

/// A decoder layer beside a model's own, trained to predict the token after the next (multi-token prediction, MTP;
/// arXiv 2412.19437 section 2.2). Names without ".weight".
struct MtpNames {
    std::string fusion = "";          ///< on [embedding, state], both normed; "": the family has no such layer
    std::string embedding_norm = "";  ///< of the token
    std::string state_norm = "";      ///< of the model's hidden state, or of the layer's own last output
    std::string output_norm = "";     ///< before the model's head
    std::string layers = "";          ///< prefix of the decoder layer's tensors, before its number
    std::int64_t number = 0;

    [[nodiscard]] std::string layer() const { return layers + std::to_string(number) + "."; }
};

/// Names without ".weight" or ".bias". Names below `layers` are prefixed with it and the layer number. The defaults are
/// those of Llama, and those that most architectures with the same part use; "": there is no such tensor.
struct TensorNames {
    std::string embedding = "model.embed_tokens", final_norm = "model.norm", head = "lm_head";
    std::string positions = "", project_in = "", project_out = "";
    std::string layers = "model.layers.";

    std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
    std::string attention_out_norm = "", mlp_out_norm = "";  ///< LayerConfig::norms_outputs
    /// Fused: `query` holds q, k and v; key and value are empty.
    std::string query = "self_attn.q_proj", key = "self_attn.k_proj", value = "self_attn.v_proj";
    std::string output = "self_attn.o_proj";
    std::string output_gate = "";  ///< LayerConfig::output_gate; "": a head's rows follow those of its queries
    std::string query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm";  ///< head_norm and whole_norm
    std::string sinks = "self_attn.sinks";
    std::string query_down = "", query_up = "", kv_down = "", kv_norm = "", kv_up = "";  ///< LatentConfig
    std::string linear = "linear_attn.";  ///< prefix of the tensors of linear attention (LayerConfig::linear)

    /// Prefixes of the tensors of a layer's attention and of its MLP, each with its norms (LayerConfig::block).
    [[nodiscard]] std::string attention_prefix(const LayerConfig& layer, std::int64_t number) const;
    [[nodiscard]] std::string mlp_prefix(const LayerConfig& layer, std::int64_t number) const;

    /// Matrices of the MLP's first matmul, stacked: gate and up, both in one, or up alone.
    std::vector<std::string> up = {"mlp.gate_proj", "mlp.up_proj"};
    std::string down = "mlp.down_proj";
    std::string output_scale = "";  ///< LayerConfig::output_scale; the whole name

    std::string router = "mlp.gate";
    std::string score_correction = "mlp.gate.e_score_correction_bias";  ///< the whole name
    bool has_one_group_of_corrections = false;                          ///< its shape is [1, experts]
    std::string experts = "mlp.experts.";                               ///< prefix of each one's number
    std::vector<std::string> expert_up = {"gate_proj", "up_proj"};
    std::string expert_down = "down_proj";
    std::string stacked_up = "gate_up_proj";  ///< ExpertConfig::stack, instead of expert_up
    /// ModelConfig::shared_intermediate_size.
    std::vector<std::string> shared_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
    std::string shared_down = "mlp.shared_experts.down_proj";
    std::string shared_gate = "";                                ///< ExpertConfig::shared_gate
    std::string expert_latent_down = "", expert_latent_up = "";  ///< ExpertConfig::latent_size
    std::string any_shared = "mlp.shared_expert";  ///< how names of a shared expert begin, also if there is none
    /// ExpertConfig::own_norms; the first two are whole names.
    std::string router_norm = "", expert_scales = "", expert_norm = "", expert_out_norm = "", shared_out_norm = "";

    /// ModelConfig::layer_embedding_size; the second line in each layer.
    std::string layer_embedding = "", layer_projection = "", layer_projection_norm = "";
    std::string embedding_gate = "", embedding_output = "", embedding_out_norm = "";

    /// The tensor by which one tells a layer behind the last that is no layer of the model, and is not read; "": none.
    std::string unread_layer = "";
    MtpNames
        mtp{};  ///< of the layer for multi-token prediction; `layers` = "": all are in one more layer behind the last
    [[nodiscard]] bool has_numbered_mtp() const { return !mtp.fusion.empty() && mtp.layers.empty(); }
};

/// Names of a model's tensors, which depend on its model_type.
const TensorNames& tensor_names(const ModelConfig& config);

/// Whole names of the tensors of its layer for multi-token prediction, the first if it has several.
MtpNames mtp_names(const ModelConfig& config);

}  // namespace longhaul::engine
