// The layers of each family: what config.json says of them, and what its transformers class fixes.
#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/model/config_section.hpp"
#include "kernels/gate.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine::detail {
namespace {

constexpr std::string_view full_attention = "full_attention", sliding_attention = "sliding_attention";

/// `sliding_window`: `fallback` if config.json does not have it, 0 (none) if it is null.
std::int64_t window_of(const Section& top, std::int64_t fallback) {
    constexpr std::string_view key = "sliding_window";
    if (!top.json.contains(key)) return fallback;
    return top.find(key) == nullptr ? 0 : top.size(key, max_context);
}

/// Which layers have a window: those that `layer_types` names, else those for which `by_default` holds.
template <typename Default>
std::vector<bool> windowed_layers(const Section& top, std::int64_t num_layers, Default by_default) {
    std::vector<bool> windowed;
    const Json* types = top.find("layer_types");
    if (types == nullptr) {
        for (std::int64_t layer = 0; layer < num_layers; ++layer) windowed.push_back(by_default(layer));
        return windowed;
    }
    if (!types->is_array() || std::ssize(*types) != num_layers)
        top.refuse("layer_types", "an array of num_hidden_layers = " + std::to_string(num_layers));
    for (const Json& type : *types) {
        if (type != full_attention && type != sliding_attention)
            throw InputError(top.file, top.field("layer_types"),
                             describe(Json(full_attention)) + " or " + describe(Json(sliding_attention)),
                             describe(type));
        windowed.push_back(type == sliding_attention);
    }
    return windowed;
}

/// One entry per layer, with a window of `window` positions in the layers that are `windowed`.
void set_windows(const Section& top, std::int64_t window, const std::vector<bool>& windowed, ModelConfig& config) {
    const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
    if (any && window == 0 && top.find("layer_types") != nullptr)
        top.refuse("sliding_window", "a number of positions, for the layers that layer_types calls sliding_attention");
    if (!any || window == 0) return;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t layer = 0; layer < windowed.size(); ++layer) {
        if (windowed[layer]) config.layers[layer].attention_window = window;
    }
}

/// RoPE parameters of one kind of layers, where each has its own.
Section of_kind(const Section& shared, std::string_view kind) {
    const Json* own = shared.find(kind);
    return own == nullptr ? shared : Section{*own, shared.file, shared.field(kind)};
}

/// Gives `rope` to the layers that are `windowed`.
void set_ropes(const std::vector<bool>& windowed, const RopeConfig& rope, ModelConfig& config) {
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        if (windowed[at]) config.layers[at].rope = rope;
    }
}

/// Qwen: the window applies to layers from max_window_layers on, if use_sliding_window says so. (Published folders
/// name a window without using it.)
void read_qwen_windows(const Section& top, ModelConfig& config) {
    const bool uses = top.flag("use_sliding_window");
    const std::int64_t window = uses ? window_of(top, 4096) : 0;
    const std::int64_t first = get_int_or(top.json, "max_window_layers", 28, 0, max_layers, top.file, top.within);
    const auto windowed =
        windowed_layers(top, config.num_layers, [&](std::int64_t layer) { return window > 0 && layer >= first; });
    set_windows(top, window, windowed, config);
}

/// How many experts there are, `count_key`, and how many a token has.
ExpertConfig read_experts(const Section& top, const ModelConfig& config, std::string_view count_key,
                          std::int64_t default_count, std::int64_t default_per_token) {
    ExpertConfig experts;
    experts.count = top.size_or(count_key, default_count, max_experts);
    if (config.num_layers * experts.count > max_all_experts)
        top.refuse(count_key, "at most " + std::to_string(max_all_experts) + " experts in all layers");
    constexpr std::string_view key = "num_experts_per_tok";
    experts.per_token = top.size_or(key, default_per_token, max_experts);
    if (experts.per_token > experts.count)
        top.refuse(key, "at most " + std::string(count_key) + " = " + std::to_string(experts.count));
    return experts;
}

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

void read_common(const Section& top, ModelConfig& config, double default_theta = 1e4) {
    config.tied_embeddings = top.flag("tie_word_embeddings");
    config.layers.front().rope = read_rope(rope_section(top), top, config, default_theta);
}

/// With the biases of Llama.
void read_llama_attention(const Section& top, ModelConfig& config, double default_theta) {
    read_common(top, config, default_theta);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.mlp_bias = top.flag("mlp_bias");
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
    read_qwen_windows(top, config);
}

namespace {

void read_qwen3_attention(const Section& top, ModelConfig& config) {
    read_common(top, config);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.head_norm = true;
}

/// Windows in all layers, but those that layer_types names otherwise.
void read_windows(const Section& top, std::int64_t window, ModelConfig& config) {
    set_windows(top, window, windowed_layers(top, config.num_layers, [&](std::int64_t) { return window > 0; }), config);
}

}  // namespace

void read_qwen3_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config);
    read_qwen_windows(top, config);
}

void read_qwen3_moe_layers(const Section& top, ModelConfig& config) {
    read_qwen3_attention(top, config);
    if (top.flag("use_sliding_window")) config.layers.front().attention_window = window_of(top, 4096);
    const bool modern = top.find("num_local_experts") != nullptr;  // as transformers 5 writes it
    ExpertConfig experts = read_experts(top, config, modern ? "num_local_experts" : "num_experts", 128, 8);
    experts.normalized = top.flag("norm_topk_prob");
    const std::vector<bool> sparse = layers_with_experts(top, config.num_layers);
    if (std::find(sparse.begin(), sparse.end(), true) == sparse.end())
        throw InputError(top.file, "mlp_only_layers and decoder_sparse_step", "a layer that they leave its experts",
                         "none");
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", 768, max_intermediate_size);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t layer = 0; layer < sparse.size(); ++layer) {
        if (sparse[layer]) config.layers[layer].experts = experts;
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
    std::vector<bool> nope;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const Json one =
            rotated == nullptr ? Json((at + 1) % interval == 0 ? 0 : 1) : (*rotated)[static_cast<std::size_t>(at)];
        if (one != 0 && one != 1) throw InputError(top.file, top.field(key), "0 or 1 for each layer", describe(one));
        nope.push_back(one == 0);
    }
    const std::int64_t window = top.flag("use_sliding_window") ? window_of(top, 0) : 0;
    set_windows(top, window,
                windowed_layers(top, config.num_layers,
                                [&](std::int64_t at) { return window > 0 && nope[static_cast<std::size_t>(at)]; }),
                config);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < nope.size(); ++at) {
        if (nope[at]) config.layers[at].rope = {.scaling = RopeScaling::none};
    }
}

/// Seed-OSS: Llama with biases of its own choice.
void read_seed_oss_layers(const Section& top, ModelConfig& config) {
    read_llama_attention(top, config, 1e4);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = top.flag_or("attention_bias", true);
    layer.output_bias = top.flag("attention_out_bias");
}

/// Granite: Llama with factors on embeddings, blocks, scores and logits.
void read_granite_layers(const Section& top, ModelConfig& config) {
    constexpr double highest = 1e6;
    read_llama_layers(top, config);
    LayerConfig& layer = config.layers.front();
    config.embedding_scale = top.positive_or("embedding_multiplier", 1.0, highest);
    config.logits_scale = 1.0 / top.positive_or("logits_scaling", 1.0, highest);
    layer.block_scale = top.positive_or("residual_multiplier", 1.0, highest);
    // Attention divides by the root of head_dim, and should multiply by this.
    const double scores = top.positive_or("attention_multiplier", 1.0, highest);
    layer.rope.query_scale = scores * std::sqrt(static_cast<double>(config.head_dim));
}

void read_mixtral_layers(const Section& top, ModelConfig& config) {
    read_common(top, config, 1e6);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    config.layers.front().attention_window = window_of(top, 0);
    config.layers.front().experts = read_experts(top, config, "num_local_experts", 8, 2);
    config.expert_intermediate_size = config.intermediate_size;
}

namespace {

/// What a class of transformers fills in if config.json lacks it.
struct RoutedDefaults {
    std::int64_t experts, per_token, width, shared, first_dense;
    std::int64_t groups = 1, best_groups = 1;
    double scale = 1.0;
};

/// The groups of experts from which those of a row are chosen.
void read_expert_groups(const Section& top, const RoutedDefaults& defaults, ExpertConfig& experts) {
    constexpr std::string_view groups = "n_group", best = "topk_group";
    experts.num_groups = top.size_or(groups, defaults.groups, max_experts);
    experts.best_groups = top.size_or(best, defaults.best_groups, max_experts);
    const std::int64_t size = experts.count / experts.num_groups;
    const bool two = experts.score == RouterScore::sigmoid && experts.num_groups > 1;
    if (experts.count % experts.num_groups != 0 || (two && size < 2))
        top.refuse(groups, "a divisor of n_routed_experts = " + std::to_string(experts.count) +
                               (two ? ", with two experts or more in a group" : ""));
    if (experts.best_groups > experts.num_groups || experts.best_groups * size < experts.per_token)
        top.refuse(best, "at most n_group = " + std::to_string(experts.num_groups) +
                             ", and groups with num_experts_per_tok = " + std::to_string(experts.per_token) +
                             " experts or more");
}

/// Layers of experts with a shared one, as DeepSeek has them. `experts`: what is the same in the whole family.
void read_routed_layers(const Section& top, const RoutedDefaults& defaults, ExpertConfig kind, ModelConfig& config) {
    ExpertConfig experts = read_experts(top, config, "n_routed_experts", defaults.experts, defaults.per_token);
    experts.score = kind.score;
    experts.normalized = kind.normalized;
    experts.scale = top.positive_or("routed_scaling_factor", defaults.scale, 1e6);
    read_expert_groups(top, defaults, experts);
    const std::int64_t width = top.size_or("moe_intermediate_size", defaults.width, max_intermediate_size);
    const std::int64_t shared = get_int_or(top.json, "n_shared_experts", defaults.shared, 0,
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
    rope.query_scale = std::sqrt(static_cast<double>(config.head_dim) / static_cast<double>(latent.query_dim()));
    if (rope.mscale_all_dim == 0.0 || rope.factor <= 1.0) return;
    const double temperature = 0.1 * rope.mscale_all_dim * kernels::scalar::det_log(rope.factor) + 1.0;
    rope.query_scale *= temperature * temperature;
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

/// GLM-4: norms before and after each block.
void read_glm4_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.norm_eps = top.positive_or("rms_norm_eps", 1.5625e-7, 1.0);
    config.fused_gate_up = true;
    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::both;
    layer.qkv_bias = top.flag_or("attention_bias", true);
    layer.rope.interleaved = true;
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

/// GLM-4.7-Flash: latent attention, and which layers have experts by name.
void read_glm4_moe_lite_layers(const Section& top, ModelConfig& config) {
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-5, 1.0);
    read_latent_attention(top, {768, 512, 192, 64, 256}, config);
    read_routed_layers(top, {.experts = 64, .per_token = 4, .width = 1536, .shared = 1, .first_dense = 1, .scale = 1.8},
                       {.score = RouterScore::sigmoid, .normalized = top.flag_or("norm_topk_prob", true)}, config);
    const Json* types = top.find("mlp_layer_types");
    if (types == nullptr) return;
    Json expected = Json::array();
    for (std::int64_t at = 0; at < config.num_layers; ++at)
        expected.push_back(config.layer(at).experts.count > 0 ? "sparse" : "dense");
    if (*types != expected) top.refuse("mlp_layer_types", R"("dense" for the first layers, and "sparse")");
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
    layer.experts.bias = layer.experts.stacked = true;
    config.expert_intermediate_size = config.intermediate_size;
    set_windows(top, window_of(top, 128),
                windowed_layers(top, config.num_layers, [](std::int64_t at) { return at % 2 == 0; }), config);
}

void read_phi3_layers(const Section& top, ModelConfig& config) {
    read_common(top, config);
    config.fused_qkv = config.fused_gate_up = true;
    read_windows(top, window_of(top, 0), config);
}

/// Gemma 3: two kinds of layers, each with RoPE parameters of its own.
void read_gemma3_layers(const Section& top, ModelConfig& config) {
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.norm_adds_one = true;
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
    for (const char* cap : {"final_logit_softcapping", "attn_logit_softcapping"}) {
        if (top.find(cap) != nullptr) top.refuse(cap, "null: soft-caps, as in Gemma 2, are not in this version");
    }
    if (top.flag("use_bidirectional_attention")) top.refuse("use_bidirectional_attention", "false");
    const double scalar = top.positive_or("query_pre_attn_scalar", 256.0, 1e6);
    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::both;
    layer.activation = Activation::gelu;
    layer.head_norm = true;
    layer.query_scale = std::sqrt(static_cast<double>(config.head_dim) / scalar);
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");

    const Section shared = rope_section(top);
    layer.rope = read_rope(of_kind(shared, full_attention), top, config, 1e6);
    RopeConfig local;
    if (shared.find(sliding_attention) != nullptr) {
        static const Json empty = Json::object();  // rope_theta beside rope_parameters is that of the full layers
        local = read_rope(of_kind(shared, sliding_attention), {empty, top.file, top.within}, config, 1e4);
    }
    if (top.find("rope_local_base_freq") != nullptr)
        local.theta = top.positive_or("rope_local_base_freq", 1e4, 1e30, 1.0);

    const std::int64_t pattern = top.size_or("sliding_window_pattern", 6, max_layers);
    const auto windowed =
        windowed_layers(top, config.num_layers, [&](std::int64_t at) { return (at + 1) % pattern != 0; });
    set_windows(top, window_of(top, 4096), windowed, config);
    set_ropes(windowed, local, config);
}

namespace {

/// The heads of Gemma 4's full layers: as published, or as transformers 5 writes them, for each layer.
HeadShape full_heads(const Section& top, const ModelConfig& config, bool keys_are_values,
                     const std::vector<bool>& windowed) {
    constexpr std::string_view published = "num_global_key_value_heads", by_layer = "per_layer_config";
    HeadShape heads;
    const Json* const layers = top.find(by_layer);
    if (layers == nullptr) {
        heads.dim = top.size_or("global_head_dim", 512, max_head_dim);
        heads.num_kv_heads = keys_are_values ? top.size_or(published, config.num_kv_heads, max_heads) : 0;
        if (heads.num_kv_heads > 0 && config.num_kv_heads % heads.num_kv_heads != 0)
            top.refuse(published, "a divisor of num_key_value_heads = " + std::to_string(config.num_kv_heads));
        if (heads.dim % 2 != 0) top.refuse("global_head_dim", "an even number");
        return heads;
    }
    if (!layers->is_object()) top.refuse(by_layer, "an object");
    static const Json empty = Json::object();
    std::optional<HeadShape> read;
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        const std::string number = std::to_string(at);
        const auto found = layers->find(number);
        if (windowed[at] && found != layers->end()) top.refuse(by_layer, "full_attention layers alone");
        if (windowed[at]) continue;
        const Section layer{found == layers->end() ? empty : *found, top.file, top.field(by_layer) + "." + number};
        if (!layer.json.is_object()) top.refuse(by_layer, "an object for each layer");
        heads.dim = layer.size_or("head_dim", config.head_dim, max_head_dim);
        heads.num_kv_heads = layer.size_or("num_key_value_heads", config.num_kv_heads, max_heads);
        if (config.num_kv_heads % heads.num_kv_heads != 0)
            layer.refuse("num_key_value_heads", "a divisor of " + std::to_string(config.num_kv_heads));
        if (heads.dim % 2 != 0) layer.refuse("head_dim", "an even number");
        if (read && *read != heads) top.refuse(by_layer, "the same heads in all full_attention layers");
        read = heads;
    }
    return heads;
}

/// What Gemma 4 has of experts: beside the MLP, which is read as a shared expert.
void read_gemma4_experts(const Section& top, ModelConfig& config) {
    if (!top.flag("enable_moe_block")) return;
    ExpertConfig& experts = config.layers.front().experts;
    experts.count = top.size("num_experts", max_experts);
    experts.per_token = top.size("top_k_experts", max_experts);
    if (config.num_layers * experts.count > max_all_experts)
        top.refuse("num_experts", "at most " + std::to_string(max_all_experts) + " experts in all layers");
    if (experts.per_token > experts.count)
        top.refuse("top_k_experts", "at most num_experts = " + std::to_string(experts.count));
    experts.stacked = experts.by_rows = experts.own_norms = true;
    config.expert_intermediate_size = top.size("moe_intermediate_size", max_intermediate_size);
    config.shared_intermediate_size = config.intermediate_size;
}

}  // namespace

/// Gemma 4 without embeddings per layer: two kinds of layers, each with RoPE parameters and heads of its own.
void read_gemma4_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view per_layer = "hidden_size_per_layer_input", shared = "num_kv_shared_layers";
    const bool has_none = top.json.contains(per_layer) && top.find(per_layer) == nullptr;
    if (!has_none && get_int_or(top.json, per_layer, 256, 0, max_hidden_size, top.file, top.within) > 0)
        top.refuse(per_layer, "0: embeddings per layer, as in E2B and E4B, are not in this version");
    if (get_int_or(top.json, shared, 0, 0, max_layers, top.file, top.within) > 0)
        top.refuse(shared, "0: layers that share keys and values, as in E2B and E4B, are not in this version");
    constexpr std::string_view directions = "use_bidirectional_attention";  // "vision": of images alone
    if (top.find(directions) != nullptr && top.text_or(directions, "") != "vision")
        top.refuse(directions, R"(null or "vision")");
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
    constexpr std::string_view cap = "final_logit_softcapping";
    if (top.find(cap) != nullptr) config.logit_cap = top.positive_or(cap, 30.0, 1e6);

    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::both;
    layer.activation = Activation::gelu;
    layer.head_norm = layer.value_norm = layer.output_scale = true;
    layer.query_scale = std::sqrt(static_cast<double>(config.head_dim));  // attention divides by it
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    read_gemma4_experts(top, config);

    std::vector<bool> windowed =
        windowed_layers(top, config.num_layers, [](std::int64_t at) { return (at + 1) % 6 != 0; });
    windowed.back() = false;  // as its class has it
    const std::int64_t window = top.size_or("sliding_window", 512, max_context);
    const bool keys_are_values = top.flag("attention_k_eq_v");
    const HeadShape heads = full_heads(top, config, keys_are_values, windowed);
    const Section ropes = rope_section(top);
    static const Json empty = Json::object();
    const auto section_of = [&](std::string_view type) -> Section {
        const Json* own = ropes.find(type);
        if (own != nullptr && !own->is_object()) ropes.refuse(type, "an object");
        return {own == nullptr ? empty : *own, top.file, ropes.field(type)};
    };
    layer.rope = read_rope(section_of(sliding_attention), {empty, top.file, top.within}, config, 1e4);
    const Section full = section_of(full_attention);
    RopeConfig wide = read_proportional_rope(full, heads.dim, 1e6);
    if (full.json.empty()) wide.rotary_dims = 2 * (heads.dim / 8);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        LayerConfig& one = config.layers[at];
        if (windowed[at]) {
            one.attention_window = window;
            continue;
        }
        one.head_dim = heads.dim;
        one.num_kv_heads = heads.num_kv_heads;
        one.query_scale = std::sqrt(static_cast<double>(heads.dim));
        one.keys_are_values = keys_are_values;
        one.rope = wide;
    }
}

/// OPT: LayerNorm, MLP without gate, learned positions. The 350M model is post-norm and has narrower embeddings.
void read_opt_layers(const Section& top, ModelConfig& config) {
    config.learned_positions = true;
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

}  // namespace longhaul::engine::detail
