#include "engine/model/tensor_names.hpp"

#include <map>
#include <utility>

namespace longhaul::engine {
namespace {

/// Of a text model whose own names follow `prefix`: "model." alone, or in a folder with images.
TensorNames decoder_below(const std::string& prefix, TensorNames names) {
    names.embedding = prefix + "embed_tokens";
    names.layers = prefix + "layers.";
    names.final_norm = prefix + "norm";
    return names;
}

/// Folders with images whose whole text model, its head too, is below "language_model.".
TensorNames with_head_below(TensorNames names) {
    names = decoder_below("language_model.model.", std::move(names));
    names.head = "language_model.lm_head";
    return names;
}

/// Layers for multi-token prediction as DeepSeek-V3 has them.
TensorNames with_numbered_mtp(TensorNames names) {
    names.mtp = {
        .fusion = "eh_proj", .embedding_norm = "enorm", .state_norm = "hnorm", .output_norm = "shared_head.norm"};
    return names;
}

/// As Qwen3-Next has them, also in folders with images.
TensorNames with_mtp(TensorNames names) {
    names.mtp = {.fusion = "mtp.fc",
                 .embedding_norm = "mtp.pre_fc_norm_embedding",
                 .state_norm = "mtp.pre_fc_norm_hidden",
                 .output_norm = "mtp.norm",
                 .layers = "mtp.layers."};
    return names;
}

TensorNames latent() {
    TensorNames names;
    names.query_down = "self_attn.q_a_proj";
    names.query_norm = "self_attn.q_a_layernorm";
    names.query_up = "self_attn.q_b_proj";
    names.kv_down = "self_attn.kv_a_proj_with_mqa";
    names.kv_norm = "self_attn.kv_a_layernorm";
    names.kv_up = "self_attn.kv_b_proj";
    return names;
}

TensorNames fused_gate_up() {
    TensorNames names;
    names.up = {"mlp.gate_up_proj"};
    return names;
}

TensorNames glm4() {
    TensorNames names = fused_gate_up();
    names.attention_out_norm = "post_self_attn_layernorm";
    names.mlp_out_norm = "post_mlp_layernorm";
    return names;
}

/// Granite's experts.
TensorNames granite_moe() {
    TensorNames names;
    names.router = "block_sparse_moe.router.layer";
    names.experts = "block_sparse_moe.";
    names.stacked_up = "input_linear.weight";
    names.expert_down = "output_linear.weight";
    return names;
}

/// All layers of Granite 4 have a shared MLP.
TensorNames granite4() {
    TensorNames names = granite_moe();
    names.up = names.shared_up = {"shared_mlp.input_linear"};
    names.down = names.shared_down = "shared_mlp.output_linear";
    names.linear = "mamba.";
    return names;
}

TensorNames afmoe() {
    TensorNames names;
    names.output_gate = "self_attn.gate_proj";
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_mlp_layernorm";
    names.mlp_out_norm = "post_mlp_layernorm";
    names.router = "mlp.router.gate";
    names.score_correction = "mlp.expert_bias";
    return names;
}

/// Llama's, for MLPs of two matrices.
TensorNames without_gate() {
    TensorNames names;
    names.up = {"mlp.up_proj"};
    return names;
}

TensorNames cohere() {
    TensorNames names;
    names.mlp_norm = "";
    return names;
}

TensorNames exaone() {
    TensorNames names;
    names.embedding = "transformer.wte";
    names.layers = "transformer.h.";
    names.final_norm = "transformer.ln_f";
    names.attention_norm = "ln_1";
    names.mlp_norm = "ln_2";
    names.query = "attn.attention.q_proj";
    names.key = "attn.attention.k_proj";
    names.value = "attn.attention.v_proj";
    names.output = "attn.attention.out_proj";
    names.up = {"mlp.c_fc_0", "mlp.c_fc_1"};
    names.down = "mlp.c_proj";
    return names;
}

TensorNames ernie_moe() {
    TensorNames names;
    names.score_correction = "mlp.moe_statics.e_score_correction_bias";
    names.has_one_group_of_corrections = true;
    return names;
}

TensorNames exaone_moe() {
    TensorNames names;
    names.score_correction = "mlp.e_score_correction_bias";
    return names;
}

TensorNames hy3() {
    TensorNames names;
    names.router = "mlp.router.gate";
    names.score_correction = "mlp.expert_bias";
    names.shared_up = {"mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"};
    names.shared_down = "mlp.shared_mlp.down_proj";
    names.any_shared = "mlp.shared_mlp";
    names.unread_layer = "eh_proj.weight";
    return names;
}

TensorNames gpt_oss() {
    TensorNames names;
    names.router = "mlp.router";
    return names;
}

/// Mixtures of experts with a gate on the shared one.
TensorNames qwen_moe() {
    TensorNames names;
    names.shared_up = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
    names.shared_down = "mlp.shared_expert.down_proj";
    names.shared_gate = "mlp.shared_expert_gate";
    return names;
}

TensorNames mixtral() {
    TensorNames names;
    names.router = "block_sparse_moe.gate";
    names.score_correction = "block_sparse_moe.e_score_correction_bias";
    names.experts = "block_sparse_moe.experts.";
    names.expert_up = {"w1", "w3"};
    names.expert_down = "w2";
    return names;
}

/// NormPlace::output.
TensorNames olmo() {
    TensorNames names;
    names.attention_norm = names.mlp_norm = "";
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
}

TensorNames phi3() {
    TensorNames names = fused_gate_up();
    names.query = "self_attn.qkv_proj";
    names.key = names.value = "";
    return names;
}

/// Also Gemma 2's.
TensorNames gemma3() {
    TensorNames names;
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
}

/// `prefix`: see decoder_below.
TensorNames gemma4(const std::string& prefix) {
    TensorNames names = decoder_below(prefix, gemma3());
    names.output_scale = "layer_scalar";
    names.layer_embedding = prefix + "embed_tokens_per_layer";
    names.layer_projection = prefix + "per_layer_model_projection";
    names.layer_projection_norm = prefix + "per_layer_projection_norm";
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

TensorNames gpt2() {
    TensorNames names;
    names.embedding = "transformer.wte";
    names.positions = "transformer.wpe";
    names.layers = "transformer.h.";
    names.final_norm = "transformer.ln_f";
    names.attention_norm = "ln_1";
    names.query = "attn.c_attn";
    names.key = names.value = "";
    names.output = "attn.c_proj";
    names.mlp_norm = "ln_2";
    names.up = {"mlp.c_fc"};
    names.down = "mlp.c_proj";
    return names;
}

TensorNames gpt_neox() {
    TensorNames names;
    names.embedding = "gpt_neox.embed_in";
    names.layers = "gpt_neox.layers.";
    names.final_norm = "gpt_neox.final_layer_norm";
    names.head = "embed_out";
    names.query = "attention.query_key_value";
    names.key = names.value = "";
    names.output = "attention.dense";
    names.up = {"mlp.dense_h_to_4h"};
    names.down = "mlp.dense_4h_to_h";
    return names;
}

TensorNames phi() {
    TensorNames names;
    names.final_norm = "model.final_layernorm";
    names.output = "self_attn.dense";
    names.query_norm = "self_attn.q_layernorm";
    names.key_norm = "self_attn.k_layernorm";
    names.mlp_norm = "";
    names.up = {"mlp.fc1"};
    names.down = "mlp.fc2";
    return names;
}

TensorNames stablelm() {
    TensorNames names;
    names.query_norm = "self_attn.q_layernorm";
    names.key_norm = "self_attn.k_layernorm";
    return names;
}

TensorNames starcoder2() {
    TensorNames names;
    names.up = {"mlp.c_fc"};
    names.down = "mlp.c_proj";
    return names;
}

TensorNames opt() {
    TensorNames names;
    names.embedding = "model.decoder.embed_tokens";
    names.positions = "model.decoder.embed_positions";
    names.project_in = "model.decoder.project_in";
    names.project_out = "model.decoder.project_out";
    names.final_norm = "model.decoder.final_layer_norm";
    names.layers = "model.decoder.layers.";
    names.attention_norm = "self_attn_layer_norm";
    names.output = "self_attn.out_proj";
    names.mlp_norm = "final_layer_norm";
    names.up = {"fc1"};
    names.down = "fc2";
    return names;
}

/// Attention, Mamba-2 and MLPs are all called mixer.
TensorNames nemotron_h() {
    TensorNames names;
    names.embedding = "backbone.embeddings";
    names.layers = "backbone.layers.";
    names.final_norm = "backbone.norm_f";
    names.attention_norm = names.mlp_norm = "norm";
    names.query = "mixer.q_proj";
    names.key = "mixer.k_proj";
    names.value = "mixer.v_proj";
    names.output = "mixer.o_proj";
    names.linear = "mixer.";
    names.up = {"mixer.up_proj"};
    names.down = "mixer.down_proj";
    names.router = "mixer.gate";
    names.score_correction = "mixer.gate.e_score_correction_bias";
    names.experts = "mixer.experts.";
    names.expert_up = {"up_proj"};
    names.shared_up = {"mixer.shared_experts.up_proj"};
    names.shared_down = "mixer.shared_experts.down_proj";
    names.any_shared = "mixer.shared_expert";
    names.expert_latent_down = "mixer.fc1_latent_proj";
    names.expert_latent_up = "mixer.fc2_latent_proj";
    return names;
}

}  // namespace

std::string TensorNames::attention_prefix(const LayerConfig& layer, std::int64_t number) const {
    return layers + std::to_string(layer.block < 0 ? number : layer.block) + ".";
}

std::string TensorNames::mlp_prefix(const LayerConfig& layer, std::int64_t number) const {
    return layers + std::to_string(layer.block < 0 ? number : layer.block + 1) + ".";
}

const TensorNames& tensor_names(const ModelConfig& config) {
    static const std::string with_images = "model.language_model.";
    static const TensorNames llama, of_latent = with_numbered_mtp(latent());
    static const std::map<std::string, TensorNames> by_type = {
        {"afmoe", afmoe()},
        {"arcee", without_gate()},
        {"cohere", cohere()},
        {"cohere2", cohere()},
        {"ernie4_5_moe", ernie_moe()},
        {"exaone", exaone()},
        {"exaone4", olmo()},
        {"exaone_moe", exaone_moe()},
        {"gemma2", gemma3()},
        {"gemma3", with_head_below(gemma3())},
        {"gemma3_text", gemma3()},
        {"gemma4", gemma4(with_images)},
        {"gemma4_text", gemma4("model.")},
        {"glm", fused_gate_up()},
        {"glm4", glm4()},
        {"glm4_moe", with_numbered_mtp({})},
        {"gpt2", gpt2()},
        {"gpt_neox", gpt_neox()},
        {"gpt_oss", gpt_oss()},
        {"granitemoe", granite_moe()},
        {"granitemoehybrid", granite4()},
        {"hy_v3", hy3()},
        {"kimi_k25", with_head_below(latent())},
        {"minimax_m2", mixtral()},
        {"mistral3", with_head_below({})},
        {"mixtral", mixtral()},
        {"nemotron", without_gate()},
        {"nemotron_h", nemotron_h()},
        {"olmo2", olmo()},
        {"olmo3", olmo()},
        {"opt", opt()},
        {"phi", phi()},
        {"phi3", phi3()},
        {"qwen2_moe", qwen_moe()},
        {"qwen3_vl", decoder_below(with_images, {})},
        {"qwen3_vl_moe", decoder_below(with_images, {})},
        {"qwen3_5", with_mtp(decoder_below(with_images, {}))},
        {"qwen3_5_moe", with_mtp(decoder_below(with_images, qwen_moe()))},
        {"qwen3_5_moe_text", with_mtp(qwen_moe())},
        {"qwen3_5_text", with_mtp({})},
        {"qwen3_next", with_mtp(qwen_moe())},
        {"stablelm", stablelm()},
        {"starcoder2", starcoder2()},
    };
    const auto found = by_type.find(config.model_type);
    if (found != by_type.end()) return found->second;
    return config.has_latent_attention() ? of_latent : llama;
}

MtpNames mtp_names(const ModelConfig& config) {
    const TensorNames& names = tensor_names(config);
    if (!names.has_numbered_mtp()) return names.mtp;
    MtpNames whole{.layers = names.layers, .number = config.num_layers};
    whole.fusion = whole.layer() + names.mtp.fusion;
    whole.embedding_norm = whole.layer() + names.mtp.embedding_norm;
    whole.state_norm = whole.layer() + names.mtp.state_norm;
    whole.output_norm = whole.layer() + names.mtp.output_norm;
    return whole;
}

}  // namespace longhaul::engine
