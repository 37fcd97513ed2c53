// The layers of families with a mixture of experts, and latent attention: what config.json says of them, and what their
// transformers class fixes.
#include <algorithm>
#include <cmath>

#include "engine/model/config_section.hpp"
#include "engine/model/layer_parts.hpp"
#include "kernels/gate.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine::detail {

namespace {

/// Qwen: layers with one MLP beside those with experts: by number, and all but every so many.
std::vector<bool> layers_with_experts(const Section& top, std::int64_t num_layers) {
    const std::int64_t step = top.size_or("decoder_sparse_step", 1, max_layers);
    std::vector<bool> sparse;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) sparse.push_back((layer + 1) % step == 0);
    constexpr std::string_view key = "mlp_only_layers";
    const Json* dense = top.find(key);
    if (dense == nullptr) return sparse;
    const std::string expected = "an array of layers, numbers from 0 to " + std::to_string(num_layers - 1);
    if (!dense->is_array()) top.refuse(key, expected);
    for (const Json& layer : *dense) {
        if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= static_cast<std::uint64_t>(num_layers))
            throw InputError(top.file, top.field(key), expected, describe(layer));
        sparse[layer.get<std::size_t>()] = false;
    }
    return sparse;
}

void set_experts(const Section& top, const ExpertConfig& experts, ModelConfig& config) {
    const std::vector<bool> sparse = layers_with_experts(top, config.num_layers);
    if (std::find(sparse.begin(), sparse.end(), true) == sparse.end())
        throw InputError(top.file, "mlp_only_layers and decoder_sparse_step", "a layer that they leave its experts",
                         "none");
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t layer = 0; layer < sparse.size(); ++layer) {
        if (sparse[layer]) config.layers[layer].experts = experts;
    }
}

/// Experts beside a shared one with a gate, and their widths.
ExpertConfig read_gated_experts(const Section& top, ModelConfig& config, std::int64_t default_count,
                                std::int64_t default_per_token, std::int64_t default_width,
                                std::int64_t default_shared) {
    ExpertConfig experts = read_experts(top, config, "num_experts", default_count, default_per_token);
    experts.shared_gate = true;
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", default_width, max_intermediate_size);
    config.shared_intermediate_size =
        top.size_or("shared_expert_intermediate_size", default_shared, max_intermediate_size);
    return experts;
}

}  // namespace

/// Qwen1.5-MoE and Qwen2-57B-A14B. The window, if it is used, is that of every other layer below max_window_layers.
void read_qwen2_moe_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.layers.front().qkv_bias = top.flag_or("qkv_bias", true);
    ExpertConfig experts = read_gated_experts(top, config, 60, 4, 1408, 5632);
    experts.normalized = top.flag("norm_topk_prob");
    const std::int64_t window = top.flag("use_sliding_window") ? window_of(top, 4096) : 0;
    const std::int64_t end = get_int_or(top.json, "max_window_layers", 28, 0, max_layers, top.file, top.within);
    const auto by_default = [&](std::int64_t at) { return window > 0 && at % 2 == 0 && at < end; };
    set_windows(top, window, windowed_layers(top, config.num_layers, by_default), config);
    set_experts(top, experts, config);
}

/// Qwen3-Next: the layers of Qwen3.5 with experts, and with fused projections of linear attention.
void read_qwen3_next_layers(const Section& top, ModelConfig& config) {
    read_qwen3_5_layers(top, config);
    config.linear.fused = true;
    ExpertConfig experts = read_gated_experts(top, config, 512, 10, 512, 512);
    experts.normalized = top.flag_or("norm_topk_prob", true);
    set_experts(top, experts, config);
}

/// Qwen3.5 with experts in all layers. As published they are stacked; ModelConfig::load looks into the files.
void read_qwen3_5_moe_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view dense = "mlp_only_layers";
    read_qwen3_5_layers(top, config);
    ExpertConfig experts = read_gated_experts(top, config, 256, 8, 512, 512);
    if (!top.flag_or("norm_topk_prob", true)) top.refuse("norm_topk_prob", "true");
    if (top.size_or("decoder_sparse_step", 1, max_layers) != 1) top.refuse("decoder_sparse_step", "1");
    if (const Json* layers = top.find(dense); layers != nullptr && *layers != Json::array())
        top.refuse(dense, "an empty array");
    experts.stack = ExpertStack::rows;
    for (LayerConfig& layer : config.layers) layer.experts = experts;
}

void read_qwen3_moe_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config);
    if (top.flag("use_sliding_window")) config.layers.front().attention_window = window_of(top, 4096);
    const bool modern = top.find("num_local_experts") != nullptr;  // as transformers 5 writes it
    ExpertConfig experts = read_experts(top, config, modern ? "num_local_experts" : "num_experts", 128, 8);
    experts.normalized = top.flag("norm_topk_prob");
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", 768, max_intermediate_size);
    set_experts(top, experts, config);
}

/// Qwen3-VL's text model with experts in stacks, column by column as published; ModelConfig::load looks into the files.
void read_qwen3_vl_moe_layers(const Section& top, ModelConfig& config) {
    read_qwen3_vl_layers(top, config);
    const bool modern = top.find("num_local_experts") != nullptr;  // as transformers 5 writes it
    ExpertConfig experts = read_experts(top, config, modern ? "num_local_experts" : "num_experts", 60, 4);
    experts.stack = ExpertStack::columns;
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", 1408, max_intermediate_size);
    set_experts(top, experts, config);
}

/// OLMoE: norms on all heads of q and of k.
void read_olmoe_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    if (top.find("clip_qkv") != nullptr) top.refuse("clip_qkv", "null: clipped projections are not in this version");
    LayerConfig& layer = config.layers.front();
    layer.whole_norm = true;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.experts = read_experts(top, config, "num_experts", 64, 8);
    layer.experts.normalized = top.flag("norm_topk_prob");
    config.expert_intermediate_size = config.intermediate_size;
}

namespace {

/// Granite's experts, in stacks.
void read_granite_experts(const Section& top, ModelConfig& config) {
    ExpertConfig& experts = config.layers.front().experts;
    experts = read_experts(top, config, "num_local_experts", 8, 2);
    experts.stack = ExpertStack::rows;
    config.expert_intermediate_size = config.intermediate_size;
}

/// The MLPs of Granite 4, which its files call shared, and its experts.
void read_granite4_experts(const Section& top, ModelConfig& config) {
    const Json* count = top.find("num_local_experts");
    const std::int64_t shared = top.size_or("shared_intermediate_size", 1024, max_intermediate_size);
    if (count != nullptr && *count == 0) {
        config.intermediate_size = shared;
        return;
    }
    read_granite_experts(top, config);
    config.shared_intermediate_size = shared;
}

}  // namespace

/// Granite 3 with experts.
void read_granitemoe_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.layers.front().qkv_bias = config.layers.front().output_bias = top.flag("attention_bias");
    read_granite_factors(top, config);
    read_granite_experts(top, config);
}

/// Granite 4: attention or Mamba-2, and an MLP in each layer, with experts beside it if there are any.
void read_granitemoehybrid_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view key = "position_embedding_type";
    read_common(top, config);
    config.files.fused_gate_up = true;
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    const std::string positions = top.text_or(key, "nope");
    if (positions != "rope" && positions != "nope") top.refuse(key, R"("rope", "nope" or null)");
    if (positions == "nope") layer.rope = {.scaling = RopeScaling::none};
    read_granite_factors(top, config);
    read_granite4_experts(top, config);
    read_granite4_layer_types(top, config);
}

void read_mixtral_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().attention_window = window_of(top, 0);
    config.layers.front().experts = read_experts(top, config, "num_local_experts", 8, 2);
    config.expert_intermediate_size = config.intermediate_size;
}

namespace {

/// What a class of transformers fills in if config.json lacks it, and how its keys are called.
struct RoutedDefaults {
    std::int64_t experts, per_token, width, shared, first_dense;
    std::int64_t groups = 1, best_groups = 1;
    double scale = 1.0;
    std::string_view count_key = "n_routed_experts", shared_key = "n_shared_experts";
    std::string_view scale_key = "routed_scaling_factor";
};

/// Layers of experts with a shared one, as DeepSeek has them. `experts`: what is the same in the whole family.
void read_routed_layers(const Section& top, const RoutedDefaults& defaults, ExpertConfig kind, ModelConfig& config) {
    ExpertConfig experts = read_experts(top, config, defaults.count_key, defaults.experts, defaults.per_token);
    experts.score = kind.score;
    experts.corrected = kind.score == RouterScore::sigmoid;
    experts.normalized = kind.normalized;
    experts.scale = top.positive_or(defaults.scale_key, defaults.scale, 1e6);
    read_expert_groups(top, defaults.count_key, defaults.groups, defaults.best_groups, experts);
    const std::int64_t width = top.size_or("moe_intermediate_size", defaults.width, max_intermediate_size);
    const std::int64_t shared = get_int_or(top.json, defaults.shared_key, defaults.shared, 0,
                                           max_intermediate_size / width, top.file, top.within);
    const std::int64_t dense =
        get_int_or(top.json, "first_k_dense_replace", defaults.first_dense, 0, max_layers, top.file, top.within);
    if (top.size_or("moe_layer_freq", 1, max_layers) != 1) top.refuse("moe_layer_freq", "1");
    if (dense >= config.num_layers) return;
    config.expert_intermediate_size = width;
    config.shared_intermediate_size = shared * width;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (auto at = static_cast<std::size_t>(dense); at < config.layers.size(); ++at)
        config.layers[at].experts = experts;
}

/// Where layers with experts are named, too.
void check_mlp_types(const Section& top, const ModelConfig& config) {
    const Json* types = top.find("mlp_layer_types");
    if (types == nullptr) return;
    Json expected = Json::array();
    for (std::int64_t at = 0; at < config.num_layers; ++at)
        expected.push_back(config.layer(at).experts.count > 0 ? "sparse" : "dense");
    if (*types != expected) top.refuse("mlp_layer_types", R"("dense" for the first layers, and "sparse")");
}

/// The same in the form of K-EXAONE.
void check_moe_layers(const Section& top, const ModelConfig& config) {
    const Json* is_moe = top.find("is_moe_layer");
    if (is_moe == nullptr) return;
    Json expected = Json::array();
    for (std::int64_t at = 0; at < config.num_layers; ++at) expected.push_back(config.layer(at).experts.count > 0);
    if (*is_moe != expected)
        top.refuse("is_moe_layer",
                   "false for the first layers, as first_k_dense_replace or mlp_layer_types says, and true");
}

/// How many of the first layers have no experts, where layers are named; else `fallback`.
std::int64_t first_dense_of(const Section& top, std::int64_t fallback) {
    const Json* types = top.find("mlp_layer_types");
    if (types == nullptr || !types->is_array()) return fallback;
    return std::find(types->begin(), types->end(), "sparse") - types->begin();
}

/// Latent attention (MLA). `config` has the sizes, and one layer.
void read_latent_attention(const Section& top, const LatentConfig& defaults, ModelConfig& config) {
    constexpr std::int64_t step = 16;  // of the inputs of a matmul: the parts of a head stand side by side
    const auto dim = [&](std::string_view key, std::int64_t fallback, std::int64_t high) {
        const std::int64_t value = top.size_or(key, fallback, high);
        if (value % step != 0) top.refuse(key, "a multiple of " + std::to_string(step));
        return value;
    };
    LatentConfig& latent = config.latent;
    latent.kv_rank = dim("kv_lora_rank", defaults.kv_rank, max_head_dim);
    latent.nope_dim = dim("qk_nope_head_dim", defaults.nope_dim, max_head_dim);
    latent.rope_dim = dim("qk_rope_head_dim", defaults.rope_dim, max_head_dim);
    latent.value_dim = dim("v_head_dim", defaults.value_dim, max_head_dim);
    latent.interleaved = top.flag_or("rope_interleave", true);
    const bool no_query_rank = top.json.contains("q_lora_rank") && top.find("q_lora_rank") == nullptr;
    if (!no_query_rank) latent.query_rank = dim("q_lora_rank", defaults.query_rank, max_hidden_size);
    if (latent.kv_rank % latent.rope_dim != 0 || (2 * latent.nope_dim) % latent.rope_dim != 0)
        top.refuse("qk_rope_head_dim", "a divisor of kv_lora_rank and of twice qk_nope_head_dim");
    if (latent.kv_rank + latent.rope_dim > max_head_dim)
        top.refuse("kv_lora_rank", "with qk_rope_head_dim at most " + std::to_string(max_head_dim));
    if (top.flag("attention_bias")) top.refuse("attention_bias", "false");
    config.num_kv_heads = 1;
    config.head_dim = latent.kv_rank + latent.rope_dim;
    read_common(top, config);
    RopeConfig& rope = config.layers.front().rope;
    // Attention divides by the root of head_dim, and should by that of a head's queries, times the square of yarn's
    // attention temperature.
    rope.score_scale = std::sqrt(static_cast<double>(config.head_dim) / static_cast<double>(latent.query_dim()));
    if (rope.mscale_all_dim == 0.0 || rope.factor <= 1.0) return;
    const double temperature = 0.1 * rope.mscale_all_dim * kernels::scalar::det_log(rope.factor) + 1.0;
    rope.score_scale *= temperature * temperature;
}

}  // namespace

/// GLM-4.5 to 4.7: the router of DeepSeek-V3, a shared expert, no experts in the first layers.
void read_glm4_moe_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = top.flag("attention_bias");
    layer.head_norm = top.flag("use_qk_norm");
    read_routed_layers(top, {.experts = 128, .per_token = 8, .width = 1408, .shared = 1, .first_dense = 1},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
}

/// dots.llm1: the attention of Qwen3, the experts of DeepSeek-V3. Layers from max_window_layers on have the window.
void read_dots1_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config);
    const std::int64_t window = window_of(top, 4096);
    const std::int64_t first = get_int_or(top.json, "max_window_layers", 62, 0, max_layers, top.file, top.within);
    set_windows(
        top, window,
        windowed_layers(top, config.num_layers, [&](std::int64_t layer) { return window > 0 && layer >= first; }),
        config);
    read_routed_layers(top, {.experts = 0, .per_token = 0, .width = 1408, .shared = 0, .first_dense = 0},
                       {.score = RouterScore::sigmoid, .normalized = top.flag("norm_topk_prob")}, config);
}

/// Solar Open: the layers of GLM-4.5, all with experts.
void read_solar_open_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().qkv_bias = top.flag("attention_bias");
    read_routed_layers(top, {.experts = 128, .per_token = 8, .width = 1280, .shared = 1, .first_dense = 0},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
}

/// Trinity: gated attention, rotated where it has a window, norms before and after each block.
void read_afmoe_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    if (top.flag("mup_enabled")) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::both;
    layer.head_norm = layer.output_gate = true;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    read_rotated_windows(top, window_of(top, 1024), "global_attn_every_n_layers", config);
    const std::int64_t dense = get_int_or(top.json, "num_dense_layers", 1, 0, max_layers, top.file, top.within);
    if (dense >= config.num_layers) return;
    ExpertConfig experts = read_experts(top, config, "num_experts", 64, 6);
    experts.score = RouterScore::sigmoid;
    experts.corrected = true;
    experts.scale = top.positive_or("route_scale", 1.0, 1e6);
    // Published folders have these, which the class of transformers does not read.
    if (top.size_or("n_group", 1, max_experts) != 1) top.refuse("n_group", "1");
    if (!top.flag_or("route_norm", true)) top.refuse("route_norm", "true");
    if (top.text_or("score_func", "sigmoid") != "sigmoid") top.refuse("score_func", R"("sigmoid")");
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", 1408, max_intermediate_size);
    config.shared_intermediate_size =
        config.expert_intermediate_size * get_int_or(top.json, "num_shared_experts", 2, 0,
                                                     max_intermediate_size / config.expert_intermediate_size, top.file,
                                                     top.within);
    for (auto at = static_cast<std::size_t>(dense); at < config.layers.size(); ++at)
        config.layers[at].experts = experts;
}

/// K-EXAONE: the attention of EXAONE 4, norms before blocks.
void read_exaone_moe_layers(const Section& top, ModelConfig& config) {
    read_exaone_attention(top, config);
    read_routed_layers(top,
                       {.experts = 64,
                        .per_token = 8,
                        .width = 1024,
                        .shared = 1,
                        .first_dense = first_dense_of(top, 1),
                        .scale = 2.5,
                        .count_key = "num_experts",
                        .shared_key = "num_shared_experts"},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
    check_mlp_types(top, config);
    check_moe_layers(top, config);
}

/// Hy3.
void read_hy_v3_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config, 11158840.0);
    if (top.flag("mlp_bias")) top.refuse("mlp_bias", "false");
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    read_routed_layers(top,
                       {.experts = 192,
                        .per_token = 8,
                        .width = 1536,
                        .shared = 1,
                        .first_dense = first_dense_of(top, 1),
                        .scale = 2.826,
                        .count_key = "num_experts",
                        .shared_key = "num_shared_experts",
                        .scale_key = "router_scaling_factor"},
                       {.score = RouterScore::sigmoid}, config);
    check_mlp_types(top, config);
}

/// ERNIE 4.5 with experts, in every so many layers of a range.
void read_ernie4_5_moe_layers(const Section& top, ModelConfig& config) {
    const auto place = [&](std::string_view key, std::int64_t fallback) {
        return get_int_or(top.json, key, fallback, -1, max_layers, top.file, top.within);
    };
    read_ernie4_5_layers(top, config);
    if (top.flag("use_bias")) top.refuse("use_bias", "false");
    if (top.positive_or("moe_norm_min", 1e-12, 1.0) != 1e-12) top.refuse("moe_norm_min", "1e-12");
    ExpertConfig experts = read_experts(top, config, "moe_num_experts", 64, 6, "moe_k");
    experts.corrected = true;
    const std::int64_t width = top.size_or("moe_intermediate_size", 1536, max_intermediate_size);
    const std::int64_t shared =
        get_int_or(top.json, "moe_num_shared_experts", 2, 0, max_intermediate_size / width, top.file, top.within);
    const std::int64_t first = place("moe_layer_start_index", 1), last = place("moe_layer_end_index", -1);
    const std::int64_t step = top.size_or("moe_layer_interval", 1, max_layers);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        if (at < first || (last >= 0 && at > last) || (at + 1) % step != 0) continue;
        config.layers[static_cast<std::size_t>(at)].experts = experts;
        config.expert_intermediate_size = width;
        config.shared_intermediate_size = shared * width;
    }
}

/// DeepSeek-V2: experts by softmax.
void read_deepseek_v2_layers(const Section& top, ModelConfig& config) {
    read_latent_attention(top, {1536, 512, 128, 64, 128}, config);
    if (top.flag("norm_topk_prob")) top.refuse("norm_topk_prob", "false");
    if (top.text_or("scoring_func", "softmax") != "softmax") top.refuse("scoring_func", R"("softmax")");
    const std::string method = top.text_or("topk_method", "greedy");
    if (method != "greedy" && method != "group_limited_greedy")
        top.refuse("topk_method", R"("greedy" or "group_limited_greedy")");
    read_routed_layers(top, {.experts = 64, .per_token = 6, .width = 1407, .shared = 2, .first_dense = 0},
                       {.score = RouterScore::softmax, .normalized = false}, config);
    if (method == "group_limited_greedy") return;
    for (LayerConfig& layer : config.layers) layer.experts.num_groups = layer.experts.best_groups = 1;
}

/// DeepSeek-V3 and R1, and Kimi K2, which has its layers.
void read_deepseek_v3_layers(const Section& top, ModelConfig& config) {
    read_latent_attention(top, {1536, 512, 128, 64, 128}, config);
    if (top.text_or("scoring_func", "sigmoid") != "sigmoid") top.refuse("scoring_func", R"("sigmoid")");
    if (top.text_or("topk_method", "noaux_tc") != "noaux_tc") top.refuse("topk_method", R"("noaux_tc")");
    read_routed_layers(top,
                       {.experts = 256,
                        .per_token = 8,
                        .width = 2048,
                        .shared = 1,
                        .first_dense = 3,
                        .groups = 8,
                        .best_groups = 4,
                        .scale = 2.5},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
}

/// Kimi K2.5: a folder with images.
void read_kimi_k25_layers(const Section& top, ModelConfig& config) {
    const std::string type = top.text_or("model_type", "kimi_k2");
    if (type != "kimi_k2" && type != "deepseek_v3") top.refuse("model_type", R"("kimi_k2" or "deepseek_v3")");
    read_deepseek_v3_layers(top, config);
}

/// Youtu-LLM: the attention of DeepSeek-V3, without experts.
void read_youtu_layers(const Section& top, ModelConfig& config) {
    read_latent_attention(top, {1536, 512, 128, 64, 128}, config);
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    if (top.flag("mlp_bias")) top.refuse("mlp_bias", "false");
}

/// GLM-4.7-Flash: latent attention, and which layers have experts by name.
void read_glm4_moe_lite_layers(const Section& top, ModelConfig& config) {
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    read_latent_attention(top, {768, 512, 192, 64, 256}, config);
    read_routed_layers(top, {.experts = 64, .per_token = 4, .width = 1536, .shared = 1, .first_dense = 1, .scale = 1.8},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
    check_mlp_types(top, config);
}

/// MiniMax-M2: norms on all heads of q and of k, and the router of DeepSeek-V3 without groups.
void read_minimax_m2_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 5e6);
    config.layers.front().whole_norm = true;
    for (const char* key : {"use_qk_norm", "use_routing_bias"}) {
        if (!top.flag_or(key, true)) top.refuse(key, "true");
    }
    if (top.text_or("qk_norm_type", "per_layer") != "per_layer") top.refuse("qk_norm_type", R"("per_layer")");
    if (top.text_or("scoring_func", "sigmoid") != "sigmoid") top.refuse("scoring_func", R"("sigmoid")");
    constexpr std::string_view shared = "shared_intermediate_size";
    if (get_int_or(top.json, shared, 0, 0, max_intermediate_size, top.file, top.within) != 0) top.refuse(shared, "0");
    ExpertConfig& experts = config.layers.front().experts;
    experts = read_experts(top, config, "num_local_experts", 256, 8);
    experts.score = RouterScore::sigmoid;
    experts.corrected = true;
    config.expert_intermediate_size = config.intermediate_size;
}

/// gpt-oss: windows in every other layer, attention sinks, biases everywhere, its own activation.
void read_gpt_oss_layers(const Section& top, ModelConfig& config) {
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.tied_embeddings = top.flag("tie_word_embeddings");
    constexpr float alpha = kernels::swiglu_oai_alpha, limit = kernels::swiglu_oai_limit;
    if (static_cast<float>(top.positive_or("swiglu_alpha", alpha, 100.0)) != alpha) top.refuse("swiglu_alpha", "1.702");
    if (static_cast<float>(top.positive_or("swiglu_limit", limit, 1e6)) != limit) top.refuse("swiglu_limit", "7.0");
    LayerConfig& layer = config.layers.front();
    const Section rope = rope_section(top);
    if (rope.json.empty()) top.refuse("rope_scaling", "the parameters of yarn, as in the published folders");
    layer.rope = read_rope(rope, top, config, 150000.0);
    layer.qkv_bias = layer.output_bias = top.flag_or("attention_bias", true);
    layer.activation = Activation::swiglu_oai;
    layer.sinks = true;
    layer.experts = read_experts(top, config, "num_local_experts", 128, 4);
    layer.experts.bias = true;
    layer.experts.stack = ExpertStack::alternating;
    config.expert_intermediate_size = config.intermediate_size;
    set_windows(top, window_of(top, 128),
                windowed_layers(top, config.num_layers, [](std::int64_t at) { return at % 2 == 0; }), config);
}

}  // namespace longhaul::engine::detail
