// The layers of families whose LayerNorms have biases, from GPT-2 to Minitron: what config.json says of them, and what
// their transformers class fixes.
#include <algorithm>
#include <iterator>

#include "engine/model/config_section.hpp"
#include "engine/model/layer_parts.hpp"

namespace longhaul::engine::detail {

namespace {

/// GELU, exact or by tanh, as transformers calls them.
Activation read_gelu(const Section& top, std::string_view fallback, std::string_view key = "hidden_act") {
    constexpr std::string_view exact = "gelu";
    constexpr std::string_view by_tanh[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const std::string name = top.text_or(key, fallback);
    if (name == exact) return Activation::gelu_exact;
    if (std::find(std::begin(by_tanh), std::end(by_tanh), name) == std::end(by_tanh))
        top.refuse(key, R"("gelu", "gelu_new", "gelu_fast" or "gelu_pytorch_tanh")");
    return Activation::gelu;
}

/// What they have in common: LayerNorm with bias, and where config.json has its eps.
LayerConfig& read_layer_norms(const Section& top, std::string_view eps_key, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or(eps_key, 1e-5, 1.0);
    LayerConfig& layer = config.layers.front();
    layer.norm = NormKind::layer;
    return layer;
}

}  // namespace

/// OPT: LayerNorm, MLP without gate, learned positions. The 350M model is post-norm and has narrower embeddings.
void read_opt_layers(const Section& top, ModelConfig& config) {
    config.learned_positions = true;
    config.first_position_row = 2;
    config.norm_eps = 1e-5;
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    const bool bias = top.flag_or("enable_bias", true);
    const bool norm_before = top.flag_or("do_layer_norm_before", true);
    config.layers = {{.norm = NormKind::layer,
                      .norm_place = norm_before ? NormPlace::before : NormPlace::after,
                      .activation = Activation::relu,
                      .gated = false,
                      .qkv_bias = bias,
                      .output_bias = bias,
                      .mlp_bias = bias,
                      .rope = {.scaling = RopeScaling::none}}};
    config.embedding_size = top.size_or("word_embed_proj_dim", config.hidden_size, max_hidden_size);
    if (!top.flag_or("layer_norm_elementwise_affine", true)) top.refuse("layer_norm_elementwise_affine", "true");
    if (top.flag("_remove_final_layer_norm")) top.refuse("_remove_final_layer_norm", "false");
}

void read_gpt2_layers(const Section& top, ModelConfig& config) {
    config.learned_positions = true;
    config.norm_eps = top.positive_or("layer_norm_epsilon", 1e-5, 1.0);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.files.qkv = QkvTensors::fused;
    config.files.by_columns = true;
    config.layers = {{.norm = NormKind::layer,
                      .activation = read_gelu(top, "gelu_new", "activation_function"),
                      .gated = false,
                      .qkv_bias = true,
                      .output_bias = true,
                      .mlp_bias = true,
                      .rope = {.scaling = RopeScaling::none}}};
    if (!top.flag_or("scale_attn_weights", true)) top.refuse("scale_attn_weights", "true");
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
        if (top.flag(key)) top.refuse(key, "false");
    }
}

/// GPT-NeoX and Pythia.
void read_gpt_neox_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view kv_heads = "num_key_value_heads";
    LayerConfig& layer = read_layer_norms(top, "layer_norm_eps", config);
    layer.activation = read_gelu(top, "gelu");
    layer.gated = false;
    layer.qkv_bias = layer.output_bias = top.flag_or("attention_bias", true);
    layer.mlp_bias = true;
    layer.parallel = top.flag_or("use_parallel_residual", true);
    config.files.qkv = QkvTensors::fused_by_head;
    if (config.num_kv_heads != config.num_heads)
        top.refuse(kv_heads, "num_attention_heads = " + std::to_string(config.num_heads));
}

/// Phi-1, Phi-1.5 and Phi-2.
void read_phi_layers(const Section& top, ModelConfig& config) {
    LayerConfig& layer = read_layer_norms(top, "layer_norm_eps", config);
    layer.activation = read_gelu(top, "gelu_new");
    layer.gated = false;
    layer.qkv_bias = layer.output_bias = layer.mlp_bias = true;
    layer.parallel = true;
    config.head_bias = true;
    if (top.flag("qk_layernorm")) top.refuse("qk_layernorm", "false: LayerNorms on heads are not in this version");
}

void read_starcoder2_layers(const Section& top, ModelConfig& config) {
    LayerConfig& layer = read_layer_norms(top, "norm_epsilon", config);
    layer.activation = read_gelu(top, "gelu_pytorch_tanh");
    layer.gated = false;
    layer.qkv_bias = layer.output_bias = layer.mlp_bias = top.flag_or("use_bias", true);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    read_windows(top, window_of(top, 0), config);
}

/// StableLM 3B, Zephyr 3B and StableLM 2 1.6B.
void read_stablelm_layers(const Section& top, ModelConfig& config) {
    LayerConfig& layer = read_layer_norms(top, "layer_norm_eps", config);
    layer.qkv_bias = top.flag("use_qkv_bias");
    for (const char* key : {"qk_layernorm", "use_parallel_residual"}) {
        if (top.flag(key)) top.refuse(key, "false: the layers of StableLM 2 12B are not in this version");
    }
}

/// Nemotron-4 and Minitron.
void read_nemotron_layers(const Section& top, ModelConfig& config) {
    LayerConfig& layer = read_layer_norms(top, "norm_eps", config);
    layer.activation = Activation::relu_squared;
    layer.gated = false;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.mlp_bias = top.flag("mlp_bias");
    config.files.norm_adds_one = true;
}

}  // namespace longhaul::engine::detail
