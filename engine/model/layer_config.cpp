// The layers of families without experts: what config.json says of them, and what their transformers class fixes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/model/config_section.hpp"
#include "engine/model/layer_parts.hpp"

namespace longhaul::engine::detail {

namespace {

/// Qwen: the window applies to layers from max_window_layers on, if use_sliding_window says so. (Published folders
/// name a window without using it.)
void read_qwen_windows(const Section& top, std::int64_t default_first, ModelConfig& config) {
    const bool uses = top.flag("use_sliding_window");
    const std::int64_t window = uses ? window_of(top, 4096) : 0;
    const std::int64_t first =
        get_int_or(top.json, "max_window_layers", default_first, 0, max_layers, top.file, top.within);
    const auto windowed =
        windowed_layers(top, config.num_layers, [&](std::int64_t layer) { return window > 0 && layer >= first; });
    set_windows(top, window, windowed, config);
}

}  // namespace

void read_llama_layers(const Section& top, ModelConfig& config) {
    read_llama_attention(top, config, 1e4);
    const auto windowed = windowed_layers(top, config.num_layers, [](std::int64_t) { return false; });
    if (std::find(windowed.begin(), windowed.end(), true) != windowed.end())
        throw InputError(top.file, top.field("layer_types"), R"("full_attention" throughout)",
                         describe(Json(sliding_attention)));
}

void read_qwen2_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.layers.front().qkv_bias = true;
    read_qwen_windows(top, 28, config);
}

/// The text models of Qwen2-VL and Qwen2.5-VL.
void read_qwen2_vl_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().qkv_bias = true;
    read_qwen_windows(top, 80, config);
}

void read_qwen3_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config);
    read_qwen_windows(top, 28, config);
}

/// The text model of Qwen3-VL.
void read_qwen3_vl_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config, 5e5);
}

namespace {

void check_width(const Section& top, std::string_view key, const LinearAttentionConfig& linear) {
    if (linear.num_value_heads * linear.value_dim > max_intermediate_size)
        top.refuse(key, "heads of " + std::to_string(linear.value_dim) + " dimensions with at most " +
                            std::to_string(max_intermediate_size) + " together");
}

/// Heads of linear attention.
void read_linear_attention(const Section& top, LinearAttentionConfig& linear) {
    linear.num_key_heads = top.size_or("linear_num_key_heads", 16, max_heads);
    linear.num_value_heads = top.size_or("linear_num_value_heads", 32, max_heads);
    linear.key_dim = linear_dim(top, "linear_key_head_dim", 128);
    linear.value_dim = linear_dim(top, "linear_value_head_dim", 128);
    linear.taps = get_int_or(top.json, "linear_conv_kernel_dim", 4, 2, 16, top.file, top.within);
    check_width(top, "linear_num_value_heads", linear);
    if (linear.num_value_heads % linear.num_key_heads != 0)
        top.refuse("linear_num_value_heads",
                   "a multiple of linear_num_key_heads = " + std::to_string(linear.num_key_heads));
}

/// Which layers have linear attention: those that `layer_types` names, else all but every so many.
std::vector<bool> linear_layers(const Section& top, std::int64_t num_layers) {
    std::vector<bool> linear;
    const Json* types = top.find("layer_types");
    const std::int64_t interval = top.size_or("full_attention_interval", 4, max_layers);
    if (types != nullptr && (!types->is_array() || std::ssize(*types) != num_layers))
        top.refuse("layer_types", "an array of num_hidden_layers = " + std::to_string(num_layers));
    for (std::int64_t at = 0; at < num_layers; ++at) {
        const Json type = types == nullptr ? Json((at + 1) % interval != 0 ? linear_attention : full_attention)
                                           : (*types)[static_cast<std::size_t>(at)];
        if (type != full_attention && type != linear_attention)
            throw InputError(top.file, top.field("layer_types"),
                             describe(Json(full_attention)) + " or " + describe(Json(linear_attention)),
                             describe(type));
        linear.push_back(type == linear_attention);
    }
    if (std::find(linear.begin(), linear.end(), false) == linear.end())
        throw InputError(top.file, top.field("layer_types"), "a layer of full_attention", "none");
    return linear;
}

}  // namespace

/// Qwen3.5: linear attention in three of four layers; the others gate their output.
void read_qwen3_5_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.files.norm_adds_one = true;
    LayerConfig& layer = config.layers.front();
    layer.head_norm = true;
    layer.output_gate = true;
    if (top.flag("attention_bias")) top.refuse("attention_bias", "false");
    if (!top.flag_or("attn_output_gate", true)) top.refuse("attn_output_gate", "true");
    const std::vector<bool> linear = linear_layers(top, config.num_layers);
    if (std::find(linear.begin(), linear.end(), true) == linear.end()) return;
    read_linear_attention(top, config.linear);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < linear.size(); ++at) {
        if (!linear[at]) continue;
        config.layers[at].linear = true;
        config.layers[at].head_norm = config.layers[at].output_gate = false;
    }
}

void read_mistral_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    read_windows(top, window_of(top, 4096), config);
}

/// Ministral 3: yarn, and queries that grow with their position.
void read_ministral3_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    const Section rope = rope_section(top);
    RopeConfig& read = config.layers.front().rope;
    constexpr std::string_view growth = "llama_4_scaling_beta", period = "original_max_position_embeddings";
    if (rope.find(growth) == nullptr) rope.refuse(growth, "a number, as in the published folders");
    read.query_growth = get_double_or(rope.json, growth, 0.0, rope.file, rope.within);
    if (!(read.query_growth >= 0.0 && read.query_growth <= 100.0)) rope.refuse(growth, "a number from 0 to 100");
    if (read.original_max_positions == 0) read.original_max_positions = rope.size(period, max_context);
    read_windows(top, window_of(top, 0), config);
}

/// Folders with images: the text model of Mistral Small 3.1 and 3.2 is Mistral.
void read_mistral3_layers(const Section& top, ModelConfig& config) {
    const std::string type = top.text_or("model_type", "mistral");
    if (type == "ministral3") return read_ministral3_layers(top, config);
    if (type != "mistral") top.refuse("model_type", R"("mistral" or "ministral3")");
    read_mistral_layers(top, config);
}

/// SmolLM3: layers without rotation (NoPE), every fourth if config.json does not say which.
void read_smollm3_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view key = "no_rope_layers";  // 0: without
    read_llama_attention(top, config, 2e6);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    const std::int64_t interval = top.size_or("no_rope_layer_interval", 4, max_layers);
    const Json* rotated = top.find(key);
    const bool is_list = rotated != nullptr && rotated->is_array() && std::ssize(*rotated) >= config.num_layers;
    if (rotated != nullptr && !is_list)
        top.refuse(key, "an array of at least num_hidden_layers = " + std::to_string(config.num_layers));
    std::vector<bool> rotates;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const Json one =
            rotated == nullptr ? Json((at + 1) % interval == 0 ? 0 : 1) : (*rotated)[static_cast<std::size_t>(at)];
        if (one != 0 && one != 1) throw InputError(top.file, top.field(key), "0 or 1 for each layer", describe(one));
        rotates.push_back(one == 1);
    }
    const std::int64_t window = top.flag("use_sliding_window") ? window_of(top, 0) : 0;
    set_windows(top, window,
                windowed_layers(top, config.num_layers,
                                [&](std::int64_t at) { return window > 0 && !rotates[static_cast<std::size_t>(at)]; }),
                config);
    set_rotated(rotates, config);
}

/// Seed-OSS: Llama with biases of its own choice.
void read_seed_oss_layers(const Section& top, ModelConfig& config) {
    read_llama_attention(top, config, 1e4);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = top.flag_or("attention_bias", true);
    layer.output_bias = top.flag("attention_out_bias");
}

void read_granite_factors(const Section& top, ModelConfig& config) {
    constexpr double highest = 1e6;
    LayerConfig& layer = config.layers.front();
    config.embedding_scale = top.positive_or("embedding_multiplier", 1.0, highest);
    config.logits_scale = 1.0 / top.positive_or("logits_scaling", 1.0, highest);
    layer.block_scale = top.positive_or("residual_multiplier", 1.0, highest);
    // Attention divides by the root of head_dim, and should multiply by this.
    const double scores = top.positive_or("attention_multiplier", 1.0, highest);
    layer.rope.score_scale = scores * std::sqrt(static_cast<double>(config.head_dim));
}

/// Granite: Llama with factors on embeddings, blocks, scores and logits.
void read_granite_layers(const Section& top, ModelConfig& config) {
    read_llama_layers(top, config);
    read_granite_factors(top, config);
}

/// AFM: Llama with the square of relu.
void read_arcee_layers(const Section& top, ModelConfig& config) {
    read_llama_layers(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().activation = Activation::relu_squared;
    config.layers.front().gated = false;
}

/// GLM-4-9b.
void read_glm_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1.5625e-7, 1.0);
    config.files.fused_gate_up = true;
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = top.flag_or("attention_bias", true);
    layer.rope.interleaved = true;
}

/// GLM-4-0414: norms before and after each block.
void read_glm4_layers(const Section& top, ModelConfig& config) {
    read_glm_layers(top, config);
    config.layers.front().norm_place = NormPlace::both;
}

/// ERNIE 4.5.
void read_ernie4_5_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 5e5);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = layer.mlp_bias = top.flag("use_bias");
    layer.rope.interleaved = true;
}

/// EXAONE 3.0, 3.5 and Deep: Llama under other names.
void read_exaone_layers(const Section& top, ModelConfig& config) {
    read_llama_attention(top, config, 5e5);
    const auto name = [&](std::string_view own, std::string_view usual) {
        return top.find(own) != nullptr ? own : usual;
    };
    config.norm_eps = top.positive_or(name("layer_norm_epsilon", "rms_norm_eps"), 1e-5, 1.0);
    const std::string_view activation = name("activation_function", "hidden_act");
    if (top.text_or(activation, "silu") != "silu") top.refuse(activation, R"("silu")");
}

/// CWM: Llama with windows in three of four layers.
void read_cwm_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().mlp_bias = top.flag("mlp_bias");
    if (rope_section(top).json.empty()) top.refuse("rope_parameters", "an object, as in the published folder");
    const auto windowed = windowed_layers(top, config.num_layers, [](std::int64_t at) { return at % 4 != 0; });
    set_windows(top, window_of(top, 8192), windowed, config);
}

/// The attention of EXAONE 4: beside layers with a window, those without are not rotated (NoPE).
void read_exaone_attention(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().head_norm = true;
    const std::int64_t window = window_of(top, 4096);
    if (window == 0) return read_windows(top, 0, config);
    read_rotated_windows(top, window, "sliding_window_pattern", config);
}

/// EXAONE 4: norms on the outputs of blocks.
void read_exaone4_layers(const Section& top, ModelConfig& config) {
    read_exaone_attention(top, config);
    for (LayerConfig& layer : config.layers) layer.norm_place = NormPlace::output;
}

namespace {

/// Command: an MLP beside attention, LayerNorms without biases.
void read_command_layer(const Section& top, double default_theta, ModelConfig& config) {
    read_common(top, config, default_theta);
    config.norm_eps = top.positive_or("layer_norm_eps", 1e-5, 1.0);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.logits_scale = top.positive_or("logit_scale", 0.0625, 1e6);
    LayerConfig& layer = config.layers.front();
    layer.norm = NormKind::layer_without_bias;
    layer.parallel = true;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.rope.interleaved = true;
    for (const char* key : {"use_parallel_block", "use_gated_activation"}) {
        if (!top.flag_or(key, true)) top.refuse(key, "true");
    }
}

}  // namespace

/// Command R and Aya Expanse. Beside the trained length, some folders name the longer one that they were tuned for.
void read_cohere_layers(const Section& top, ModelConfig& config) {
    read_command_layer(top, 5e5, config);
    config.max_positions =
        std::max(config.max_positions, top.size_or("model_max_length", config.max_positions, max_context));
    if (top.flag("use_qk_norm")) top.refuse("use_qk_norm", "false: LayerNorms on heads are not in this version");
}

/// Command R7B and Command A: beside layers with a window, those without are not rotated (NoPE).
void read_cohere2_layers(const Section& top, ModelConfig& config) {
    read_command_layer(top, 1e4, config);
    const std::int64_t window = window_of(top, 4096);
    if (window == 0) top.refuse("sliding_window", "a number, as in the published folders");
    read_rotated_windows(top, window, "sliding_window_pattern", config);
}

/// OLMo 2: norms on all heads of q and of k, and on the outputs of blocks.
void read_olmo2_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::output;
    layer.whole_norm = true;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
}

/// OLMo 3: windows in three of four layers, whose RoPE is not scaled.
void read_olmo3_layers(const Section& top, ModelConfig& config) {
    constexpr double theta = 5e5;
    static const Json plain = Json::object();
    read_olmo2_layers(top, config);
    const Section shared = rope_section(top);
    config.layers.front().rope = read_rope(of_kind(shared, full_attention), top, config, theta);
    const bool by_kind = shared.find(sliding_attention) != nullptr;
    const RopeConfig local = read_rope(
        by_kind ? of_kind(shared, sliding_attention) : Section{plain, top.file, top.within}, top, config, theta);
    const auto windowed = windowed_layers(top, config.num_layers, [](std::int64_t at) { return (at + 1) % 4 != 0; });
    set_windows(top, window_of(top, 4096), windowed, config);
    set_ropes(windowed, local, config);
}

void read_phi3_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.files.qkv = QkvTensors::fused;
    config.files.fused_gate_up = true;
    read_windows(top, window_of(top, 0), config);
}

}  // namespace longhaul::engine::detail
